"""Writes LMDB folders of Caffe's `Datum` messages: an encoded image and its label."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rekindle.core.atomic_file import AtomicFolder
from rekindle.core.directory import OUTPUT, Directory
from rekindle.errors import MissingPackageError
from rekindle.fetch.image_signatures import SIGNATURES
from rekindle.fetch.packed.lmdb.index import CLASSES
from rekindle.fetch.packed.protobuf import encode_bytes, encode_integer
from rekindle.fetch.packed.record_index import NO_LABEL
from rekindle.fetch.packed.writers import Writable, as_bytes

if TYPE_CHECKING:
    import lmdb

_MAP_SIZE = 1 << 28  # bytes at first; doubled whenever it is full
_SAMPLES_PER_TRANSACTION = 256
_MAX_KEY = 511  # bytes, LMDB's limit
FILES = ("data.mdb", "lock.mdb", "data.mdb*.rkindex")  # all that is in a folder of LMDB's, index included
_DISK_FULL = 1 << 20  # free bytes below which an error is taken for a full disk


class LmdbWriter:
    """Samples by their order and key.

    An image without a label is stored without a `Datum`, if its signature is known: otherwise a reader could
    not tell that it is an image.
    """

    def __init__(
        self, path: Path, classes: Sequence[str] | None = None, directory: Directory | None = None
    ) -> None:
        try:
            import lmdb
        except ImportError:
            raise MissingPackageError(
                "writing LMDB files needs lmdb: pip install 'rekindle[lmdb]'."
            ) from None
        self._target = AtomicFolder(path, directory=directory, files=FILES)
        self._size = _MAP_SIZE
        self._map_full: type[Exception] = lmdb.MapFullError
        self._error: type[Exception] = lmdb.Error
        with self._as_os_error():
            self._database: lmdb.Environment = lmdb.open(
                self._target.part.path_for_libraries,
                map_size=self._size,
                mode=OUTPUT,
                sync=False,
                metasync=False,
                lock=False,
            )
        self._pending: list[tuple[bytes, bytes]] = []
        self._count = 0
        if classes is not None:
            self._pending.append((CLASSES, json.dumps(list(classes)).encode()))

    def add(self, key: str, data: Writable, label: int) -> None:
        """Add a sample; a number before its key keeps samples in order."""
        content = as_bytes(data)
        if label != NO_LABEL or not content.startswith(SIGNATURES):
            content = encode_bytes(4, content) + encode_integer(5, label) + encode_integer(7, 1)
        name = f"{self._count:08d}_{key}".encode("utf-8", "surrogateescape")[:_MAX_KEY]
        self._pending.append((name, content))
        self._count += 1
        if len(self._pending) >= _SAMPLES_PER_TRANSACTION:
            self._write()

    def _write(self) -> None:
        while self._pending:
            try:
                with self._as_os_error(), self._database.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value)
                self._pending.clear()
            except self._map_full:
                self._size *= 2
                self._database.set_mapsize(self._size)

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        """Raise the library's errors as OSError; of a full disk it does not report the reason."""
        try:
            yield
        except self._map_full:
            raise
        except self._error as error:
            room = os.fstatvfs(self._target.part.descriptor)
            if room.f_bavail * room.f_frsize < _DISK_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise OSError(errno.EIO, str(error)) from error

    def close(self) -> None:
        """Finish the folder and give it its name."""
        self._write()
        with self._as_os_error():
            self._database.sync(True)
        self._database.close()
        self._target.part.discard("lock.mdb")
        self._target.commit()

    def abort(self) -> None:
        """Remove what was written; does nothing after `close`."""
        if self._target.is_open:
            self._database.close()
            self._target.abort()
