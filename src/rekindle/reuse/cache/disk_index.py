"""Which record of which segment holds a sample: a table in shared memory, with stamps as in the memory tier.

All counts (live records of a segment, bytes) follow from the entries, and are recomputed from them when a
process died while it changed them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.core.directory import PRIVATE, Directory
from rekindle.core.process_state import is_running
from rekindle.reuse.cache import segments
from rekindle.reuse.cache.entry_table import TableSpec
from rekindle.reuse.cache.kept_generations import KeptGenerations
from rekindle.reuse.cache.segments import SegmentName
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory
from rekindle.reuse.cache.stamps import (
    BUSY,
    GENERATION,
    INHERITED,
    are_held,
    fence,
    generation_of,
    is_held,
    may_replace,
    next_stamp,
    removed,
)

_MAX_GENERATION = (1 << 31) - 2
_SLOTS = 1 << 16  # for segments: as many can exist at a time

# Indices into `disk_control`. DIRTY is set while a writer changes anything: left by one that was killed.
_DIRTY, _NEXT_NUMBER, _RUN, _TOTAL, _ENTRIES, _BYTES, _DEAD, _DEAD_AT_CLEANUP = range(8)


class Location(NamedTuple):
    """Where a record is."""

    segment: int
    offset: int
    length: int  # of the value


_NOWHERE = Location(0, 0, 0)


_TABLE = "disk_entries"
_COLUMNS = ("disk_stamp", "disk_segment", "disk_offset", "disk_length", "disk_writer")


FIELDS: tuple[Field, ...] = (
    ("disk_control", np.int64, 64),
    # Of the segment in a slot (its number modulo the slots): live records, bytes, the process that appends to
    # it, and the run that wrote it plus 1 (0: the slot is empty).
    ("segment_live", np.int64, _SLOTS),
    ("segment_bytes", np.int64, _SLOTS),
    ("segment_writer", np.int64, _SLOTS),
    ("segment_run", np.int64, _SLOTS),
)


def tables(size: int) -> dict[str, TableSpec]:
    """The shared table of the index, for `size` samples."""
    return {_TABLE: TableSpec(_COLUMNS, size)}


class DiskIndex:
    """The entries and segments of a cache directory. What changes anything takes the lock."""

    def __init__(self, memory: SharedMemory, folder: Directory, kept: KeptGenerations) -> None:
        self._kept = kept
        self._lock, self._folder, self._memory = memory.lock, folder, memory
        self._table = memory.tables[_TABLE]
        self._stamps, self._segments, self._offsets, self._lengths = (
            memory.arrays[f"disk_{name}"] for name in ("stamp", "segment", "offset", "length")
        )
        self._control = memory.arrays["disk_control"].data
        self._stamp, self._segment, self._offset, self._length = (
            array.data for array in (self._stamps, self._segments, self._offsets, self._lengths)
        )
        self._entry_writer = memory.arrays["disk_writer"].data
        self._live, self._bytes, self._writer, self._run = (
            memory.arrays[f"segment_{name}"] for name in ("live", "bytes", "writer", "run")
        )

    def load(self) -> None:
        """Enter what earlier runs left; any generation may replace it."""
        samples = len(self._stamps) // self._kept.ways
        rows, names = segments.read_index(self._folder, samples, _MAX_GENERATION)
        rows[:, 0] = self._kept.row(rows[:, 0], rows[:, 1])
        self._control[_NEXT_NUMBER] = max(names, default=-1) + 1
        self._control[_RUN] = max((name.run for name in names.values()), default=-1) + 1
        for number, name in names.items():
            state = self._folder.stat(str(name))
            if state is not None:
                self._bytes[number % _SLOTS], self._run[number % _SLOTS] = state.st_size, name.run + 1
        rows = rows[[self._memory.reserve_row(_TABLE, index) for index in rows[:, 0].tolist()]]
        index = rows[:, 0]
        self._segments[index], self._offsets[index], self._lengths[index] = rows[:, 2:].T
        self._stamps[index] = (rows[:, 1] + 1 << GENERATION) | INHERITED
        with self._lock:
            self._recount()
            self._delete_dead()

    @property
    def entries(self) -> int:
        return int(self._control[_ENTRIES])

    @property
    def nbytes(self) -> int:
        return int(self._control[_BYTES])

    @property
    def total(self) -> int:
        """Bytes of all segments, dead records included."""
        return int(self._control[_TOTAL])

    def holds(self, ids: NDArray[np.int64], generations: ArrayLike) -> NDArray[np.bool_]:
        return are_held(self._table, "disk_stamp", ids, generations)

    def has(self, index: int, generation: int) -> bool:
        """`holds` of one entry."""
        return self._table.has(index) and is_held(self._stamp[index], generation)

    def stamp(self, index: int) -> int:
        return int(self._stamp[index]) if self._table.has(index) else 0

    def find(self, index: int, generation: int) -> tuple[Location, int] | None:
        """Where an entry is, and its stamp; None for a miss."""
        if not self._table.has(index):
            return None
        stamp = self._stamp[index]
        if not is_held(stamp, generation):
            return None
        fence()
        location = Location(self._segment[index], self._offset[index], self._length[index])
        fence()
        return (location, stamp) if self._stamp[index] == stamp else None

    def file_name(self, number: int) -> str:
        """The file of a segment."""
        return str(SegmentName(int(self._run[number % _SLOTS]) - 1, number))

    def exists(self, number: int) -> bool:
        return bool(self._run[number % _SLOTS])

    def would_take(self, index: int, generation: int) -> bool:
        """Whether nothing newer is here."""
        return not self._table.has(index) or may_replace(self._stamp[index], generation)

    def entry_writer(self, index: int) -> int:
        """Who wrote an entry, as `add` was told; 0 if an earlier run has."""
        return int(self._entry_writer[index]) if self._table.has(index) else 0

    def add(self, index: int, generation: int, location: Location | None, writer: int = 0) -> bool:
        """Enter a record, unless there is a newer one. Without a location, only what is older is removed."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            if not self._table.has(index) and location is None:
                return False
            if not self._memory.reserve_row(_TABLE, index):
                return False
            stamp = self._stamp[index]
            if is_held(stamp, generation) or not may_replace(stamp, generation):
                return is_held(stamp, generation)
            self._publish(index, -1 if location is None else generation, location or _NOWHERE)
            self._entry_writer[index] = writer
        return location is not None

    def move(self, index: int, stamp: int, location: Location | None) -> None:
        """Change where a record is, if it still has this stamp; without a location, remove it."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            if stamp and self.stamp(index) == stamp:
                self._publish(index, -1 if location is None else generation_of(stamp), location or _NOWHERE)
                self._stamp[index] |= stamp & INHERITED

    def drop(self, index: int, before: int) -> None:
        """Remove an entry of a generation before `before`."""
        if self.stamp(index) >> GENERATION:
            with self._lock:
                if self._control[_DIRTY]:
                    self._recount()
                if may_replace(self._stamp[index], before):
                    self._publish(index, -1, _NOWHERE)

    def _publish(self, index: int, generation: int, location: Location) -> None:
        control, stamp = self._control, self._stamp[index]
        control[_DIRTY] = 1
        self._stamp[index] = stamp | BUSY
        fence()
        if stamp >> GENERATION and not stamp & BUSY:
            self._live[self._segment[index] % _SLOTS] -= 1
            control[_ENTRIES] -= 1
            control[_BYTES] -= self._length[index]
            control[_DEAD] += segments.padded(self._length[index])
        self._segment[index], self._offset[index], self._length[index] = location
        if generation >= 0:
            slot, end = location.segment % _SLOTS, location.offset + segments.padded(location.length)
            self._live[slot] += 1
            control[_TOTAL] += max(0, end - int(self._bytes[slot]))
            self._bytes[slot] = max(int(self._bytes[slot]), end)
            control[_ENTRIES] += 1
            control[_BYTES] += location.length
        fence()
        self._stamp[index] = next_stamp(stamp, generation)
        control[_DIRTY] = 0

    def new_segment(self, finished: int) -> tuple[int, int]:
        """Number and descriptor of a new segment for this process, whose last one (or -1) is full."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            if finished >= 0:
                self._writer[finished % _SLOTS] = 0
            number = int(self._control[_NEXT_NUMBER])
            slot = number % _SLOTS
            if self._run[slot]:
                raise OSError(f"there are {_SLOTS} segments already")
            name = str(SegmentName(int(self._control[_RUN]), number))
            self._control[_NEXT_NUMBER] = number + 1
            fd = self._folder.create(name, PRIVATE)
            self._live[slot], self._bytes[slot], self._writer[slot] = 0, 0, os.getpid()
            self._run[slot] = self._control[_RUN] + 1
            self._delete_dead()
        return number, fd

    def release(self, number: int) -> None:
        """Give up a segment that this process appended to, or moved records out of."""
        with self._lock:
            self._writer[number % _SLOTS] = 0

    def delete_dead(self) -> None:
        """Delete the segments that have no live record and that no process appends to."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            self._delete_dead()

    def _delete_dead(self) -> None:
        for slot in np.flatnonzero((self._run > 0) & (self._live <= 0)).tolist():
            if self._is_in_use(slot):
                continue
            with suppress(OSError):
                self._folder.remove(self.file_name(self._number(slot)))
            self._control[_TOTAL] -= int(self._bytes[slot])
            self._run[slot] = self._bytes[slot] = self._live[slot] = self._writer[slot] = 0

    def is_cleanup_due(self, nbytes: int) -> bool:
        """Whether so many bytes of records have died since this was last true: is there space to reclaim?"""
        if self._control[_DEAD] - self._control[_DEAD_AT_CLEANUP] < nbytes:
            return False
        self._control[_DEAD_AT_CLEANUP] = self._control[_DEAD]
        return True

    def claim_mostly_dead(self) -> tuple[int, list[int]] | None:
        """The segment with the smallest live share, if that is less than a half, and the samples in it.

        It belongs to this process until `release`.
        """
        with self._lock:
            held = self._held()
            slots = self._segments[held] % _SLOTS
            sizes = segments.padded(self._lengths[held])
            live = np.bincount(slots, weights=sizes, minlength=_SLOTS)
            some = np.flatnonzero((self._bytes > 0) & (live < self._bytes / 2))
            for slot in some[np.argsort(live[some] / self._bytes[some])].tolist():
                if not self._is_in_use(slot):
                    self._writer[slot] = os.getpid()
                    return self._number(slot), held[slots == slot].tolist()
        return None

    def _is_in_use(self, slot: int) -> bool:
        writer = int(self._writer[slot])
        return writer != 0 and is_running(writer)

    def _number(self, slot: int) -> int:
        """The number of the segment in a slot: the last one given out that falls on it."""
        newest = int(self._control[_NEXT_NUMBER]) - 1
        return newest - (newest - slot) % _SLOTS

    def _held(self) -> NDArray[np.int64]:
        """The samples that have an entry, perhaps one that is being written."""
        rows = self._table.used()
        held: NDArray[np.int64] = rows[self._stamps[rows] >> GENERATION != 0]
        return held

    def _recount(self) -> None:
        """Recompute all counts from the entries, without those that killed processes left half changed."""
        rows = self._table.used()
        busy = rows[self._stamps[rows] & BUSY != 0]
        self._stamps[busy] = removed(self._stamps[busy])
        held = self._held()
        self._live[:] = np.bincount(self._segments[held] % _SLOTS, minlength=_SLOTS)
        self._control[_ENTRIES] = len(held)
        self._control[_BYTES] = int(self._lengths[held].sum())
        self._control[_TOTAL] = int(self._bytes.sum())
        self._control[_DIRTY] = 0

    def save(self) -> None:
        """Write the snapshot that lets the next run open quickly. OSError."""
        with self._lock:
            index = self._held()
            index = index[self._stamps[index] & BUSY == 0]
            generations, samples = (self._stamps[index] >> GENERATION) - 1, self._kept.sample(index)
            locations = [array[index] for array in (self._segments, self._offsets, self._lengths)]
            slots = np.flatnonzero(self._run).tolist()
            ends = {self._number(slot): int(self._bytes[slot]) for slot in slots}
        segments.write_snapshot(self._folder, np.stack([samples, generations, *locations], axis=1), ends)
