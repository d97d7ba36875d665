"""The part of a store that lies in shared memory: lookups without a lock, writes under one.

A row a sample (see `entry_table`) holds its entry's stamp (see `stamps`), and the offset, length and block
size of its bytes in the heap. Readers check the stamp before and after they read. Everything else (counts,
free blocks) follows from these rows, and is recomputed from them after a writer was killed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.reuse.cache import heap
from rekindle.reuse.cache.entry_table import TableSpec
from rekindle.reuse.cache.heap import Heap
from rekindle.reuse.cache.kept_generations import KeptGenerations
from rekindle.reuse.cache.record import Record, aligned
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory
from rekindle.reuse.cache.stamps import (
    BUSY,
    GENERATION,
    are_held,
    fence,
    generation_of,
    is_held,
    may_replace,
    next_stamp,
    removed,
)

# Indices into `control`. DIRTY is set while a writer changes anything: left behind by one that was killed.
_DIRTY, _ENTRIES, _BYTES = range(3)


_TABLE = "entries"
FIELDS: tuple[Field, ...] = (("control", np.int64, 64), *heap.FIELDS)


def tables(size: int) -> dict[str, TableSpec]:
    """The shared table of the tier, for `size` samples."""
    return {_TABLE: TableSpec(("stamp", "offset", "length", "block_size", "writer"), size)}


class MemoryTier:
    """Entries in a heap of shared memory, at most one generation of each sample."""

    def __init__(self, memory: SharedMemory) -> None:
        self._lock, self._memory = memory.lock, memory
        self._table = memory.tables[_TABLE]
        self._stamps, self._offsets, self._lengths, self._block_sizes = (
            memory.arrays[name] for name in ("stamp", "offset", "length", "block_size")
        )
        # Reading one number of a memoryview is several times faster than of an array.
        self._control = memory.arrays["control"].data
        self._stamp, self._offset, self._length, self._block_size = (
            array.data for array in (self._stamps, self._offsets, self._lengths, self._block_sizes)
        )
        self._writer = memory.arrays["writer"].data
        self._heap = Heap(memory)
        self.capacity = self._heap.capacity

    @property
    def entries(self) -> int:
        return int(self._control[_ENTRIES])

    @property
    def nbytes(self) -> int:
        return int(self._control[_BYTES])

    def holds(self, ids: NDArray[np.int64], generations: ArrayLike) -> NDArray[np.bool_]:
        return are_held(self._table, "stamp", ids, generations)

    def has(self, index: int, generation: int) -> bool:
        """`holds` of one entry."""
        return self._table.has(index) and is_held(self._stamp[index], generation)

    def find(self, index: int, generation: int) -> tuple[NDArray[np.uint8], int] | None:
        """An entry's bytes in place, and the stamp to pass to `unchanged` after reading them."""
        if not self._table.has(index):
            return None
        stamp = self._stamp[index]
        if not is_held(stamp, generation):
            return None
        fence()
        offset, length = self._offset[index], self._length[index]
        if offset < 0 or offset + length > self._heap.reserved:
            return None  # Overwritten at this very moment.
        return self._heap.block(offset, length), stamp

    def unchanged(self, index: int, stamp: int) -> bool:
        """Whether all that was read since `find` is valid."""
        fence()
        return bool(self._stamp[index] == stamp)

    def writer(self, index: int) -> int:
        """Who wrote an entry, as `put` was told."""
        return int(self._writer[index])

    def generation(self, index: int) -> int:
        """The generation of an entry; -1 if there is none."""
        return generation_of(self._stamp[index]) if self._table.has(index) else -1

    def would_take(self, index: int, generation: int) -> bool:
        """Whether nothing newer is here."""
        return not self._table.has(index) or may_replace(self._stamp[index], generation)

    def put(self, index: int, generation: int, record: Record, writer: int = 0) -> bool:
        """Keep a record and drop the older generation; False if there is no space, or a newer one is here."""
        with self._lock:
            if self._control[_DIRTY]:
                self.recover()
            if not self._memory.reserve_row(_TABLE, index):
                return False
            stamp = self._stamp[index]
            if is_held(stamp, generation):
                return True
            if not may_replace(stamp, generation):
                return False
            if self._block_size[index] == 0 and not self._heap.may_fit(record.nbytes):
                return False
            self._control[_DIRTY] = 1
            kept = self._write(index, generation, record)
            self._writer[index] = writer
            self._control[_DIRTY] = 0
            return kept

    def _write(self, index: int, generation: int, record: Record) -> bool:
        stamp = self._stamp[index]
        replaced = self._length[index] if stamp >> GENERATION and not stamp & BUSY else -1
        self._stamp[index] = stamp | BUSY
        fence()
        if replaced >= 0:
            self._count(-1, -replaced)
        offset = self._allocate(index, aligned(max(record.nbytes, 1)))
        if offset < 0:
            self._length[index] = 0
            self._stamp[index] = next_stamp(stamp, -1)
            return False
        self._length[index] = record.nbytes
        record.write(self._heap.block(offset, record.nbytes))
        fence()
        self._stamp[index] = next_stamp(stamp, generation)
        self._count(1, record.nbytes)
        return True

    def drop(self, index: int, before: int) -> None:
        """Remove an entry of a generation before `before`, and free its block."""
        if not self._table.has(index) or self._block_size[index] == 0:
            return
        with self._lock:
            if self._control[_DIRTY]:
                self.recover()
            stamp = self._stamp[index]
            if self._block_size[index] == 0 or not may_replace(stamp, before):
                return
            self._control[_DIRTY] = 1
            self._stamp[index] = stamp | BUSY
            fence()
            self._count(-1, -self._length[index])
            self._free(index)
            self._length[index] = 0
            self._stamp[index] = next_stamp(stamp, -1)
            self._control[_DIRTY] = 0

    def drop_superseded(self, kept: KeptGenerations, epoch: int) -> None:
        """Remove what nobody uses any more who has reached this epoch, where a newer generation is here."""
        with self._lock:
            if self._control[_DIRTY]:
                self.recover()
            rows = kept.all_rows(self._table.used(), len(self._stamps))
            generations = np.where(
                self._table.are_there(rows), (self._stamps[rows] >> GENERATION) - 1, -1
            ).reshape(-1, kept.ways)
            is_older = (generations >= 0) & (generations < generations.max(axis=1, initial=-1, keepdims=True))
            over = rows.reshape(-1, kept.ways)[is_older & kept.is_over(generations, epoch)]
            if len(over):
                self._control[_DIRTY] = 1
                self._stamps[over] |= BUSY
                self.recover()

    def _count(self, entries: int, nbytes: int) -> None:
        self._control[_ENTRIES] += entries
        self._control[_BYTES] += nbytes

    def _allocate(self, index: int, nbytes: int) -> int:
        """A block for an entry: its own if that is large enough; else that is freed for a new one, or -1."""
        size = self._block_size[index]
        if size >= nbytes:
            if size > nbytes:
                self._block_size[index] = nbytes
                self._heap.free(self._offset[index] + nbytes, size - nbytes)
            return int(self._offset[index])
        if size:
            self._free(index)
        offset = self._heap.allocate(nbytes)
        if offset < 0 and self._heap.is_fragmented(nbytes):
            self._rebuild(writing=index)
            offset = self._heap.allocate(nbytes)
        if offset >= 0:
            self._offset[index], self._block_size[index] = offset, nbytes
        return offset

    def _free(self, index: int) -> None:
        offset, size = self._offset[index], self._block_size[index]
        self._block_size[index] = 0
        self._heap.free(offset, size)

    def recover(self) -> None:
        """Recompute counts and free blocks from the entries, without those that killed writers left."""
        self._rebuild()
        self._control[_DIRTY] = 0

    def _rebuild(self, writing: int = -1) -> None:
        """As `recover`, but leaves alone the entry that the caller is writing."""
        rows = self._table.used()
        stamps, sizes = self._stamps[rows], self._block_sizes[rows]
        is_dead = (stamps & BUSY != 0) | ((stamps >> GENERATION == 0) & (sizes > 0))
        is_dead &= rows != writing
        dead, held = rows[is_dead], rows[(sizes > 0) & ~is_dead]
        self._block_sizes[dead] = 0
        self._stamps[dead] = removed(stamps[is_dead])
        self._heap.rebuild(self._offsets[held], self._block_sizes[held])
        self._control[_ENTRIES], self._control[_BYTES] = len(held), int(self._lengths[held].sum())
