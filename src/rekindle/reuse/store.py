"""Values that were made before, found again by (sample, generation): the memo of a pure function.

A lookup gives the right value or a miss, whatever happened to the cache in between. Losing an entry costs
time, never data.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.available import available_memory
from rekindle.errors import ArgumentError
from rekindle.reuse import memory_tier, tally
from rekindle.reuse.codecs import Jpeg, find_codec
from rekindle.reuse.memory_tier import MemoryTier
from rekindle.reuse.shared import Field, SharedMemory
from rekindle.reuse.tally import ERRORS, HITS, MICROSECONDS, MISSES, REFUSED, Tally

_SHARE_OF_MEMORY = 2  # "auto" takes one part of so many
_MEMORY_IF_UNKNOWN = 1 << 30


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds and how it was used, by all workers together."""

    entries: int
    nbytes: int
    capacity: int | None  # in bytes; None if only the disk bounds it
    hits: int
    misses: int
    refused: int
    errors: int
    seconds: float  # that making values took, as far as it was noted


class Peek:
    """An entry's value where it lies: arrays are views that are good until it is overwritten.

    Read them, never write to them, then ask `still_there`: if not, what was read is worth nothing.
    """

    __slots__ = ("_index", "_stamp", "_tier", "value")

    def __init__(self, value: Any, tier: MemoryTier | None = None, index: int = 0, stamp: int = 0) -> None:
        self.value, self._tier, self._index, self._stamp = value, tier, index, stamp

    def still_there(self) -> bool:
        """Whether the value has been what it seemed to be up to now."""
        return self._tier is None or self._tier.unchanged(self._index, self._stamp)


class Store:
    """A cache of `size` samples in shared memory, shared by all workers of a loader.

    `memory` bounds the values' bytes ("auto": a half of what is available); the directory takes 33 bytes a
    sample beyond. All workers, threads and processes, forked or spawned with the store among their arguments,
    see the same entries.
    """

    def __init__(
        self,
        size: int,
        *,
        memory: int | str = "auto",
        codec: str | Jpeg = "raw",
        fingerprint: str = "",
    ) -> None:
        if size < 0:
            raise ArgumentError(f"Store(size={size!r}): a number of samples is not negative.")
        self.size = size
        self.codec = find_codec(codec)
        fields: list[Field] = [*memory_tier.fields(size), *tally.fields(), ("unwanted", np.uint8, size)]
        shared = SharedMemory(fields, memory_budget(memory))
        self._open(shared)

    def _open(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._memory = MemoryTier(shared)
        self._tally = Tally(shared)
        self._unwanted: NDArray[np.uint8] = shared.arrays["unwanted"]
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "codec": self.codec, "shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size, self.codec = state["size"], state["codec"]
        self._open(state["shared"])

    def holds(self, ids: ArrayLike, generations: ArrayLike) -> NDArray[np.bool_]:
        """Which of the samples are here in these generations."""
        return self._memory.holds(np.asarray(ids), generations)

    def get(self, index: int, generation: int) -> Any:
        """The value, in memory of its own, or None for a miss."""
        found = self._memory.find(index, generation)
        if found is not None:
            view, stamp = found
            copy = view.copy() if self.codec.in_place else view
            value = self._unpack(copy, index, stamp)
            if value is not None:
                return value[0]
        self._tally.add(MISSES)
        return None

    def peek(self, index: int, generation: int) -> Peek | None:
        """The value without a copy, for who only reads it: see `Peek`; None for a miss."""
        found = self._memory.find(index, generation)
        if found is not None:
            view, stamp = found
            value = self._unpack(view, index, stamp)
            if value is not None:
                return Peek(value[0], self._memory, index, stamp)
        self._tally.add(MISSES)
        return None

    def _unpack(self, memory: NDArray[np.uint8], index: int, stamp: int) -> tuple[Any] | None:
        """The value of a record, in a tuple because it may be None itself; None if it changed meanwhile."""
        try:
            value = self.codec.unpack(memory)
        except Exception as error:
            if self._memory.unchanged(index, stamp):  # Else it was overwritten while it was read.
                self._trouble(f"an entry of the cache cannot be read ({error!r})")
            return None
        if not self._memory.unchanged(index, stamp):
            return None
        self._tally.add(HITS)
        return (value,)

    def put(self, index: int, generation: int, value: Any) -> bool:
        """Keep a value; False if it is not kept. UnknownTypeError if it is of a type that cannot be."""
        if not self._wanted(index, generation):
            return False
        return self._put(index, generation, self.codec.pack(value))

    def keep(self, index: int, generation: int, value: Any) -> Any:
        """Put a value, and what a later `get` gives: the value itself, or what a lossy codec left of it."""
        if not self.codec.lossy:
            self.put(index, generation, value)
            return value
        record = self.codec.pack(value)
        if self._wanted(index, generation):
            self._put(index, generation, record)
        return self.codec.unpack(record.joined())

    def settle(self, value: Any) -> Any:
        """What a later `get` gives for a value that is put now, whether it is kept or not."""
        return self.codec.unpack(self.codec.pack(value).joined()) if self.codec.lossy else value

    def _wanted(self, index: int, generation: int) -> bool:
        if not self._unwanted[index]:
            return True
        self._memory.drop(index, before=generation)
        return False

    def _put(self, index: int, generation: int, record: Any) -> bool:
        if self._memory.put(index, generation, record):
            return True
        self._tally.add(REFUSED)
        return False

    def admit(self, mask: ArrayLike | None) -> None:
        """Which samples are worth keeping; None for all. For all workers, from now on."""
        if mask is None:
            self._unwanted[:] = 0
            return
        wanted = np.asarray(mask, dtype=bool)
        if wanted.shape != (self.size,):
            raise ArgumentError(f"admit() takes {self.size} flags, one a sample, not {wanted.shape}.")
        self._unwanted[:] = ~wanted

    def note_seconds(self, seconds: float) -> None:
        """Count how long it took to make a value that was not here."""
        self._tally.add(MICROSECONDS, round(1e6 * seconds))

    def drop(self, ids: NDArray[np.int64], before: int) -> None:
        """Forget generations before this one of samples that nobody will ask for any more."""
        for index in ids.tolist():
            self._memory.drop(index, before=before)

    def nbytes_of(self, value: Any) -> int:
        """How many bytes a value takes here."""
        return self.codec.pack(value).nbytes

    def rewind(self) -> None:
        """Let what is held give way to any generation: the training starts again at an earlier epoch."""
        self._memory.inherit()

    @property
    def stats(self) -> StoreStats:
        """Counts of all workers together."""
        return StoreStats(
            entries=self._memory.entries,
            nbytes=self._memory.nbytes,
            capacity=self._memory.capacity,
            hits=self._tally.total(HITS),
            misses=self._tally.total(MISSES),
            refused=self._tally.total(REFUSED),
            errors=self._tally.total(ERRORS),
            seconds=self._tally.total(MICROSECONDS) / 1e6,
        )

    def _trouble(self, what: str) -> None:
        """Count an error, and warn of the first one in this process."""
        self._tally.add(ERRORS)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{what}; what is lost is computed again.", RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """Let go of the memory; other processes keep their hold on it."""
        self._shared.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def memory_budget(memory: int | str) -> int:
    """How many bytes of values a store may hold in memory, given what the user said."""
    if memory == "auto":
        left = available_memory()
        memory = _MEMORY_IF_UNKNOWN if left is None else left // _SHARE_OF_MEMORY
    if not isinstance(memory, int) or memory < 0:
        raise ArgumentError(f"memory={memory!r}: take a number of bytes, or 'auto'.")
    return -(-memory // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE")
