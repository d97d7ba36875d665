"""Where each sample of packed data lies: arrays that are made once and then mapped from a file.

A row says for one sample in which file, at which offset and how long its bytes are, its label, and how they
are to be read (`decodings`: most often as they are). Pixels that HDF5 keeps in chunks have, as offset and
length, a run of rows in `chunks` instead. Everything is plain arrays: ten million samples take 320 MB of file
and next to no memory or time to open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import FormatError
from rekindle.fetch.listing import Names

# One sample: 32 bytes. `part` is the sample's place within its chunk, for chunks that hold several.
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
# One piece of a chunked array: where it is, and which of its filters were left out (a bit each).
CHUNK = np.dtype([("offset", "<i8"), ("length", "<u4"), ("file", "<u4"), ("mask", "<u4"), ("spare", "<u4")])

NO_LABEL = -1
MOST_BYTES = (1 << 31) - 1  # of one sample: more is refused, since only a damaged file has it
MOST_DECODINGS = 1 << 16
MOST_CHUNK_BYTES = 1 << 28  # of one chunk, or of a sample that is put together from chunks

# How bytes become a sample, as plain data: {"kind": "bytes"}, {"kind": "array", "dtype": "|u1", "shape": …}
# or {"kind": "chunks", …}; `decodings.py` knows them.
Decoding = dict[str, Any]
BYTES: Decoding = {"kind": "bytes"}


@dataclass(frozen=True)
class RecordIndex:
    """All samples of some packed files."""

    format: str
    rows: NDArray[np.void]  # of ROW
    decodings: Sequence[Decoding] = (BYTES,)
    chunks: NDArray[np.void] = field(default_factory=lambda: np.empty(0, dtype=CHUNK))
    names: Names | None = None  # a key for each sample, where the format has them
    classes: Sequence[str] | None = None  # names of classes, where the files have them

    def __len__(self) -> int:
        return len(self.rows)


def make_rows(
    offsets: Any, lengths: Any, labels: Any = NO_LABEL, files: Any = 0, parts: Any = 0, decodings: Any = 0
) -> NDArray[np.void]:
    """Rows from columns, each an array or one number for all."""
    rows = np.empty(len(offsets), dtype=ROW)
    columns = {"offset": offsets, "length": lengths, "label": labels}
    for name, column in {**columns, "file": files, "part": parts, "decoding": decodings}.items():
        rows[name] = column
    return rows


def check_ranges(offsets: NDArray[Any], lengths: NDArray[Any], size: int, name: str) -> None:
    """Raise FormatError if a range leaves its file, is too long, or overlaps another (a file that is made to
    look larger than it is).
    """
    ends = offsets.astype(np.int64) + lengths.astype(np.int64)
    wrong = (offsets < 0) | (lengths < 0) | (ends > size) | (lengths > MOST_BYTES) | (ends < 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise FormatError(
            f"{name!r} at byte {int(offsets[at])}: sample {at} is said to have {int(lengths[at])} bytes, "
            f"but the file has {size}. It is damaged or cut off."
        )
    order = np.argsort(offsets, kind="stable")
    order = order[lengths[order] > 0]
    overlap = ends[order][:-1] > offsets[order][1:]
    if overlap.any():
        at = int(order[1:][np.argmax(overlap)])
        raise FormatError(f"{name!r} at byte {int(offsets[at])}: two samples overlap. The file is damaged.")
