"""Where in the shared heap a value goes: free blocks, best fit first, then memory that was never used.

The list of free blocks is only a hint. What is free is whatever the memory tier's entries do not occupy: the
list is rebuilt from them (`rebuild`) after a writer was killed, and when free space is too fragmented. So a
killed writer leaks nothing.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from rekindle.core.available_memory import available_memory
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory

# Indices into `heap_control`. FREED are the bytes freed since the last rebuild.
_TOP, _RESERVED, _FREE_BLOCKS, _FREED = range(4)
_MAX_FREE_BLOCKS = 1 << 14
_REBUILD_SHARE = 64  # A rebuild is worth it once this part of the heap was freed.
# Taken from the system at a time: as much as there is already, within these.
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 16 << 20
_SPARE_BYTES = 64 << 20  # that are always left to others
_RETRY_SECONDS = 1.0  # until a system that had no memory is asked again


FIELDS: tuple[Field, ...] = (
    ("heap_control", np.int64, 64),
    ("free_offset", np.int64, _MAX_FREE_BLOCKS),
    ("free_size", np.int64, _MAX_FREE_BLOCKS),
)


class Heap:
    """Allocates blocks of the shared heap. All that changes it is called under the store's lock."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory, self._heap = memory, memory.heap
        self._control = memory.arrays["heap_control"].data
        self._free_offset, self._free_size = memory.arrays["free_offset"], memory.arrays["free_size"]
        self._retry_at = 0.0
        self.capacity = len(memory.heap)  # in bytes, most of which may not have been taken from the system

    @property
    def reserved(self) -> int:
        """Bytes from the start on that were taken from the system: the only ones to read or write."""
        return int(self._control[_RESERVED])

    def block(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes at an offset, in place."""
        return self._heap[offset : offset + nbytes]

    def may_fit(self, nbytes: int) -> bool:
        """Whether a block could be found: cheap, for the many calls after the heap is full."""
        unused = self.capacity - self._control[_TOP]
        return bool(unused >= nbytes or self._control[_FREED] or self._control[_FREE_BLOCKS])

    def allocate(self, nbytes: int) -> int:
        """The offset of a block of so many bytes, or -1."""
        offset = self._from_free_blocks(nbytes)
        return self._from_top(nbytes) if offset < 0 else offset

    def free(self, offset: int, nbytes: int) -> None:
        """Give a block back. If the list is full, the next rebuild finds it."""
        self._control[_FREED] += nbytes
        count = self._control[_FREE_BLOCKS]
        if count < _MAX_FREE_BLOCKS:
            self._free_offset[count], self._free_size[count] = offset, nbytes
            self._control[_FREE_BLOCKS] = count + 1

    def is_fragmented(self, nbytes: int) -> bool:
        """Whether a rebuild may make a block of so many bytes, and enough was freed to be worth it."""
        return bool(self._control[_FREED] >= max(nbytes, self.capacity // _REBUILD_SHARE))

    def rebuild(self, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """List the free blocks afresh, given all blocks that are in use: adjacent ones are merged."""
        order = np.argsort(offsets, kind="stable")
        offsets, sizes = offsets[order], sizes[order]
        ends = np.concatenate([[0], offsets + sizes])
        gaps = np.append(offsets, ends[-1]) - ends
        some = np.flatnonzero(gaps)
        some = some[np.argsort(-gaps[some], kind="stable")][:_MAX_FREE_BLOCKS]
        self._free_offset[: len(some)], self._free_size[: len(some)] = ends[some], gaps[some]
        self._control[_FREE_BLOCKS], self._control[_TOP] = len(some), int(ends[-1])
        # Fragments that did not help now would not help the next time either.
        self._control[_FREED] = 0

    def _from_free_blocks(self, nbytes: int) -> int:
        """The smallest free block that is large enough; what is left of it stays free."""
        count = self._control[_FREE_BLOCKS]
        sizes = self._free_size[:count]
        fitting = np.flatnonzero(sizes >= nbytes)
        if not len(fitting):
            return -1
        block = int(fitting[np.argmin(sizes[fitting])])
        offset, rest = int(self._free_offset[block]), int(sizes[block]) - nbytes
        if rest:
            self._free_offset[block], self._free_size[block] = offset + nbytes, rest
        else:
            self._free_offset[block] = self._free_offset[count - 1]
            self._free_size[block] = self._free_size[count - 1]
            self._control[_FREE_BLOCKS] = count - 1
        return offset

    def _from_top(self, nbytes: int) -> int:
        offset = self._control[_TOP]
        if offset + nbytes > self.capacity:
            return -1
        if offset + nbytes > self._control[_RESERVED] and not self._reserve(offset + nbytes):
            return -1
        self._control[_TOP] = offset + nbytes
        return int(offset)

    def _reserve(self, end: int) -> bool:
        """Take memory from the system, unless it has hardly any left."""
        now = time.monotonic()
        if now < self._retry_at:
            return False
        reserved = self._control[_RESERVED]
        step = max(_LEAST_BYTES, min(reserved, _MOST_BYTES))
        wanted = min(self.capacity, reserved + -(-(end - reserved) // step) * step)
        available = available_memory()
        short = available is not None and available < wanted - reserved + _SPARE_BYTES
        if short or not self._memory.reserve_heap(reserved, wanted - reserved):
            self._retry_at = now + _RETRY_SECONDS
            return False
        self._control[_RESERVED] = wanted
        return True
