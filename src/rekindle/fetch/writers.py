"""What `rekindle pack` writes to: one writer a format, atomic, made by `writer_for`.

Encoded images are stored as they are. Pixels (height × width × 3 bytes) are stored as binary PPM, a header of
some fifteen bytes and then the pixels themselves: every tool reads it, and it costs no decoding.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError

# Endings of file names, and the module and class that writes such files.
_WRITERS = {
    ".h5": ("hdf5_writer", "Hdf5Writer"),
    ".hdf5": ("hdf5_writer", "Hdf5Writer"),
    ".tfrecord": ("tfrecord_writer", "TfrecordWriter"),
    ".tfrecords": ("tfrecord_writer", "TfrecordWriter"),
    ".tar": ("tar_writer", "TarWriter"),
    ".lmdb": ("lmdb_writer", "LmdbWriter"),
}
WRITTEN_ENDINGS = tuple(_WRITERS)


class Writer(Protocol):
    """Takes samples one by one. Nothing is at the path until `close`, then all of it is (or `abort`)."""

    def add(self, key: str, data: bytes | memoryview | NDArray[np.uint8], label: int) -> None:
        """Add a sample: an encoded image, or pixels (height × width × 3 bytes); -1 is no label."""

    def close(self) -> None:
        """Finish the file and give it its name."""

    def abort(self) -> None:
        """Leave nothing behind; does nothing after `close`."""


def writer_for(path: str | os.PathLike[str], classes: Sequence[str] | None = None) -> Writer:
    """A writer for the format that the name ends in; `classes` are the names of the labels.

    Without `classes`, the first sample says whether there are labels.
    """
    target = Path(path)
    if target.suffix.lower() not in _WRITERS:
        raise ArgumentError(
            f"cannot tell a format from {str(path)!r}. Let the name end in {', '.join(WRITTEN_ENDINGS)}."
        )
    module, name = _WRITERS[target.suffix.lower()]
    made: Any = getattr(importlib.import_module(f"rekindle.fetch.{module}"), name)(target, classes)
    writer: Writer = made
    return writer


class Labelling:
    """Whether a file has labels: all of its samples do then, those without one -1, or none does.

    It has if there are names of classes, or else if its first sample has a label.
    """

    def __init__(self, classes: Sequence[str] | None) -> None:
        self._decided = None if classes is None else True

    def is_written(self, key: str, label: int) -> bool:
        """Whether a sample's label is written; ArgumentError if it has one and the first had none."""
        if self._decided is None:
            self._decided = label >= 0
        if label >= 0 and not self._decided:
            raise ArgumentError(
                f"the sample {key!r} has the label {label}, but the first has none. Name the classes."
            )
        return self._decided


def as_ppm(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels behind the header of a binary PPM."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ArgumentError(
            f"pixels are {pixels.dtype} {pixels.shape}. Give bytes (uint8), height × width × 3."
        )
    height, width = pixels.shape[:2]
    return b"".join((b"P6\n%d %d\n255\n" % (width, height), np.ascontiguousarray(pixels).data))


def as_bytes(data: bytes | memoryview | NDArray[np.uint8]) -> bytes:
    """A sample as what is stored: encoded images as they are, pixels as PPM."""
    return as_ppm(data) if isinstance(data, np.ndarray) else bytes(data)
