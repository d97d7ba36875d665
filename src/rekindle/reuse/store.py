"""Values that were made before, found again by (sample, generation): the memo of a pure function.

A lookup gives the right value or a miss, whatever happened to the cache in between. Losing an entry costs
time, never data.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.available import available_memory
from rekindle.errors import ArgumentError
from rekindle.reuse import disk_directory, memory_tier, tally
from rekindle.reuse.codecs import Jpeg, find_codec
from rekindle.reuse.disk_tier import DiskTier
from rekindle.reuse.lane import Lane
from rekindle.reuse.memory_tier import MemoryTier
from rekindle.reuse.shared import Field, SharedMemory
from rekindle.reuse.tally import ERRORS, HITS, MICROSECONDS, MISSES, REFUSED, Tally
from rekindle.reuse.values import Record

_NOTHING = object()
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

    Read them, never write to them, then ask `still_there`: if not, what was read is worth nothing. Chosen
    over reading into a buffer because it serves both: a kernel works straight from the cache, and who wants
    a copy makes one.
    """

    __slots__ = ("_index", "_stamp", "_tier", "value")

    def __init__(self, value: Any, tier: MemoryTier | None = None, index: int = 0, stamp: int = 0) -> None:
        self.value, self._tier, self._index, self._stamp = value, tier, index, stamp

    def still_there(self) -> bool:
        """Whether the value has been what it seemed to be up to now."""
        return self._tier is None or self._tier.unchanged(self._index, self._stamp)


class Store:
    """A cache of `size` samples, in shared memory first and then on disk, shared by all workers of a loader.

    `memory` bounds the values' bytes in memory ("auto": a half of what is available, divided among the ranks
    on this machine); the directory takes 33 bytes a sample beyond, and 32 more with a disk. All workers,
    threads and processes, forked or spawned with the store among their arguments, see the same entries.

    With `disk`, a folder, what finds no room in memory goes there, at most `disk_limit` bytes. A later store
    with the same `fingerprint` (a text that names all that the values depend on: data, pipeline, seed, rank)
    and codec starts with what this one left there; one with another fingerprint does not see it, and
    removes it, oldest first, if all caches together take more than `disk_limit`.
    """

    def __init__(
        self,
        size: int,
        *,
        memory: int | str = "auto",
        disk: str | os.PathLike[str] | None = None,
        disk_limit: int | None = None,
        codec: str | Jpeg = "raw",
        fingerprint: str = "",
    ) -> None:
        if size < 0:
            raise ArgumentError(f"Store(size={size!r}): a number of samples is not negative.")
        self.size = size
        self.codec = find_codec(codec)
        if disk_limit is not None and disk_limit < 0:
            raise ArgumentError(f"disk_limit={disk_limit!r}: take a number of bytes, or None.")
        self._owner = os.getpid()
        heap = memory_budget(memory)
        fields: list[Field] = [*memory_tier.fields(size), *tally.fields(), ("unwanted", np.uint8, size)]
        self._lane = None
        if disk is not None:
            fields += disk_directory.fields(size)
            self._lane = Lane(Path(disk), f"{self.codec.name} {size} {fingerprint}")
            if disk_limit is not None:
                self._lane.make_room(disk_limit)
        self._attach(
            SharedMemory(fields, heap), None if self._lane is None else self._lane.folder, disk_limit
        )
        if self._disk is not None:
            self._disk.directory.load()

    def _attach(self, shared: SharedMemory, folder: Path | None, limit: int | None) -> None:
        self._shared, self._folder, self._limit = shared, folder, limit
        self._memory = MemoryTier(shared)
        self._tally = Tally(shared)
        self._warned = self._closed = False
        self._disk = None if folder is None else DiskTier(shared, folder, limit, self._trouble)
        self._unwanted: NDArray[np.uint8] = shared.arrays["unwanted"]

    def __getstate__(self) -> dict[str, Any]:
        names = ("size", "codec", "_shared", "_folder", "_limit", "_owner")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size, self.codec, self._owner = state["size"], state["codec"], state["_owner"]
        self._lane = None
        self._attach(state["_shared"], state["_folder"], state["_limit"])

    def holds(self, ids: ArrayLike, generations: ArrayLike) -> NDArray[np.bool_]:
        """Which of the samples are here in these generations."""
        ids = np.asarray(ids)
        held = self._memory.holds(ids, generations)
        return held if self._disk is None else held | self._disk.directory.holds(ids, generations)

    def get(self, index: int, generation: int) -> Any:
        """The value, in memory of its own, or None for a miss."""
        found = self._memory.find(index, generation)
        if found is None:
            return self._from_disk(index, generation)
        view, stamp = found
        value = self._unpack(view.copy() if self.codec.in_place else view, index, stamp)
        return None if value is _NOTHING else value

    def peek(self, index: int, generation: int) -> Peek | None:
        """The value without a copy, for who only reads it: see `Peek`; None for a miss."""
        found = self._memory.find(index, generation)
        if found is None:
            value = self._from_disk(index, generation)
            return None if value is None else Peek(value)
        view, stamp = found
        value = self._unpack(view, index, stamp)
        return None if value is _NOTHING else Peek(value, self._memory, index, stamp)

    def _unpack(self, memory: NDArray[np.uint8], index: int, stamp: int) -> Any:
        """The value of a record in shared memory, or `_NOTHING` if it was overwritten meanwhile."""
        try:
            value = self.codec.unpack(memory)
        except Exception as error:
            if self._memory.unchanged(index, stamp):
                self._trouble(f"an entry of the cache cannot be read ({error!r})")
            value = _NOTHING
        if value is _NOTHING or not self._memory.unchanged(index, stamp):
            self._tally.add(MISSES)
            return _NOTHING
        self._tally.add(HITS)
        return value

    def _from_disk(self, index: int, generation: int) -> Any:
        record = None if self._disk is None else self._disk.get(index, generation)
        if record is not None:
            try:
                value = self.codec.unpack(record)
            except Exception as error:
                self._trouble(f"an entry of the cache in {self._folder} cannot be read ({error!r})")
            else:
                self._tally.add(HITS)
                return value
        self._tally.add(MISSES)
        return None

    def put(self, index: int, generation: int, value: Any) -> bool:
        """Keep a value; False if it is not kept. UnknownTypeError if it is of a type that cannot be."""
        if self.holds(index, generation):
            return True
        return self._wanted(index, generation) and self._put(index, generation, self.codec.pack(value))

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
        """Whether a value is worth packing; what is older makes room even if it is not."""
        if self._closed:
            return False
        if not self._unwanted[index]:
            return self._disk is None or self._disk.directory.would_take(index, generation)
        self.drop(np.array([index]), before=generation)
        return False

    def _put(self, index: int, generation: int, record: Record) -> bool:
        """Into memory, or else on disk; the tier that does not get it forgets what is older."""
        if self._disk is None:
            kept = self._memory.put(index, generation, record)
        elif self._memory.put(index, generation, record):
            self._disk.directory.drop(index, before=generation)
            kept = True
        else:
            kept = self._memory.would_take(index, generation) and self._disk.put(index, generation, record)
        if not kept:
            self._tally.add(REFUSED)
        return kept

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
            if self._disk is not None:
                self._disk.directory.drop(index, before=before)

    def nbytes_of(self, value: Any) -> int:
        """How many bytes a value takes here."""
        return self.codec.pack(value).nbytes

    def rewind(self) -> None:
        """Let what is held give way to any generation: the training starts again at an earlier epoch."""
        self._memory.inherit()
        if self._disk is not None:
            self._disk.directory.inherit()

    @property
    def stats(self) -> StoreStats:
        """Counts of all workers together."""
        return StoreStats(
            entries=self._memory.entries + (self._disk.directory.entries if self._disk else 0),
            nbytes=self._memory.nbytes + (self._disk.directory.nbytes if self._disk else 0),
            capacity=self._capacity(),
            hits=self._tally.total(HITS),
            misses=self._tally.total(MISSES),
            refused=self._tally.total(REFUSED),
            errors=self._tally.total(ERRORS),
            seconds=self._tally.total(MICROSECONDS) / 1e6,
        )

    def _capacity(self) -> int | None:
        if self._disk is None:
            return self._memory.capacity
        return None if self._limit is None else self._memory.capacity + self._limit

    def _trouble(self, what: str) -> None:
        """Count an error, and warn of the first one in this process."""
        self._tally.add(ERRORS)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{what}; what is lost is computed again.", RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """Let go of memory and files; other processes keep their hold on them."""
        if self._closed:
            return
        self._closed = True
        if self._disk is not None:
            self._disk.close(snapshot=os.getpid() == self._owner)
        if self._lane is not None:
            self._lane.close()
        self._shared.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def memory_budget(memory: int | str) -> int:
    """How many bytes of values a store may hold in memory, given what the user said."""
    if memory == "auto":
        left = available_memory()
        memory = (_MEMORY_IF_UNKNOWN if left is None else left // _SHARE_OF_MEMORY) // _ranks_here()
    if not isinstance(memory, int) or memory < 0:
        raise ArgumentError(f"memory={memory!r}: take a number of bytes, or 'auto'.")
    return -(-memory // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE")


def _ranks_here() -> int:
    """How many processes of this training share the memory of this machine, as torchrun tells each."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isdecimal() else 1
