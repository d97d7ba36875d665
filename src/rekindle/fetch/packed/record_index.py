"""Where each sample of packed files lies: arrays that an indexer fills once, later mapped from a file.

A row has, for one sample, the file, the offset and length of its bytes, its label, and how the bytes are
decoded (`decodings`: most often not at all). For arrays that HDF5 stores in chunks, offset and length are a
run of rows of `chunks` instead. Everything is plain arrays: ten million samples take 320 MB of file, and next
to no memory or time to open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import Limits
from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteReader, truncated
from rekindle.fetch.bytes_array import BytesArray

# One sample: 32 bytes. `part` is the sample's position within its chunk, for chunks that hold several.
ROW = np.dtype(
    [
        ("offset", "<i8"),
        ("label", "<i8"),
        ("length", "<u4"),
        ("file", "<u4"),
        ("part", "<u4"),
        ("decoding", "<u4"),
    ]
)
# One chunk of an array: where it is, and which of its filters were skipped (a bit each).
CHUNK = np.dtype([("offset", "<i8"), ("length", "<u4"), ("file", "<u4"), ("mask", "<u4"), ("spare", "<u4")])

NO_LABEL = -1
MAX_SAMPLE_BYTES = (1 << 31) - 1  # Only a corrupt file has more.
MAX_DECODINGS = 1 << 16


class Decoding(TypedDict, total=False):
    """How bytes become a sample, as JSON: `sample_decoders` knows the kinds.

    They are `bytes`, `array`, `chunks`, and `damaged`: bytes whose checksum was wrong when they were indexed.
    """

    kind: Required[str]
    dtype: str
    shape: Sequence[int]
    order: str  # what the axes of an image are
    chunk: Sequence[int]  # the shape of a chunk, samples first
    filters: Sequence[tuple[str, int]]  # name and parameter
    fill: float


BYTES: Decoding = {"kind": "bytes"}
DAMAGED: Decoding = {"kind": "damaged"}


@dataclass(frozen=True)
class RecordIndex:
    """All samples of some packed files."""

    format: str
    rows: NDArray[np.void]  # of ROW
    decodings: Sequence[Decoding] = (BYTES,)
    chunks: NDArray[np.void] = field(default_factory=lambda: np.empty(0, dtype=CHUNK))
    names: BytesArray | None = None  # a key for each sample, where the format has them
    classes: Sequence[str] | None = None  # class names, where the files have them

    def __len__(self) -> int:
        return len(self.rows)

    def damaged(self) -> NDArray[np.bool_]:
        """Which samples had a wrong checksum when they were indexed."""
        kinds = np.array([decoding.get("kind") == "damaged" for decoding in self.decodings])
        return kinds[self.rows["decoding"]] if kinds.any() else np.zeros(len(self), dtype=np.bool_)


class IndexSettings(TypedDict, total=False):
    """Options of `rk.open` for packed files, as JSON; each format takes some of them."""

    images: str
    labels: str
    features: Mapping[str, str]
    verify: bool


# Finds the samples of files; calls the third argument with how many bytes are done.
Indexer = Callable[[Sequence[ByteReader], IndexSettings, Callable[[int], None], Limits], RecordIndex]

Column = int | Sequence[int] | NDArray[np.int64]


def make_rows(
    offsets: Sequence[int] | NDArray[np.int64],
    lengths: Column,
    labels: Column = NO_LABEL,
    files: Column = 0,
    parts: Column = 0,
    decodings: Column = 0,
) -> NDArray[np.void]:
    """Rows from columns, each an array or one number for all."""
    rows = np.empty(len(offsets), dtype=ROW)
    rows["offset"], rows["length"], rows["label"] = offsets, lengths, labels
    rows["file"], rows["part"], rows["decoding"] = files, parts, decodings
    return rows


def check_ranges(offsets: NDArray[np.int64], lengths: NDArray[np.int64], file: ByteReader) -> None:
    """Raise FormatError if a range leaves the file, is too long, or overlaps another.

    Samples that share bytes would make a small file look like far more data than it has.
    """
    wrong = (offsets < 0) | (lengths < 0) | (lengths > MAX_SAMPLE_BYTES) | (offsets > file.size - lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise truncated(file, int(offsets[at]), f"sample {at}", int(lengths[at]))
    ends = offsets + lengths
    order = np.argsort(offsets, kind="stable")
    order = order[lengths[order] > 0]
    overlap = ends[order][:-1] > offsets[order][1:]
    if overlap.any():
        at = int(order[1:][np.argmax(overlap)])
        raise FormatError(f"{file.name!r} at byte {int(offsets[at])}: two samples overlap: corrupt.")
