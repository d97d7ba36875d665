"""The rest of an epoch of a Hugging Face stream that had been dealt to other numbers of ranks and workers.

Such a dataset deals its shards to ranks and workers by their number and how many they are. So the rest of an
epoch is what is left of the parts that those had: each is read by one of the workers that there are now, part
after part, while the dataset is told that it is read by the rank and worker of before. Where the parts do not
divide by the ranks, every rank reads all of them and takes every n-th sample, as `datasets` does with shards.
No sample is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NotRequired, Protocol, TypedDict

from torch.utils.data import Dataset, _utils

from rekindle.core.samples import Sample
from rekindle.errors import StateError
from rekindle.run.hugging_face import load_state, split_again

RESUMED = "resumed_parts"  # the name of such parts in what is saved of an iterator
_END = object()


class Part(TypedDict):
    """What one worker of before has left of its part of the dataset, and which samples of that are meant."""

    rank: int
    world: int  # 0: as the dataset is, 1: of the whole stream
    worker: int
    workers: int  # 0: it was read without workers
    state: dict[str, Any] | None  # of the dataset, as it gave it; None: at its beginning
    skip: int  # so many samples behind that state were used
    first: int  # of those behind these: the first that is meant,
    every: int  # and then every so many
    of: NotRequired[list[Part]]  # instead of a part of the dataset: parts, which that worker read in turn
    least: NotRequired[int]  # derived from another rank's: of the samples used, so many must be there


class _Reader(Protocol):
    """What reads a part: a copy of the dataset, or of parts."""

    def __iter__(self) -> Iterator[Sample]: ...

    def state_dict(self) -> dict[str, Any]: ...


class ResumedParts:
    """Reads parts one after the other: an iterator with a state, as torchdata defines it."""

    def __init__(self, dataset: Any, parts: list[Part], has_state: bool) -> None:
        self._dataset, self._parts, self._has_state = dataset, parts, has_state
        self._copy: _Reader  # of the dataset, which reads the first part
        self._samples: Iterator[Sample] | None = None
        # At once: behind the first of their samples it would be too late.
        self._parts = [self._checked(part) if part.get("least") else part for part in parts]

    def __iter__(self) -> ResumedParts:
        return self

    def __next__(self) -> Sample:
        while self._parts:
            part = self._parts[0]
            with _read_by(part, self._dataset):
                if self._samples is None:
                    self._samples = self._begin(part)
                sample = next(islice(self._samples, part["first"], None), _END)
            if sample is not _END:
                self._parts[0] = self._after_a_sample(part)
                return sample
            self._parts.pop(0)
            self._samples = None
        raise StopIteration

    def state_dict(self) -> dict[str, list[Part]]:
        """What is left of the parts."""
        parts = list(self._parts)
        if parts and self._samples is not None:
            parts[0] = self._behind_the_last_sample(parts[0])
        return {RESUMED: parts}

    def load_state_dict(self, state: dict[str, list[Part]]) -> None:
        """Read these parts instead."""
        self._parts, self._samples = list(state[RESUMED]), None

    def _checked(self, part: Part) -> Part:
        """A part behind the samples that its rank must have used; StateError if it has not got them."""
        with _read_by(part, self._dataset):
            found = sum(1 for _ in islice(self._begin({**part, "skip": 0}), part["skip"]))
            if found < part["least"]:
                whose = f"the part of worker {part['worker']} of rank {part['rank']} has {found} samples"
                raise StateError(uneven_parts(f"{whose}, where at least {part['least']} were used"))
            return {**self._behind_the_last_sample(part), "least": 0}

    def _behind_the_last_sample(self, part: Part) -> Part:
        """The same part from where it is read now, if that can be said otherwise than by samples to skip."""
        if "of" in part:
            return {**part, "of": self._copy.state_dict()[RESUMED], "skip": 0}
        return {**part, "state": self._copy.state_dict(), "skip": 0} if self._has_state else part

    def _begin(self, part: Part) -> Iterator[Sample]:
        self._copy = self._reader_of(part)
        samples: Iterator[Sample] = iter(self._copy)
        for _ in islice(samples, part["skip"]):
            pass
        return samples

    def _reader_of(self, part: Part) -> _Reader:
        if "of" in part:
            return ResumedParts(self._dataset, part["of"], self._has_state)
        # Its `__setstate__` would have a copy share what it knows with the original.
        copy = object.__new__(type(self._dataset))
        copy.__dict__ = dict(vars(self._dataset))
        read = copy if not part["world"] else split_again(copy, part["rank"], part["world"])
        load_state(read, part["state"])
        reader: _Reader = read
        return reader

    def _after_a_sample(self, part: Part) -> Part:
        skip = 0 if self._has_state or "of" in part else part["first"] + 1
        return {**part, "skip": part["skip"] + skip, "first": part["every"] - 1}


def uneven_parts(found: str) -> str:
    """Why one rank's state does not say where the others stood."""
    return (
        "the state of one rank says where the others stood only while every worker of every rank has samples "
        f"left: {found}. Give load_state_dict a list of the states of all ranks, or begin the next epoch "
        "with set_epoch."
    )


def dealt(parts: list[Part], workers: int) -> list[list[Part]]:
    """The parts for each of so many workers: dealt to them in turn."""
    return [parts[worker::workers] for worker in range(workers)]


def dealt_to_ranks(parts: list[Part], rank: int, world: int) -> list[Part]:
    """What a rank reads of the parts: some of them, or of the samples of each: as much as any other."""
    if len(parts) % world == 0:
        return parts[rank::world]
    return [
        {**part, "first": part["first"] + rank * part["every"], "every": part["every"] * world}
        for part in parts
    ]


@contextmanager
def _read_by(part: Part, dataset: Dataset[Sample]) -> Iterator[None]:
    """Let `get_worker_info()` be that of the worker whose part this is."""
    own = _utils.worker._worker_info
    worker, workers, seed = part["worker"], part["workers"], 0 if own is None else own.seed
    info = _utils.worker.WorkerInfo(id=worker, num_workers=workers, seed=seed, dataset=dataset)
    _utils.worker._worker_info = info if workers else None
    try:
        yield
    finally:
        _utils.worker._worker_info = own
