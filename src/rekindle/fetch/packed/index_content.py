"""Checks of what an index file says: a row that cannot be one of these files is an error before it is used.

Checksums show that an index is as it was written, not that whoever wrote it meant well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.fetch.byte_files import ByteReader
from rekindle.fetch.packed.record_index import MAX_DECODINGS, RecordIndex


def check_description(index: RecordIndex) -> None:
    """Raise ValueError if what describes all samples has parts of the wrong types or lengths."""
    if not isinstance(index.format, str):
        raise ValueError(f"format {index.format!r:.80}")
    if not _is_list_of(index.decodings, dict) or not 0 < len(index.decodings) <= MAX_DECODINGS:
        raise ValueError("no list of decodings")
    if index.classes is not None and not _is_list_of(index.classes, str):
        raise ValueError("classes that are not names")
    if index.names is not None and len(index.names) != len(index):
        raise ValueError(f"{len(index.names):,} names of {len(index):,} samples")


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


class RowChecks:
    """What the rows and chunks of an index of these files may be.

    They are two arrays of the index file, rows first; `chunks_at` is where the chunks begin.
    """

    def __init__(self, files: Sequence[ByteReader], index: RecordIndex, chunks_at: int) -> None:
        self._rows, self._chunks, self._chunks_at = index.rows, index.chunks, chunks_at
        self._sizes = np.array([file.size for file in files], dtype=np.int64)
        self._chunked = np.array([decoding.get("kind") == "chunks" for decoding in index.decodings])

    def check(self, start: int, end: int) -> None:
        """Raise ValueError if a row or chunk between these bytes of the arrays is not within its file."""
        self._check_rows(_between(self._rows, start, end))
        self._check_chunks(_between(self._chunks, start - self._chunks_at, end - self._chunks_at))

    def _check_rows(self, rows: NDArray[np.void]) -> None:
        if not len(rows):
            return
        if rows["file"].max() >= len(self._sizes) or rows["decoding"].max() >= len(self._chunked):
            raise ValueError("a sample in a file, or of a kind, that does not exist")
        ends = np.where(self._chunked[rows["decoding"]], len(self._chunks), self._sizes[rows["file"]])
        _check_within(rows, ends)

    def _check_chunks(self, chunks: NDArray[np.void]) -> None:
        if not len(chunks):
            return
        if chunks["file"].max() >= len(self._sizes):
            raise ValueError("a chunk in a file that does not exist")
        _check_within(chunks, self._sizes[chunks["file"]])


def _between(array: NDArray[np.void], start: int, end: int) -> NDArray[np.void]:
    """The items that lie, at least in part, between these bytes of an array."""
    return array[max(0, start // array.itemsize) : max(0, -(-end // array.itemsize))]


def _check_within(rows: NDArray[np.void], ends: NDArray[np.int64]) -> None:
    offsets, lengths = rows["offset"], rows["length"].astype(np.int64)
    wrong = (offsets < 0) | (offsets > ends - lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(f"{int(lengths[at]):,} bytes or chunks at {int(offsets[at])} of {int(ends[at]):,}")
