"""Cached partial results for (sample, generation): the memo of a pure function.

A lookup returns the right value or a miss, whatever happened to the cache. Losing an entry costs time, never
data.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.core.directory import PrivateDirectory
from rekindle.core.interrupts import is_interrupt
from rekindle.core.memfd import MemoryFile
from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.reuse.cache import stats
from rekindle.reuse.cache.admission_rule import AdmissionRule
from rekindle.reuse.cache.cache_directory import CacheDirectory
from rekindle.reuse.cache.claims import Claims
from rekindle.reuse.cache.codecs import Codec, Jpeg, find_codec
from rekindle.reuse.cache.disk_tier import DiskTier
from rekindle.reuse.cache.host_memory import HostCache, write_header
from rekindle.reuse.cache.kept_generations import KeptGenerations
from rekindle.reuse.cache.members import Members
from rekindle.reuse.cache.memory_budget import Memory, memory_budget
from rekindle.reuse.cache.memory_tier import MemoryTier
from rekindle.reuse.cache.peek import Peek
from rekindle.reuse.cache.record import Record
from rekindle.reuse.cache.serialization import Value
from rekindle.reuse.cache.shared_arrays import SharedMemory
from rekindle.reuse.cache.stats import (
    ERRORS,
    FROM_OTHERS,
    HITS,
    MICROSECONDS,
    MISSES,
    REFUSED,
    CacheCounters,
    StoreStats,
    total,
)
from rekindle.reuse.cache.store_memory import store_memory

_ONLY_MEMBER = 1  # of a cache that no other loader finds


class _State(NamedTuple):
    """What another process needs to attach to a store."""

    size: int
    codec: Codec
    kept: KeptGenerations
    memory: SharedMemory
    counters: SharedMemory
    folder: PrivateDirectory | None
    disk_limit: int | None
    owner: int
    member: int  # a number for all that this loader's workers write


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
    ranks on this machine, unless they share it); the index takes 64 bytes a cached sample in addition (up to
    a page, where few of the samples near it are cached), and as many again with a disk. All workers, threads
    and processes, forked or spawned with the store among their arguments, see the same entries.

    With `disk`, a folder, values that do not fit in memory go there, at most `disk_limit` bytes. A later
    store with the same codec and `fingerprint` (a text that names all that the values depend on: data,
    pipeline, seed) starts with what this one left there. One with another fingerprint does not see it,
    and deletes it, oldest first, if all caches together take more than `disk_limit`. What lies in the folder
    is private to the user; users who share a folder do not share entries.

    A store with a `name` can be found by other processes of the user (`host_memory.find_caches`), with what
    `about` says, and be joined: `join=` what was found, with the other arguments as they were given there.
    Who looks for one, and then makes or joins it, holds `host_lock(name)` meanwhile. ValueError if what was
    found is no such cache. With `kept`, several generations of a sample are held, as long as memory allows.
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
        kept: KeptGenerations | None = None,
        name: str = "",
        about: dict[str, str] | None = None,
        join: tuple[MemoryFile, HostCache] | None = None,
    ) -> None:
        self.arguments = StoreArguments(size, memory, disk, disk_limit, codec, fingerprint)
        self.elsewhere: dict[str, StoreStats] = {}  # by the name of each store like this on another machine
        if size < 0:
            raise ArgumentError(f"Store(size={size!r}): give a number of samples from 0 on.")
        found, kept = find_codec(codec), kept or KeptGenerations()
        if disk_limit is not None and disk_limit < 0:
            raise ArgumentError(f"disk_limit={disk_limit!r}: give a number of bytes, or None.")
        if join is not None and join[1].size != size:
            raise ValueError(f"a cache of {join[1].size} samples was found, not of {size}")
        heap = memory_budget(memory, whole_host=bool(name)) if join is None else join[1].heap
        shared = store_memory(size, kept, heap, name, disk is not None, None if join is None else join[0])
        self._directory = None
        if disk is not None:
            identity = f"{found.name} {size} {fingerprint}"
            joined = "" if join is None else join[1].directory
            self._directory = CacheDirectory(Path(disk), identity, joined)
            if disk_limit is not None and join is None:
                self._directory.evict_others(disk_limit)
        folder = None if self._directory is None else self._directory.directory
        member = Members(shared).join() if name else _ONLY_MEMBER
        counters = stats.counter_memory()
        state = _State(size, found, kept, shared, counters, folder, disk_limit, os.getpid(), member)
        self._attach(state)
        if join is None:
            if self._disk is not None:
                self._disk.index.load()
            if name:  # Nobody finds the others.
                directory = "" if folder is None else folder.path.name
                write_header(shared, HostCache(name, size, heap, directory, about or {}))

    def _attach(self, state: _State) -> None:
        self._state, self._shared = state, state.memory
        self.size, self.codec, self._kept = state.size, state.codec, state.kept
        self._memory, self._members = MemoryTier(state.memory), Members(state.memory)
        self._claims = Claims(state.memory)
        self._counters = CacheCounters(state.counters)
        self._warned = self._closed = False
        self._disk: DiskTier | None = None
        if state.folder is not None:
            self._disk = DiskTier(
                state.memory, state.folder, state.disk_limit, self._report_error, state.kept
            )
        self._admission = AdmissionRule(state.memory)

    def __getstate__(self) -> _State:
        return self._state

    def __setstate__(self, state: _State) -> None:
        self.elsewhere = {}
        self._directory = None
        self._attach(state)

    def holds(self, ids: ArrayLike, generations: ArrayLike) -> NDArray[np.bool_]:
        """Which of the samples are cached in these generations."""
        ids, generations = np.asarray(ids, dtype=np.int64), np.asarray(generations, dtype=np.int64)
        rows = self._kept.row(ids, generations)
        held = self._memory.holds(rows, generations)
        return held if self._disk is None else held | self._disk.index.holds(rows, generations)

    def _has(self, index: int, generation: int) -> bool:
        row = self._kept.row(index, generation)
        on_disk = self._disk is not None and self._disk.index.has(row, generation)
        return on_disk or self._memory.has(row, generation)

    def get(self, index: int, generation: int) -> Value:
        """A copy of the value, or None for a miss."""
        peeked = self.peek(index, generation, copied=self.codec.in_place)
        return None if peeked is None else peeked.value

    def peek(self, index: int, generation: int, *, copied: bool = False) -> Peek | None:
        """The value without a copy, to be read only: see `Peek`; None for a miss."""
        row = self._kept.row(index, generation)
        found = self._memory.find(row, generation)
        if found is None:
            value = self._from_disk(row, generation)
            return None if value is None else Peek(value)
        view, stamp = found
        return self._unpack(view.copy() if copied else view, row, stamp)

    def _unpack(self, memory: NDArray[np.uint8], row: int, stamp: int) -> Peek | None:
        """The value of a record in shared memory; None if it was overwritten meanwhile."""
        peeked = None
        try:
            peeked = Peek(self.codec.unpack(memory), self._memory, row, stamp)
        except Exception as error:
            if is_interrupt(error):
                raise
            if self._memory.unchanged(row, stamp):
                self._report_error(f"an entry of the cache cannot be read ({error!r})")
        if peeked is None or not peeked.still_there():
            self._counters.add(MISSES)
            return None
        self._count_hit(self._memory.writer(row))
        return peeked

    def _count_hit(self, writer: int) -> None:
        self._counters.add(HITS)
        if writer not in (0, self._state.member):
            self._counters.add(FROM_OTHERS)

    def _from_disk(self, row: int, generation: int) -> Value:
        record = None if self._disk is None else self._disk.get(row, generation)
        if self._disk is not None and record is not None:
            try:
                value = self.codec.unpack(record)
            except Exception as error:
                if is_interrupt(error):
                    raise
                folder = self._state.folder and self._state.folder.path
                self._report_error(f"an entry of the cache in {folder} cannot be read ({error!r})")
            else:
                self._count_hit(self._disk.index.entry_writer(row))
                return value
        self._counters.add(MISSES)
        return None

    def wait_or_claim(self, index: int, generation: int) -> Value:
        """A value that was missing, if somebody who shares the cache is about to compute it.

        None if it is for the caller to compute it, and then to call `release`.
        """
        if self._members.joined < 2 or not self._admission.admits(index):
            return None
        row = self._kept.row(index, generation)

        def find() -> Value:
            return self.get(index, generation) if self._has(index, generation) else None

        value: Value = self._claims.wait_or_claim(row, generation, find)
        if value is not None:
            self._counters.add(MISSES, -1)  # It was counted when it was missing.
        return value

    def order_of(self, ids: Sequence[int], generations: Sequence[int]) -> Iterable[int]:
        """The rows of a request, in the order in which to load them: what others compute now comes last."""
        if self._members.joined < 2:
            return range(len(ids))
        parts = [(self._kept.row(index, one), one) for index, one in zip(ids, generations, strict=True)]
        return self._claims.order_of(parts, self._state.member)

    def release(self, index: int, generation: int) -> None:
        """Let others compute a value that was claimed: it is in the cache, or could not be computed."""
        if self._members.joined > 1:
            self._claims.release(self._kept.row(index, generation))

    def put(self, index: int, generation: int, value: Sample) -> bool:
        """Cache a value; False if it is refused. UnknownTypeError if its type cannot be cached."""
        if self._has(index, generation):
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
            row = self._kept.row(index, generation)
            return self._disk is None or self._disk.index.would_take(row, generation)
        self.drop(np.array([index]), before=generation)
        return False

    def _put(self, index: int, generation: int, record: Record) -> bool:
        """Into memory, or else on disk; the other tier drops what is older."""
        row, member = self._kept.row(index, generation), self._state.member
        if self._kept.ways > 1:
            self._drop_others(index, generation, needed=False)
        if self._disk is None:
            kept = self._memory.put(row, generation, record, member)
            if not kept and self._kept.ways > 1 and self._memory.would_take(row, generation):
                self._drop_others(index, generation, needed=True)
                kept = self._memory.put(row, generation, record, member)
        elif self._memory.put(row, generation, record, member):
            self._disk.index.drop(row, before=generation)
            kept = True
        else:
            would_take = self._memory.would_take(row, generation)
            kept = would_take and self._disk.put(row, generation, record, member)
        if not kept:
            self._counters.add(REFUSED)
        return kept

    def _drop_others(self, index: int, generation: int, *, needed: bool) -> None:
        """Drop older generations of a sample: those that nobody uses any more, or also those `needed`."""
        epoch = self._members.oldest_epoch
        for row in self._kept.rows(index):
            older = self._memory.generation(row)
            if 0 <= older < generation and (needed or self._kept.is_over(older, epoch)):
                self._memory.drop(row, before=generation)
            if self._disk is not None:
                self._disk.index.drop(row, before=epoch - self._kept.span + 1)

    def note_epoch(self, epoch: int) -> None:
        """Tell those who share the cache which epoch this loader is in: older generations can go."""
        if self._kept.ways > 1 and self._members.note_epoch(self._state.member, epoch):
            self._memory.drop_superseded(self._kept, self._members.oldest_epoch)

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

    def drop(self, ids: NDArray[np.int64], before: int | NDArray[np.integer]) -> None:
        """Drop generations before this one, or that of each, of samples that are not needed any more."""
        for index, first in zip(ids.tolist(), np.broadcast_to(before, ids.shape).tolist(), strict=True):
            for row in self._kept.rows(index):
                self._memory.drop(row, before=first)
                if self._disk is not None:
                    self._disk.index.drop(row, before=first)

    def nbytes_of(self, value: Sample) -> int:
        """How many bytes a value takes here."""
        return self.codec.pack(value).nbytes

    @property
    def share_admitted(self) -> float:
        """Which part of the samples is worth caching, as was set."""
        return self._admission.share

    @property
    def stats(self) -> StoreStats:
        """What the store holds, and how all workers together used it; with those elsewhere, of all."""
        here = self._counters.stats(
            entries=self._memory.entries + (self._disk.index.entries if self._disk else 0),
            nbytes=self._memory.nbytes + (self._disk.index.nbytes if self._disk else 0),
            capacity=self.capacity,
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
        is_owner = os.getpid() == self._state.owner
        if self._disk is not None:
            self._disk.close(snapshot=is_owner)
        if self._directory is not None:
            self._directory.close()
        if is_owner:
            self._members.leave(self._state.member)
        self._state.counters.close()
        self._shared.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
