"""The index of a cache: one row a sample, which takes memory once an entry near it is written.

A row is a cache line. Rows are taken from the system in chunks of one page, and a bit a chunk says which
were: rows of other chunks are never touched, since even reading them would take memory. So a billion samples
of which a thousand are cached cost what a thousand cost, beside the bits (one for 64 samples).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORDS = 8  # of 8 bytes: a cache line
_CHUNK_ROWS = 64  # a page
_MAX_CHUNKS = 1 << 24  # from there on, chunks are larger


class TableSpec(NamedTuple):
    """A table: the names of its columns, of 64-bit integers, and how many rows it has."""

    columns: tuple[str, ...]
    rows: int

    @property
    def chunk_rows(self) -> int:
        """How many rows are taken from the system at a time: a power of 2."""
        rows = _CHUNK_ROWS
        while rows * _MAX_CHUNKS < self.rows:
            rows *= 2
        return rows

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.rows // self.chunk_rows)

    @property
    def flag_bytes(self) -> int:
        """Bytes of the flags, one bit for each chunk."""
        return -(-self.chunks // 8)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, most of which may never be touched."""
        return self.chunks * self.chunk_rows * _WORDS * 8


class EntryTable:
    """A table in shared memory.

    Attributes:
        columns: An array a column. Touch only rows that `has`, or that were reserved.

    """

    def __init__(self, spec: TableSpec, flags: NDArray[np.uint8], content: NDArray[np.uint8]) -> None:
        self._flags, self._flag = flags, flags.data
        self._shift = spec.chunk_rows.bit_length() - 1
        self._rows, self._chunk_rows = spec.rows, spec.chunk_rows
        rows = content.view(np.int64).reshape(-1, _WORDS)[: spec.rows]
        self.columns = {name: rows[:, number] for number, name in enumerate(spec.columns)}

    def has(self, index: int) -> bool:
        """Whether the row may be touched; if not, it is all zeros."""
        chunk = index >> self._shift
        return self._flag[chunk >> 3] >> (chunk & 7) & 1 == 1

    def are_there(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the rows may be touched."""
        chunks = indices >> self._shift
        there: NDArray[np.bool_] = self._flags[chunks >> 3] >> (chunks & 7).astype(np.uint8) & 1 == 1
        return there

    def reserve(self, index: int, take: Callable[[int, int], bool]) -> bool:
        """Have the memory of a row before it is written: `take` gets an offset and a number of bytes.

        Under the lock of the memory: two flags share a byte.
        """
        if self.has(index):
            return True
        chunk = index >> self._shift
        nbytes = self._chunk_rows * _WORDS * 8
        if not take(chunk * nbytes, nbytes):
            return False
        self._flag[chunk >> 3] |= 1 << (chunk & 7)
        return True

    def used(self) -> NDArray[np.int64]:
        """All rows that may be touched."""
        chunks = np.flatnonzero(np.unpackbits(self._flags, bitorder="little"))
        rows = ((chunks << self._shift)[:, None] + np.arange(self._chunk_rows)).ravel()
        return rows if not len(rows) or rows[-1] < self._rows else rows[rows < self._rows]
