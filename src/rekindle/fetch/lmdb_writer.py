"""Writes LMDB folders of Caffe's `Datum` messages: an encoded image and its label."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.fetch.atomic import AtomicFolder
from rekindle.fetch.image_kinds import BEGINNINGS
from rekindle.fetch.lmdb_index import CLASSES
from rekindle.fetch.record_index import NO_LABEL
from rekindle.fetch.wire import encoded_bytes, encoded_number
from rekindle.fetch.writers import as_bytes

_MAP = 1 << 28  # bytes at first; doubled whenever it is full
_TOGETHER = 256  # samples a transaction
_MOST_KEY = 511  # bytes, LMDB's own limit
_LITTLE_ROOM = 1 << 20  # bytes on a disk that is full


class LmdbWriter:
    """Samples by their order and key; images without a label are stored as they are, without a `Datum`.

    That is, those that are known by their first bytes: others would not be found again.
    """

    def __init__(self, path: Path, classes: Sequence[str] | None = None) -> None:
        try:
            import lmdb
        except ImportError:
            raise ArgumentError("writing LMDB files needs lmdb: pip install 'rekindle[lmdb]'.") from None
        self._lmdb: Any = lmdb
        self._target = AtomicFolder(path)
        self._size = _MAP
        with self._said_as_by_the_system():
            self._database: Any = lmdb.open(
                self._target.name, map_size=self._size, sync=False, metasync=False, lock=False
            )
        self._waiting: list[tuple[bytes, bytes]] = []
        self._count = 0
        if classes is not None:
            self._waiting.append((CLASSES, json.dumps(list(classes)).encode()))

    def add(self, key: str, data: bytes | memoryview | NDArray[np.uint8], label: int) -> None:
        """Add a sample; a number before its key keeps the order."""
        content = as_bytes(data)
        if label != NO_LABEL or not content.startswith(BEGINNINGS):
            content = encoded_bytes(4, content) + encoded_number(5, label) + encoded_number(7, 1)
        name = f"{self._count:08d}_{key}".encode("utf-8", "surrogateescape")[:_MOST_KEY]
        self._waiting.append((name, content))
        self._count += 1
        if len(self._waiting) >= _TOGETHER:
            self._write()

    def _write(self) -> None:
        while self._waiting:
            try:
                with self._said_as_by_the_system(), self._database.begin(write=True) as transaction:
                    for key, value in self._waiting:
                        transaction.put(key, value)
                self._waiting.clear()
            except self._lmdb.MapFullError:
                self._size *= 2
                self._database.set_mapsize(self._size)

    @contextmanager
    def _said_as_by_the_system(self) -> Iterator[None]:
        """Errors of the library's own kind as the system has them; of a full disk it says too little."""
        try:
            yield
        except self._lmdb.MapFullError:
            raise
        except self._lmdb.Error as error:
            room = os.statvfs(self._target.name)
            if room.f_bavail * room.f_frsize < _LITTLE_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise OSError(errno.EIO, str(error)) from error

    def close(self) -> None:
        """Finish the folder and give it its name."""
        self._write()
        with self._said_as_by_the_system():
            self._database.sync(True)
        self._database.close()
        lock = os.path.join(self._target.name, "lock.mdb")
        if os.path.exists(lock):
            os.unlink(lock)
        self._target.close()

    def abort(self) -> None:
        """Leave nothing behind."""
        if self._target.name:
            self._database.close()
            self._target.abort()
