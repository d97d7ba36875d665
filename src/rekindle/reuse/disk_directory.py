"""Which record of which segment holds a sample: arrays in shared memory, with the memory tier's stamps.

All counts (live records of a segment, bytes) follow from the entries, and are made from them anew when a
process died while it changed them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.reuse import segments
from rekindle.reuse.memory_tier import BUSY, INHERITED, fence, holds, is_stamped, may_replace, next_stamp
from rekindle.reuse.segments import SegmentName
from rekindle.reuse.shared import Field, SharedMemory

_GENERATION = 32
_MOST_GENERATIONS = (1 << 31) - 2
_SEGMENTS = 1 << 16  # that can exist at a time
_NOWHERE = (0, 0, 0)

# Numbers kept in `disk_control`.
_DIRTY, _NEXT, _RUN, _TOTAL, _ENTRIES, _BYTES, _DEAD, _DEAD_BEFORE = range(8)

Place = tuple[int, int, int]  # segment, start, length


def fields(size: int) -> list[Field]:
    """What the directory keeps for `size` samples in shared memory."""
    return [
        ("disk_control", np.int64, 64),
        ("disk_stamp", np.int64, size),
        ("disk_segment", np.int64, size),
        ("disk_start", np.int64, size),
        ("disk_length", np.int64, size),
        # By number of the segment, modulo their most: live records, bytes, the process that appends to it,
        # and the run that it is of plus 1 (0: there is no such segment).
        ("segment_live", np.int64, _SEGMENTS),
        ("segment_bytes", np.int64, _SEGMENTS),
        ("segment_writer", np.int64, _SEGMENTS),
        ("segment_run", np.int64, _SEGMENTS),
    ]


class DiskDirectory:
    """The entries and segments of a folder. What changes anything takes the lock."""

    def __init__(self, memory: SharedMemory, folder: Path) -> None:
        self._lock, self._folder = memory.lock, folder
        self._stamps, self._segments, self._starts, self._lengths = (
            memory.arrays[f"disk_{name}"] for name in ("stamp", "segment", "start", "length")
        )
        self._control = memory.arrays["disk_control"].data
        self._stamp, self._segment, self._start, self._length = (
            array.data for array in (self._stamps, self._segments, self._starts, self._lengths)
        )
        self._live, self._bytes, self._writer, self._run = (
            memory.arrays[f"segment_{name}"] for name in ("live", "bytes", "writer", "run")
        )

    def load(self) -> None:
        """Enter what earlier runs left; any generation may take its place."""
        rows, names = segments.read_index(self._folder, len(self._stamps), _MOST_GENERATIONS)
        self._control[_NEXT] = max(names, default=-1) + 1
        self._control[_RUN] = max((name.run for name in names.values()), default=-1) + 1
        for number, name in names.items():
            with suppress(OSError):
                size = (self._folder / str(name)).stat().st_size
                self._bytes[number % _SEGMENTS], self._run[number % _SEGMENTS] = size, name.run + 1
        index = rows[:, 0]
        self._segments[index], self._starts[index], self._lengths[index] = rows[:, 2:].T
        self._stamps[index] = (rows[:, 1] + 1 << _GENERATION) | INHERITED
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

    def holds(self, ids: NDArray[np.int64], generations: Any) -> NDArray[np.bool_]:
        return holds(self._stamps, ids, generations)

    def stamp(self, index: int) -> int:
        return int(self._stamp[index])

    def find(self, index: int, generation: int) -> tuple[Place, int] | None:
        """Where an entry is, and its stamp; None for a miss."""
        stamp = self._stamp[index]
        if not is_stamped(stamp, generation):
            return None
        fence()
        place = self._segment[index], self._start[index], self._length[index]
        fence()
        return (place, stamp) if self._stamp[index] == stamp else None

    def path(self, number: int) -> Path:
        """The file of a segment."""
        return self._folder / str(SegmentName(int(self._run[number % _SEGMENTS]) - 1, number))

    def exists(self, number: int) -> bool:
        return bool(self._run[number % _SEGMENTS])

    def would_take(self, index: int, generation: int) -> bool:
        """Whether nothing newer is here."""
        return may_replace(self._stamp[index], generation)

    def enter(self, index: int, generation: int, place: Place | None) -> bool:
        """Say where a record is, unless there is a newer one; None for nowhere, and what is older goes."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            stamp = self._stamp[index]
            if is_stamped(stamp, generation) or not may_replace(stamp, generation):
                return is_stamped(stamp, generation)
            self._publish(index, -1 if place is None else generation, place or _NOWHERE)
        return place is not None

    def move(self, index: int, stamp: int, place: Place | None) -> None:
        """Say where a record is now, if it is still the one that has this stamp; None for nowhere."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            if self._stamp[index] == stamp:
                generation = -1 if place is None else (stamp >> _GENERATION) - 1
                self._publish(index, generation, place or _NOWHERE)
                self._stamp[index] |= stamp & INHERITED

    def drop(self, index: int, before: int) -> None:
        """Forget an entry that is of a generation before `before`."""
        if self._stamp[index] >> _GENERATION:
            with self._lock:
                if self._control[_DIRTY]:
                    self._recount()
                if may_replace(self._stamp[index], before):
                    self._publish(index, -1, _NOWHERE)

    def _publish(self, index: int, generation: int, place: Place) -> None:
        control, stamp = self._control, self._stamp[index]
        control[_DIRTY] = 1
        self._stamp[index] = stamp | BUSY
        fence()
        if stamp >> _GENERATION and not stamp & BUSY:
            self._live[self._segment[index] % _SEGMENTS] -= 1
            control[_ENTRIES] -= 1
            control[_BYTES] -= self._length[index]
            control[_DEAD] += segments.room(self._length[index])
        number, start, length = place
        self._segment[index], self._start[index], self._length[index] = place
        if generation >= 0:
            slot, end = number % _SEGMENTS, start + segments.room(length)
            self._live[slot] += 1
            control[_TOTAL] += max(0, end - int(self._bytes[slot]))
            self._bytes[slot] = max(int(self._bytes[slot]), end)
            control[_ENTRIES] += 1
            control[_BYTES] += length
        fence()
        self._stamp[index] = next_stamp(stamp, generation)
        control[_DIRTY] = 0

    def new_segment(self, left: int) -> tuple[int, int]:
        """The number and descriptor of a segment for this process, which leaves another (or -1). OSError."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            if left >= 0:
                self._writer[left % _SEGMENTS] = 0
            number = int(self._control[_NEXT])
            slot = number % _SEGMENTS
            if self._run[slot]:
                raise OSError(f"there are {_SEGMENTS} segments already")
            path = self._folder / str(SegmentName(int(self._control[_RUN]), number))
            self._control[_NEXT] = number + 1
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._live[slot], self._bytes[slot], self._writer[slot] = 0, 0, os.getpid()
            self._run[slot] = self._control[_RUN] + 1
            self._delete_dead()
        return number, fd

    def leave(self, number: int) -> None:
        """Tell that nobody appends to a segment any more."""
        with self._lock:
            self._writer[number % _SEGMENTS] = 0

    def delete_dead(self) -> None:
        """Delete the segments that have no live record and that nobody appends to."""
        with self._lock:
            if self._control[_DIRTY]:
                self._recount()
            self._delete_dead()

    def _delete_dead(self) -> None:
        for slot in np.flatnonzero((self._run > 0) & (self._live <= 0)).tolist():
            if self._is_written(slot):
                continue
            with suppress(OSError):
                os.unlink(self.path(self._number(slot)))
            self._control[_TOTAL] -= int(self._bytes[slot])
            self._run[slot] = self._bytes[slot] = self._live[slot] = self._writer[slot] = 0

    def has_died(self, nbytes: int) -> bool:
        """Whether records of so many bytes have died since this was true: is it worth looking for space?"""
        if self._control[_DEAD] - self._control[_DEAD_BEFORE] < nbytes:
            return False
        self._control[_DEAD_BEFORE] = self._control[_DEAD]
        return True

    def take_mostly_dead(self) -> tuple[int, list[int]] | None:
        """The segment with the smallest live share, if that is less than a half, and the samples in it.

        It counts as this process's until `leave`.
        """
        with self._lock:
            held = np.flatnonzero(self._stamps >> _GENERATION)
            slots = self._segments[held] % _SEGMENTS
            rooms = segments.room(self._lengths[held])
            live = np.bincount(slots, weights=rooms, minlength=_SEGMENTS)
            some = np.flatnonzero((self._bytes > 0) & (live < self._bytes / 2))
            for slot in some[np.argsort(live[some] / self._bytes[some])].tolist():
                if not self._is_written(slot):
                    self._writer[slot] = os.getpid()
                    return self._number(slot), held[slots == slot].tolist()
        return None

    def _is_written(self, slot: int) -> bool:
        writer = int(self._writer[slot])
        return writer != 0 and _runs(writer)

    def _number(self, slot: int) -> int:
        """The number of the segment in a slot: the last one given out that falls on it."""
        newest = int(self._control[_NEXT]) - 1
        return newest - (newest - slot) % _SEGMENTS

    def _recount(self) -> None:
        """Make all counts from the entries, after forgetting what dead processes left half changed."""
        busy = np.flatnonzero(self._stamps & BUSY)
        self._stamps[busy] = [next_stamp(stamp, -1) for stamp in self._stamps[busy].tolist()]
        held = np.flatnonzero(self._stamps >> _GENERATION)
        self._live[:] = np.bincount(self._segments[held] % _SEGMENTS, minlength=_SEGMENTS)
        self._control[_ENTRIES] = len(held)
        self._control[_BYTES] = int(self._lengths[held].sum())
        self._control[_TOTAL] = int(self._bytes.sum())
        self._control[_DIRTY] = 0

    def inherit(self) -> None:
        """Let every entry give way to any other generation: a new run starts."""
        with self._lock:
            self._stamps[self._stamps >> _GENERATION > 0] |= INHERITED

    def save(self) -> None:
        """Write the snapshot that lets the next run open quickly. OSError."""
        with self._lock:
            index = np.flatnonzero((self._stamps >> _GENERATION > 0) & (self._stamps & BUSY == 0))
            generations = (self._stamps[index] >> _GENERATION) - 1
            places = [array[index] for array in (self._segments, self._starts, self._lengths)]
            slots = np.flatnonzero(self._run).tolist()
            ends = {self._number(slot): int(self._bytes[slot]) for slot in slots}
        segments.write_snapshot(self._folder, np.stack([index, generations, *places], axis=1), ends)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
