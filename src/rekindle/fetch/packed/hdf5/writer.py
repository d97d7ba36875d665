"""Writes HDF5 files with h5py: `images` of variable length, and `keys` and `labels` beside them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rekindle.core.atomic_file import AtomicFile
from rekindle.core.directory import Directory
from rekindle.errors import MissingPackageError
from rekindle.fetch.packed.writers import Writable, as_bytes

if TYPE_CHECKING:
    import h5py
    from _typeshed import ReadableBuffer, WriteableBuffer

_SAMPLES_PER_WRITE = 64
_CHUNK = 4096  # references, or labels, a chunk


class Hdf5Writer:
    """Samples as entries of datasets that grow; class names are an attribute of `labels`."""

    def __init__(
        self, path: Path, classes: Sequence[str] | None = None, directory: Directory | None = None
    ) -> None:
        try:
            import h5py
        except ImportError:
            raise MissingPackageError(
                "writing HDF5 files needs h5py: pip install 'rekindle[hdf5]'."
            ) from None
        self._target = AtomicFile(path, directory=directory)
        self._disk = _Disk(self._target.file.fileno())
        self._file = h5py.File(self._disk, "w")
        self._create_simple = h5py.h5s.create_simple
        self._images = self._growing("images", h5py.vlen_dtype(np.uint8))
        self._keys = self._growing("keys", h5py.string_dtype())
        self._labels = self._growing("labels", np.dtype(np.int64))
        if classes is not None:
            names = json.dumps(list(classes))
            self._labels.attrs.create("classes", names, dtype=h5py.string_dtype())
        self._pending: list[tuple[str, bytes, int]] = []

    def _growing(self, name: str, dtype: np.dtype[np.generic]) -> h5py.Dataset:
        return self._file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(_CHUNK,))

    def add(self, key: str, data: Writable, label: int) -> None:
        """Add a sample as an entry of each dataset."""
        self._pending.append((key, as_bytes(data), label))
        if len(self._pending) >= _SAMPLES_PER_WRITE:
            self._write()

    def _write(self) -> None:
        start, count = len(self._images), len(self._pending)
        for data in (self._images, self._keys, self._labels):
            data.resize((start + count,))
        if not count:
            return
        contents = np.empty(count, dtype=self._images.dtype)
        for number, (_, content, _) in enumerate(self._pending):
            contents[number] = np.frombuffer(content, dtype=np.uint8)
        # h5py's own assignment would turn contents of equal length into a 2-D array.
        rows = self._images.id.get_space()
        rows.select_hyperslab((start,), (count,))
        self._images.id.write(self._create_simple((count,)), rows, contents)
        self._keys[start:] = [key.encode("utf-8", "surrogateescape") for key, _, _ in self._pending]
        self._labels[start:] = [label for _, _, label in self._pending]
        self._pending.clear()
        self._disk.check()

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._write()
        self._file.close()
        self._disk.check()
        self._target.commit()

    def abort(self) -> None:
        """Remove what was written; does nothing after `close`."""
        if self._target.is_open:
            self._file.close()
            self._target.abort()


class _Disk(io.RawIOBase):
    """The file that the library writes to. An error of a write would crash the library, so it sees none.

    The first error is kept instead, for `check` to raise; the file is useless then.
    """

    def __init__(self, file: int) -> None:
        self._file, self._position = file, 0
        self._failure: OSError | None = None

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self._failure is not None:
            raise self._failure

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = (0, self._position, os.fstat(self._file).st_size)[whence]
        self._position = start + offset
        return self._position

    def readinto(self, into: WriteableBuffer) -> int:
        count = os.preadv(self._file, [into], self._position)
        self._position += count
        return count

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view) and self._failure is None:
                done += os.pwrite(self._file, view[done:], self._position + done)
        except OSError as error:
            self._failure = error
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        length = self._position if size is None else size
        try:
            os.ftruncate(self._file, length)
        except OSError as error:
            self._failure = self._failure or error
        return length
