"""The settings of reuse: `Refurbish` and `Echo`."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, fields
from typing import Literal

from rekindle.core.given_numbers import integer_of, number_of
from rekindle.errors import ArgumentError
from rekindle.reuse.cache.codecs import Jpeg, find_codec
from rekindle.reuse.cache.memory_budget import Memory, checked_memory

STAGES = ("read", "decode", "augment", "batch")
_BUFFERED_SAMPLES, _BUFFERED_BATCHES = 4096, 16  # of echoes, by default


@dataclass(frozen=True, repr=False)
class Refurbish:
    """Cache partly augmented samples, use each `factor` times, and finish the augmentation afresh each time.

    Lee et al., "Refurbish your training data", USENIX ATC'21. What a sample looks like follows from its key
    alone: whether it is found in the cache changes the time it takes and nothing else.

    Args:
        factor: How often a cached part is used: 1 or more, not necessarily an integer.
        split: The first step that is recomputed each time: its name ("RandAugment", or "RandAugment[1]" for
            the second of its layers) or its number among all layers. "auto" takes the split point that saves
            the most with `min_diversity`, by a table of what steps cost (those that are in none are
            measured); the choice is logged and saved in checkpoints. Given `final_transform=`, the split is
            before that.
        memory: Memory for the cache, shared by all workers and by the ranks of this host: bytes, or a size
            such as "4GB"; "auto" is a half of what is available.
        disk: A folder for what does not fit, or None. A later run with the same data, steps and seed finds
            it again.
        codec: How values are stored: "raw", "lz4", "zstd", "jpeg" or `Jpeg(quality)`.
        balance: What is the same in every batch: the predicted "cost" of preparing it, the number of
            "misses", or None for a plain shuffle.
        min_diversity: With split="auto": the share of distinct views that must be left.
        epochs: With split="auto": the length of training for which diversity is computed.
        shared: A name under which training runs on this host, of the same user, share one cache: each cached
            part is computed once for all of them. It then follows from the name and not from `seed`, and the
            rest of a sample from each run's own.

    """

    factor: float = 3
    split: int | str = "auto"
    memory: Memory = "auto"
    disk: str | os.PathLike[str] | None = None
    codec: str | Jpeg = "raw"
    balance: Literal["cost", "misses"] | None = "cost"
    min_diversity: float = 0.9
    epochs: int = 100
    shared: str | None = None

    def __repr__(self) -> str:
        return _shown(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _checked_factor("Refurbish", self.factor))
        if not (self.shared is None or (isinstance(self.shared, str) and self.shared)):
            raise ArgumentError(f"Refurbish: shared is {self.shared!r}. Give a name, or None.")
        checked_memory(self.memory)
        find_codec(self.codec)
        if not (self.disk is None or isinstance(self.disk, str | os.PathLike)):
            raise ArgumentError(f"Refurbish: disk is {self.disk!r}. Give the path of a folder, or None.")
        if self.disk is not None and os.path.exists(self.disk) and not os.path.isdir(self.disk):
            raise ArgumentError(
                f"Refurbish: disk is {self.disk!r}, which is there and is no folder. Give the path of a "
                "folder; one that is not there yet is made."
            )
        if self.balance not in ("cost", "misses", None):
            raise ArgumentError(f"Refurbish: balance is {self.balance!r}. Give 'cost', 'misses' or None.")
        min_diversity, epochs = number_of(self.min_diversity), integer_of(self.epochs)
        if min_diversity is None or not 0 <= min_diversity <= 1:
            raise ArgumentError(
                f"Refurbish: min_diversity is {self.min_diversity!r}. Give a share from 0 to 1."
            )
        if epochs is None or epochs < 1:
            raise ArgumentError(f"Refurbish: epochs is {self.epochs!r}. Give an integer from 1 on.")
        split = self.split if isinstance(self.split, str) else integer_of(self.split)
        if split is None:
            raise ArgumentError(
                f"Refurbish: split is {self.split!r}. Give a step's name, its number, or 'auto'."
            )
        for name, value in (("min_diversity", min_diversity), ("epochs", epochs), ("split", split)):
            object.__setattr__(self, name, value)

    def part_seed(self, seed: int) -> int:
        """What cached parts, and when they are recomputed, follow from in a run of this seed.

        >>> alone, shared = Refurbish(), Refurbish(shared="sweep")
        >>> alone.part_seed(7), shared.part_seed(7) == shared.part_seed(8)
        (7, True)
        """
        if self.shared is None:
            return seed
        digest = hashlib.blake2b(self.shared.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, repr=False)
class Echo:
    """Repeat the output of a stage while the accelerator would wait for more.

    Choi et al., "Faster neural network training with data echoing", 2019. An epoch then has `factor` times as
    many steps, and each sample is read once in it. Repeats are free as long as what comes before the stage
    takes `factor` times as long as what comes after it.

    Args:
        factor: How often everything is used: 1 or more, not necessarily an integer.
        after: What is repeated: what was "read" (bytes), "decode"d, augmented ("augment"), or whole batches
            ("batch"); or the name of the step whose result is repeated. What comes after it is recomputed for
            each repeat. For a dataset that cannot be split into steps, all but "batch" repeat its samples,
            and `final_transform=` is recomputed.
        shuffle: The size of the buffer behind the stage: repeats are delayed by up to this many samples, or
            batches after "batch". None is 4096 samples, or 16 batches.
        memory: Bytes of memory for what is repeated; "auto" as in `Refurbish`.

    """

    factor: float = 2.0
    after: str = "decode"
    shuffle: int | None = None
    memory: Memory = "auto"

    def __repr__(self) -> str:
        return _shown(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _checked_factor("Echo", self.factor))
        checked_memory(self.memory)
        if not isinstance(self.after, str):
            raise ArgumentError(
                f"Echo: after is {self.after!r}. Give a stage ({', '.join(map(repr, STAGES))}) or the name "
                "of a step, such as 'RandomResizedCrop'."
            )
        if self.shuffle is not None:
            size = integer_of(self.shuffle)
            if size is None or size < 0:
                raise ArgumentError(
                    f"Echo: shuffle is {self.shuffle!r}. Give the size of the buffer, 0 for none, or None."
                )
            object.__setattr__(self, "shuffle", size)

    @property
    def buffer(self) -> int:
        """By how many samples, or batches, repeats are delayed at most."""
        if self.shuffle is not None:
            return self.shuffle
        return _BUFFERED_BATCHES if self.after == "batch" else _BUFFERED_SAMPLES


def _checked_factor(name: str, factor: object) -> float:
    number = number_of(factor)
    if number is None or not 1 <= number <= 1000:
        raise ArgumentError(f"{name}: factor is {factor!r}. Give a number from 1 to 1000.")
    return number


def _shown(settings: Refurbish | Echo) -> str:
    """The settings as they would be given: the factor, and what is not as it is by default."""
    given = [
        f"{one.name}={getattr(settings, one.name)!r}"
        for one in fields(settings)
        if one.name == "factor" or getattr(settings, one.name) != one.default
    ]
    return f"{type(settings).__name__}({', '.join(given)})"
