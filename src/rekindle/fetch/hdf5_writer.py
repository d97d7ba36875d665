"""Writes HDF5 files with h5py: `images`, bytes of variable length, and `labels` beside them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.fetch.atomic import AtomicFile
from rekindle.fetch.writers import as_bytes

_TOGETHER = 64  # samples a write
_CHUNK = 4096  # references, or labels, a chunk


class Hdf5Writer:
    """Samples as entries of data sets that grow; names of classes are an attribute of `labels`."""

    def __init__(self, path: Path, classes: Sequence[str] | None = None) -> None:
        try:
            import h5py
        except ImportError:
            raise ArgumentError("writing HDF5 files needs h5py: pip install 'rekindle[hdf5]'.") from None
        self._h5py: Any = h5py
        self._target = AtomicFile(path)
        self._disk = _Disk(self._target.file.fileno())
        self._file: Any = h5py.File(self._disk, "w")
        grows: dict[str, Any] = {"shape": (0,), "maxshape": (None,), "chunks": (_CHUNK,)}
        self._images = self._file.create_dataset("images", dtype=h5py.vlen_dtype(np.uint8), **grows)
        self._keys = self._file.create_dataset("keys", dtype=h5py.string_dtype(), **grows)
        self._labels = self._file.create_dataset("labels", dtype=np.int64, **grows)
        if classes is not None:
            names = json.dumps(list(classes))
            self._labels.attrs.create("classes", names, dtype=h5py.string_dtype())
        self._waiting: list[tuple[str, bytes, int]] = []

    def add(self, key: str, data: bytes | memoryview | NDArray[np.uint8], label: int) -> None:
        """Add a sample as an entry of each data set."""
        self._waiting.append((key, as_bytes(data), label))
        if len(self._waiting) >= _TOGETHER:
            self._write()

    def _write(self) -> None:
        start, count = len(self._images), len(self._waiting)
        for data in (self._images, self._keys, self._labels):
            data.resize((start + count,))
        if not count:
            return
        contents = np.empty(count, dtype=self._images.dtype)
        for number, (_, content, _) in enumerate(self._waiting):
            contents[number] = np.frombuffer(content, dtype=np.uint8)
        # One call of the library's. Above it, h5py would make a table of contents that are equally long.
        rows = self._images.id.get_space()
        rows.select_hyperslab((start,), (count,))
        self._images.id.write(self._h5py.h5s.create_simple((count,)), rows, contents)
        self._keys[start:] = [key.encode("utf-8", "surrogateescape") for key, _, _ in self._waiting]
        self._labels[start:] = [label for _, _, label in self._waiting]
        self._waiting.clear()
        self._disk.check()

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._write()
        self._file.close()
        self._disk.check()
        self._target.close()

    def abort(self) -> None:
        """Leave nothing behind."""
        if self._target.name:
            self._file.close()
            self._target.abort()


class _Disk(io.RawIOBase):
    """The file as the library writes to it. A full disk would crash the library: it is not told of one.

    What went wrong first is kept instead, for `check` to raise; the file is worth nothing then.
    """

    def __init__(self, file: int) -> None:
        self._file, self._place = file, 0
        self._failure: OSError | None = None

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._failure is not None:
            raise self._failure

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = (0, self._place, os.fstat(self._file).st_size)[whence]
        self._place = start + offset
        return self._place

    def readinto(self, into: Any) -> int:
        count = os.preadv(self._file, [into], self._place)
        self._place += count
        return count

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view) and self._failure is None:
                done += os.pwrite(self._file, view[done:], self._place + done)
        except OSError as error:
            self._failure = error
        self._place += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        length = self._place if size is None else size
        try:
            os.ftruncate(self._file, length)
        except OSError as error:
            self._failure = self._failure or error
        return length
