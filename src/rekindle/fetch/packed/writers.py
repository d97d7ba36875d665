"""Writers of packed files, one a format, atomic: `writer_for` makes them, `rekindle pack` uses them.

Encoded images are stored unchanged. Pixels (height × width × 3 bytes) are stored as binary PPM, a header of
some fifteen bytes before the pixels: every tool reads it, and it costs no decoding.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rekindle.core.directory import Directory
from rekindle.errors import ArgumentError, DataError

# Extensions of file names, and the module and class that writes such files.
_WRITERS = {
    ".h5": ("rekindle.fetch.packed.hdf5.writer", "Hdf5Writer"),
    ".hdf5": ("rekindle.fetch.packed.hdf5.writer", "Hdf5Writer"),
    ".tfrecord": ("rekindle.fetch.packed.tfrecord.writer", "TfrecordWriter"),
    ".tfrecords": ("rekindle.fetch.packed.tfrecord.writer", "TfrecordWriter"),
    ".tar": ("rekindle.fetch.packed.tar.writer", "TarWriter"),
    ".lmdb": ("rekindle.fetch.packed.lmdb.writer", "LmdbWriter"),
}
WRITTEN_EXTENSIONS = tuple(_WRITERS)


# An encoded image, or pixels.
Writable = bytes | memoryview | NDArray[np.uint8]


class Writer(Protocol):
    """Writes samples one by one. The file appears at its path, complete, at `close`; never after `abort`."""

    def add(self, key: str, data: Writable, label: int) -> None:
        """Add a sample: an encoded image, or pixels (height × width × 3 bytes); -1 is no label."""

    def close(self) -> None:
        """Finish the file and give it its name."""

    def abort(self) -> None:
        """Remove what was written; does nothing after `close`."""


def writer_for(
    path: str | os.PathLike[str], classes: Sequence[str] | None = None, directory: Directory | None = None
) -> Writer:
    """A writer for the format that the file name ends in; `classes` are the class names.

    Without `classes`, the first sample decides whether the file has labels. With `directory`, the path is
    relative to it.
    """
    target = Path(path)
    if target.suffix.lower() not in _WRITERS:
        raise ArgumentError(
            f"cannot tell the format of {str(path)!r}. Let it end in {', '.join(WRITTEN_EXTENSIONS)}."
        )
    module, name = _WRITERS[target.suffix.lower()]
    writer: Callable[[Path, Sequence[str] | None, Directory | None], Writer]
    writer = getattr(importlib.import_module(module), name)
    try:
        return writer(target, classes, directory)
    except OSError as error:
        raise DataError(f"cannot write {str(target)!r}: {error.strerror or error}") from error


class LabelPolicy:
    """Whether a file has labels: for all of its samples (-1 for those without one), or for none.

    It has labels if class names are given, or else if its first sample has one.
    """

    def __init__(self, classes: Sequence[str] | None) -> None:
        self._decided = None if classes is None else True

    def is_written(self, key: str, label: int) -> bool:
        """Whether a sample's label is written; ArgumentError if it has one and the first sample had none."""
        if self._decided is None:
            self._decided = label >= 0
        if label >= 0 and not self._decided:
            raise ArgumentError(
                f"sample {key!r} has the label {label}, but the first sample has none. Give `classes`."
            )
        return self._decided


def as_ppm(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels as a binary PPM."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ArgumentError(
            f"expected pixels as uint8 of height × width × 3, got {pixels.dtype} of {pixels.shape}."
        )
    height, width = pixels.shape[:2]
    return b"".join((b"P6\n%d %d\n255\n" % (width, height), np.ascontiguousarray(pixels).data))


def as_bytes(data: Writable) -> bytes:
    """What is stored of a sample: encoded images unchanged, pixels as PPM."""
    return as_ppm(data) if isinstance(data, np.ndarray) else bytes(data)
