"""The part of a store that lies in shared memory: lookups without a lock, writes under one.

A directory, indexed by sample, says which generation is held and where. Its `stamp` is one word: the
generation, how often the entry was written, and whether it is being written right now. A reader takes the
stamp, reads, and takes the stamp again: unchanged means that what was read is what was written for that
generation. A writer killed in between leaves the stamp marked as being written, which is a miss.

Free space is what the directory does not name. The list of free blocks is only a memory of that: it is made
anew from the directory after a writer died, and when free space lies in too many pieces. So nothing that a
killed writer held is ever lost.
"""

from __future__ import annotations

import platform
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.available import available_memory
from rekindle.reuse.shared import Field, SharedMemory
from rekindle.reuse.values import Record, aligned

BUSY, INHERITED = 1, 2  # bits of a stamp; an inherited entry gives way to any other generation
_WRITE = 4  # added to a stamp by every write
_GENERATION = 32  # the bit at which the generation starts; 0 there means nothing
_WRITES = (1 << _GENERATION) - _WRITE

# Numbers kept in `control`.
_DIRTY, _TOP, _RESERVED, _FREE_COUNT, _FREED, _ENTRIES, _BYTES = range(7)
_FREE_BLOCKS = 1 << 14
_FREED_SHARE = 64  # of the heap must have been freed before its pieces are joined again
_STEP = 16 << 20  # bytes of memory that are reserved at a time
_SPARE = 64 << 20  # bytes that are always left to others
_ASK_AGAIN = 1.0  # seconds before a system that had no memory is asked again


def fields(size: int) -> list[Field]:
    """What the tier keeps for `size` samples in shared memory."""
    return [
        ("control", np.int64, 64),
        ("stamp", np.int64, size),
        ("start", np.int64, size),
        ("length", np.int64, size),
        ("room", np.int64, size),
        ("free_start", np.int64, _FREE_BLOCKS),
        ("free_room", np.int64, _FREE_BLOCKS),
    ]


def holds(stamps: NDArray[np.int64], ids: NDArray[np.int64], generations: Any) -> NDArray[np.bool_]:
    """Which of the entries are there, in these generations."""
    found = stamps[ids]
    wanted = np.asarray(generations) + 1
    held: NDArray[np.bool_] = (found >> _GENERATION == wanted) & (found & BUSY == 0) & (wanted > 0)
    return held


def is_stamped(stamp: int, generation: int) -> bool:
    """Whether a stamp is that of a whole entry of this generation."""
    return stamp >> _GENERATION == generation + 1 > 0 and not stamp & BUSY


def may_replace(stamp: int, generation: int) -> bool:
    """Whether an entry of this generation may take the place of what is there."""
    return stamp & (BUSY | INHERITED) != 0 or stamp >> _GENERATION <= generation


def next_stamp(stamp: int, generation: int) -> int:
    """The stamp of the next write to an entry; generation -1 is that of an entry that is gone."""
    return (generation + 1 << _GENERATION) | (stamp + _WRITE & _WRITES)


class MemoryTier:
    """Entries in a heap of shared memory, at most one generation of each sample."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory, self._heap = memory, memory.heap
        self._stamps: NDArray[np.int64] = memory.arrays["stamp"]
        # Reading one number of a memoryview is several times quicker than of an array.
        self._control, self._stamp, self._start, self._length, self._room = (
            memory.arrays[name].data for name in ("control", "stamp", "start", "length", "room")
        )
        self._free_start, self._free_room = memory.arrays["free_start"], memory.arrays["free_room"]
        self._ask_again_at = 0.0

    @property
    def capacity(self) -> int:
        return len(self._heap)

    @property
    def entries(self) -> int:
        return int(self._control[_ENTRIES])

    @property
    def nbytes(self) -> int:
        return int(self._control[_BYTES])

    def holds(self, ids: NDArray[np.int64], generations: Any) -> NDArray[np.bool_]:
        return holds(self._stamps, ids, generations)

    def find(self, index: int, generation: int) -> tuple[NDArray[np.uint8], int] | None:
        """An entry's bytes where they lie, and the stamp that `unchanged` wants afterwards."""
        stamp = self._stamp[index]
        if not is_stamped(stamp, generation):
            return None
        fence()
        start, length = self._start[index], self._length[index]
        if start < 0 or start + length > self._control[_RESERVED]:
            return None  # Written anew at this very moment.
        return self._heap[start : start + length], stamp

    def unchanged(self, index: int, stamp: int) -> bool:
        """Whether all that was read since `find` is what it seemed to be."""
        fence()
        return bool(self._stamp[index] == stamp)

    def would_take(self, index: int, generation: int) -> bool:
        """Whether nothing newer is here."""
        return may_replace(self._stamp[index], generation)

    def put(self, index: int, generation: int, record: Record) -> bool:
        """Keep the bytes, in place of an older generation; False if there is no room or a newer one."""
        with self._memory.lock:
            if self._control[_DIRTY]:
                self._rebuild()
            stamp = self._stamp[index]
            if is_stamped(stamp, generation):
                return True
            if not may_replace(stamp, generation):
                return False
            if self._room[index] == 0 and not self.may_have_room(record.nbytes):
                return False
            self._control[_DIRTY] = 1
            kept = self._write(index, generation, record)
            self._control[_DIRTY] = 0
            return kept

    def may_have_room(self, nbytes: int) -> bool:
        """Whether a new entry could find room; a quick look, for those who come after the heap is full."""
        unused = self.capacity - self._control[_TOP]
        return bool(unused >= nbytes or self._control[_FREED] or self._control[_FREE_COUNT])

    def _write(self, index: int, generation: int, record: Record) -> bool:
        stamp = self._stamp[index]
        held = self._length[index] if stamp >> _GENERATION and not stamp & BUSY else -1
        self._stamp[index] = stamp | BUSY
        fence()
        if held >= 0:
            self._count(-1, -held)
        start = self._place(index, aligned(max(record.nbytes, 1)))
        if start < 0:
            self._length[index] = 0
            self._stamp[index] = next_stamp(stamp, -1)
            return False
        self._length[index] = record.nbytes
        record.write(self._heap[start : start + record.nbytes])
        fence()
        self._stamp[index] = next_stamp(stamp, generation)
        self._count(1, record.nbytes)
        return True

    def drop(self, index: int, before: int | None = None) -> None:
        """Forget an entry (if it is of a generation before `before`), and give its room to others."""
        if self._room[index] == 0:
            return
        with self._memory.lock:
            if self._control[_DIRTY]:
                self._rebuild()
            stamp = self._stamp[index]
            if self._room[index] == 0 or (before is not None and not may_replace(stamp, before)):
                return
            self._control[_DIRTY] = 1
            self._stamp[index] = stamp | BUSY
            fence()
            self._count(-1, -self._length[index])
            self._release(index)
            self._length[index] = 0
            self._stamp[index] = next_stamp(stamp, -1)
            self._control[_DIRTY] = 0

    def inherit(self) -> None:
        """Let every entry give way to any other generation: a new run starts."""
        with self._memory.lock:
            self._stamps[self._stamps >> _GENERATION > 0] |= INHERITED

    def _count(self, entries: int, nbytes: int) -> None:
        self._control[_ENTRIES] += entries
        self._control[_BYTES] += nbytes

    def _place(self, index: int, need: int) -> int:
        """Room for an entry: its own if that will do; else -1 or a new place, and its own is free."""
        room = self._room[index]
        if room >= need:
            if room > need:
                self._room[index] = need
                self._free(self._start[index] + need, room - need)
            return int(self._start[index])
        if room:
            self._release(index)
        start = self._from_free(need)
        if start < 0:
            start = self._from_top(need)
        if start < 0 and self._control[_FREED] >= max(need, self.capacity // _FREED_SHARE):
            self._rebuild(but=index)
            start = self._from_free(need)
            if start < 0:
                start = self._from_top(need)
        if start >= 0:
            self._start[index], self._room[index] = start, need
        return start

    def _release(self, index: int) -> None:
        start, room = self._start[index], self._room[index]
        self._room[index] = 0
        self._free(start, room)

    def _free(self, start: int, room: int) -> None:
        self._control[_FREED] += room
        count = self._control[_FREE_COUNT]
        if count < _FREE_BLOCKS:  # Else it is found again when the list is made anew.
            self._free_start[count], self._free_room[count] = start, room
            self._control[_FREE_COUNT] = count + 1

    def _from_free(self, need: int) -> int:
        """The smallest free block that is large enough; what it has too much stays free."""
        count = self._control[_FREE_COUNT]
        rooms = self._free_room[:count]
        fitting = np.flatnonzero(rooms >= need)
        if not len(fitting):
            return -1
        block = int(fitting[np.argmin(rooms[fitting])])
        start, left = int(self._free_start[block]), int(rooms[block]) - need
        if left:
            self._free_start[block], self._free_room[block] = start + need, left
        else:
            self._free_start[block] = self._free_start[count - 1]
            self._free_room[block] = self._free_room[count - 1]
            self._control[_FREE_COUNT] = count - 1
        return start

    def _from_top(self, need: int) -> int:
        start = self._control[_TOP]
        if start + need > self.capacity:
            return -1
        if start + need > self._control[_RESERVED] and not self._reserve(start + need):
            return -1
        self._control[_TOP] = start + need
        return int(start)

    def _reserve(self, end: int) -> bool:
        """Take memory from the system, unless it has hardly any left."""
        now = time.monotonic()
        if now < self._ask_again_at:
            return False
        have = self._control[_RESERVED]
        want = min(self.capacity, -(-end // _STEP) * _STEP)
        left = available_memory()
        short = left is not None and left < want - have + _SPARE
        if short or not self._memory.reserve_heap(have, want - have):
            self._ask_again_at = now + _ASK_AGAIN
            return False
        self._control[_RESERVED] = want
        return True

    def _rebuild(self, but: int = -1) -> None:
        """Make the list of free blocks from the directory, after forgetting what dead writers left.

        `but` is the entry that is being written by who calls.
        """
        arrays = self._memory.arrays
        stamps, starts, rooms = self._stamps, arrays["start"], arrays["room"]
        dead = np.flatnonzero((stamps & BUSY != 0) | ((stamps >> _GENERATION == 0) & (rooms > 0)))
        dead = dead[dead != but]
        rooms[dead] = 0
        stamps[dead] = stamps[dead] + _WRITE & _WRITES
        held = np.flatnonzero(rooms)
        held = held[np.argsort(starts[held], kind="stable")]
        ends = np.concatenate([[0], starts[held] + rooms[held]])
        gaps = np.append(starts[held], ends[-1]) - ends
        some = np.flatnonzero(gaps)
        some = some[np.argsort(-gaps[some], kind="stable")][:_FREE_BLOCKS]
        self._free_start[: len(some)], self._free_room[: len(some)] = ends[some], gaps[some]
        control = self._control
        control[_FREE_COUNT], control[_TOP] = len(some), int(ends[-1])
        # Space in pieces that did not help now would not help the next time either.
        control[_FREED] = 0
        control[_ENTRIES], control[_BYTES] = len(held), int(arrays["length"][held].sum())
        if but < 0:
            control[_DIRTY] = 0


def _fence() -> None:
    """Keep reads and writes before this call from moving behind it: a lock taken twice does."""
    lock = threading.Lock()
    for _ in range(2):
        with lock:
            pass


def _no_fence() -> None:
    """Nothing: these processors never move reads before reads, nor writes before writes."""


fence = _no_fence if platform.machine() in ("x86_64", "AMD64") else _fence
