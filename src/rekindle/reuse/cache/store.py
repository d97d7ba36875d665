"""Cached partial results for (sample, generation): the memo of a pure function.

A lookup returns the right value or a miss, whatever happened to the cache. Losing an entry costs time, never
data.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.core.directory import PrivateDirectory
from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.reuse.cache import admission_rule, disk_index, memory_tier, stats
from rekindle.reuse.cache.admission_rule import AdmissionRule
from rekindle.reuse.cache.cache_directory import CacheDirectory
from rekindle.reuse.cache.codecs import Codec, Jpeg, find_codec
from rekindle.reuse.cache.disk_tier import DiskTier
from rekindle.reuse.cache.memory_budget import Memory, memory_budget
from rekindle.reuse.cache.memory_tier import MemoryTier
from rekindle.reuse.cache.record import Record
from rekindle.reuse.cache.serialization import Value
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory
from rekindle.reuse.cache.stats import (
    ERRORS,
    HITS,
    MICROSECONDS,
    MISSES,
    REFUSED,
    CacheCounters,
    StoreStats,
    total,
)


class Peek:
    """An entry's value in place: arrays are views that are valid until it is overwritten.

    Read them, never write to them, then ask `still_there`: if it says no, discard what was read. This serves
    kernels that work straight from the cache as well as callers who copy.
    """

    __slots__ = ("_index", "_stamp", "_tier", "value")

    def __init__(self, value: Value, tier: MemoryTier | None = None, index: int = 0, stamp: int = 0) -> None:
        self.value, self._tier, self._index, self._stamp = value, tier, index, stamp

    def still_there(self) -> bool:
        """Whether all that was read of the value up to now is valid."""
        return self._tier is None or self._tier.unchanged(self._index, self._stamp)


class _State(NamedTuple):
    """What another process needs to attach to a store."""

    size: int
    codec: Codec
    memory: SharedMemory
    folder: PrivateDirectory | None
    disk_limit: int | None
    owner: int


class StoreArguments(NamedTuple):
    """What a store was made with, for others like it on other machines."""

    size: int
    memory: Memory
    disk: str | os.PathLike[str] | None
    disk_limit: int | None
    codec: str | Jpeg
    fingerprint: str


class Store:
    """A cache of `size` samples, in shared memory first and then on disk, shared by all workers of a loader.

    `memory` bounds the bytes of the values in memory ("auto": a half of what is available, divided among the
    ranks on this machine); the index takes 64 bytes a cached sample in addition (up to a page, where few of
    the samples near it are cached), and as many again with a disk. All workers, threads and processes, forked
    or spawned with the store among their arguments, see the same entries.

    With `disk`, a folder, values that do not fit in memory go there, at most `disk_limit` bytes. A later
    store with the same codec and `fingerprint` (a text that names all that the values depend on: data,
    pipeline, seed, rank) starts with what this one left there. One with another fingerprint does not see it,
    and deletes it, oldest first, if all caches together take more than `disk_limit`. What lies in the folder
    is private to the user; users who share a folder do not share entries.
    """

    def __init__(
        self,
        size: int,
        *,
        memory: Memory = "auto",
        disk: str | os.PathLike[str] | None = None,
        disk_limit: int | None = None,
        codec: str | Jpeg = "raw",
        fingerprint: str = "",
    ) -> None:
        self.arguments = StoreArguments(size, memory, disk, disk_limit, codec, fingerprint)
        self.elsewhere: dict[str, StoreStats] = {}  # by the name of each store like this on another machine
        if size < 0:
            raise ArgumentError(f"Store(size={size!r}): give a number of samples from 0 on.")
        found = find_codec(codec)
        if disk_limit is not None and disk_limit < 0:
            raise ArgumentError(f"disk_limit={disk_limit!r}: give a number of bytes, or None.")
        heap = memory_budget(memory)
        fields: list[Field] = [*memory_tier.fields(), *stats.fields(), *admission_rule.fields(size)]
        tables = memory_tier.tables(size)
        self._directory = None
        if disk is not None:
            fields += disk_index.fields()
            tables |= disk_index.tables(size)
            self._directory = CacheDirectory(Path(disk), f"{found.name} {size} {fingerprint}")
            if disk_limit is not None:
                self._directory.evict_others(disk_limit)
        folder = None if self._directory is None else self._directory.directory
        self._attach(_State(size, found, SharedMemory(fields, tables, heap), folder, disk_limit, os.getpid()))
        if self._disk is not None:
            self._disk.index.load()

    def _attach(self, state: _State) -> None:
        self._state, self._shared = state, state.memory
        self.size, self.codec = state.size, state.codec
        self._memory = MemoryTier(state.memory)
        self._counters = CacheCounters(state.memory)
        self._warned = self._closed = False
        self._disk: DiskTier | None = None
        if state.folder is not None:
            self._disk = DiskTier(state.memory, state.folder, state.disk_limit, self._report_error)
        self._admission = AdmissionRule(state.memory)

    def __getstate__(self) -> _State:
        return self._state

    def __setstate__(self, state: _State) -> None:
        self.elsewhere = {}
        self._directory = None
        self._attach(state)

    def holds(self, ids: ArrayLike, generations: ArrayLike) -> NDArray[np.bool_]:
        """Which of the samples are cached in these generations."""
        ids = np.asarray(ids)
        held = self._memory.holds(ids, generations)
        return held if self._disk is None else held | self._disk.index.holds(ids, generations)

    def get(self, index: int, generation: int) -> Value:
        """A copy of the value, or None for a miss."""
        found = self._memory.find(index, generation)
        if found is None:
            return self._from_disk(index, generation)
        view, stamp = found
        peeked = self._unpack(view.copy() if self.codec.in_place else view, index, stamp)
        return None if peeked is None else peeked.value

    def peek(self, index: int, generation: int) -> Peek | None:
        """The value without a copy, to be read only: see `Peek`; None for a miss."""
        found = self._memory.find(index, generation)
        if found is None:
            value = self._from_disk(index, generation)
            return None if value is None else Peek(value)
        view, stamp = found
        return self._unpack(view, index, stamp)

    def _unpack(self, memory: NDArray[np.uint8], index: int, stamp: int) -> Peek | None:
        """The value of a record in shared memory; None if it was overwritten meanwhile."""
        peeked = None
        try:
            peeked = Peek(self.codec.unpack(memory), self._memory, index, stamp)
        except Exception as error:
            if self._memory.unchanged(index, stamp):
                self._report_error(f"an entry of the cache cannot be read ({error!r})")
        if peeked is None or not peeked.still_there():
            self._counters.add(MISSES)
            return None
        self._counters.add(HITS)
        return peeked

    def _from_disk(self, index: int, generation: int) -> Value:
        record = None if self._disk is None else self._disk.get(index, generation)
        if record is not None:
            try:
                value = self.codec.unpack(record)
            except Exception as error:
                folder = self._state.folder and self._state.folder.path
                self._report_error(f"an entry of the cache in {folder} cannot be read ({error!r})")
            else:
                self._counters.add(HITS)
                return value
        self._counters.add(MISSES)
        return None

    def put(self, index: int, generation: int, value: Sample) -> bool:
        """Cache a value; False if it is refused. UnknownTypeError if its type cannot be cached."""
        if self.holds(index, generation):
            return True
        return self._admits(index, generation) and self._put(index, generation, self.codec.pack(value))

    def keep(self, index: int, generation: int, value: Sample) -> Sample:
        """Cache a value and return what a later `get` will: itself, or what a lossy codec makes of it."""
        if not self.codec.lossy:
            self.put(index, generation, value)
            return value
        record = self.codec.pack(value)
        if self._admits(index, generation):
            self._put(index, generation, record)
        return self.codec.unpack(record.joined())

    def _admits(self, index: int, generation: int) -> bool:
        """Whether a value is worth packing. If not, an older generation is dropped all the same."""
        if self._closed:
            return False
        if self._admission.admits(index):
            return self._disk is None or self._disk.index.would_take(index, generation)
        self.drop(np.array([index]), before=generation)
        return False

    def _put(self, index: int, generation: int, record: Record) -> bool:
        """Into memory, or else on disk; the other tier drops what is older."""
        if self._disk is None:
            kept = self._memory.put(index, generation, record)
        elif self._memory.put(index, generation, record):
            self._disk.index.drop(index, before=generation)
            kept = True
        else:
            kept = self._memory.would_take(index, generation) and self._disk.put(index, generation, record)
        if not kept:
            self._counters.add(REFUSED)
        return kept

    def admit(self, mask: ArrayLike | None) -> None:
        """Set which samples are worth caching, for all workers from now on; None for all."""
        wanted = None if mask is None else np.asarray(mask, dtype=bool)
        if wanted is not None and wanted.shape != (self.size,):
            raise ArgumentError(
                f"admit() expected {self.size} flags, one a sample, got an array of shape {wanted.shape}."
            )
        self._admission.set(wanted)

    def admit_share(self, share: float, seed: int) -> None:
        """Cache a share of the samples, drawn by the seed: for datasets too large for flags."""
        self._admission.set_share(share, seed)

    def note_seconds(self, seconds: float) -> None:
        """Report how long it took to compute a value that was missing."""
        self._counters.add(MICROSECONDS, round(1e6 * seconds))

    def drop(self, ids: NDArray[np.int64], before: int) -> None:
        """Drop generations before this one of samples that are not needed any more."""
        for index in ids.tolist():
            self._memory.drop(index, before=before)
            if self._disk is not None:
                self._disk.index.drop(index, before=before)

    def nbytes_of(self, value: Sample) -> int:
        """How many bytes a value takes here."""
        return self.codec.pack(value).nbytes

    @property
    def stats(self) -> StoreStats:
        """What the store holds, and how all workers together used it; with those elsewhere, of all."""
        count = self._counters.total
        here = StoreStats(
            entries=self._memory.entries + (self._disk.index.entries if self._disk else 0),
            nbytes=self._memory.nbytes + (self._disk.index.nbytes if self._disk else 0),
            capacity=self.capacity,
            hits=count(HITS),
            misses=count(MISSES),
            refused=count(REFUSED),
            errors=count(ERRORS),
            seconds=count(MICROSECONDS) / 1e6,
        )
        # Of those that are elsewhere, this one is only the description.
        return total(self.elsewhere.values()) if self.elsewhere else here

    @property
    def capacity(self) -> int | None:
        """How many bytes may be kept; None if nothing limits it."""
        if self._disk is None:
            return self._memory.capacity
        limit = self._state.disk_limit
        return None if limit is None else self._memory.capacity + limit

    def _report_error(self, what: str) -> None:
        """Count an error, and warn of the first one in this process."""
        self._counters.add(ERRORS)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{what}; what is lost is computed again.", RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """Release memory and files; other processes keep theirs."""
        if self._closed:
            return
        self._closed = True
        if self._disk is not None:
            self._disk.close(snapshot=os.getpid() == self._state.owner)
        if self._directory is not None:
            self._directory.close()
        self._shared.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
