"""Caches ranges of remote objects on the local disk: bounded, checksummed, shared by processes, no lock.

Each range is a file of its own, written atomically, with a checksum. A full cache accepts nothing more:
training reads everything once an epoch, in another order each time, so evicting one sample for another only
costs writes (the reasoning of CoorDL's MinIO cache, VLDB'21). Only what is of no more use is evicted: ranges
of objects that have changed, and then the datasets that were least recently opened.

The directory is private to the user: a checksum finds damage, not what somebody else has put there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.core.atomic_file import atomic_write
from rekindle.core.directory import PRIVATE, Directory, PrivateDirectory
from rekindle.core.interrupts import is_interrupt

_CHECKSUM = 4  # bytes, before the data
_BLOCK = 4096  # what a file takes on disk is a multiple of it
_GRANT = (
    16  # a process may write 1/16 of the free space before it counts again: 16 of them cannot overfill it
)
_FULL = 256  # with less than 1/256 of the limit free, the cache is full
_ABANDONED = 3600.0  # seconds after which a half-written file has no writer any more
_DEFAULT_BYTES = 32 << 30
_DATASET = re.compile(r"[0-9a-f]{32}")  # the name of a dataset's folder


def default_max_bytes(cache: PrivateDirectory) -> int:
    """32 GiB, or half of the free disk space if that is less."""
    directory = cache.path
    while not directory.exists():
        directory = directory.parent
    return min(_DEFAULT_BYTES, shutil.disk_usage(directory).free // 2)


class VersionSet:
    """A set of object versions, 16 hexadecimal digits each, in 8 bytes each."""

    def __init__(self, versions: Iterable[str]) -> None:
        self._sorted: NDArray[np.uint64] = np.unique(
            np.fromiter((int(one, 16) for one in versions), dtype=np.uint64)
        )

    def __contains__(self, version: str) -> bool:
        number = np.uint64(int(version, 16))
        position = int(np.searchsorted(self._sorted, number))
        return position < len(self._sorted) and bool(self._sorted[position] == number)


@dataclass(frozen=True)
class RangeCacheConfig:
    """Where the ranges of one dataset are cached, and how much all datasets together may take."""

    directory: PrivateDirectory  # of all datasets
    max_bytes: int  # of all datasets
    dataset: str  # the name of this one
    current: VersionSet  # versions of its objects; ranges of others are evicted first


class RangeCache:
    """One process's view of the cache of a dataset, in a directory that others use as well."""

    def __init__(self, config: RangeCacheConfig) -> None:
        self.directory, self.max_bytes = config.directory, config.max_bytes
        name = hashlib.sha256(config.dataset.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._folder = PrivateDirectory(name, config.directory)
        self._current = config.current
        self._granted = 0
        self._full = config.max_bytes <= 0
        self._lock = threading.Lock()
        self._created: set[str] = set()  # buckets
        if self.max_bytes > 0:
            with contextlib.suppress(OSError):
                os.utime(self._folder.make().descriptor)

    def get(self, version: str, offset: int, length: int) -> bytes | None:
        """A range, if it is cached and undamaged."""
        path = _name(version, offset, length)
        try:
            file = self._folder.open(path)
        except OSError:
            return None
        try:
            checksum, data = os.read(file, _CHECKSUM), _read_all(file, length + 1)
        except OSError as error:
            if is_interrupt(error):
                raise
            return None
        finally:
            os.close(file)
        if len(data) == length and zlib.crc32(data).to_bytes(_CHECKSUM, "little") == checksum:
            return data
        with contextlib.suppress(OSError):
            self._folder.remove(path)
        return None

    def put(self, version: str, offset: int, data: bytes) -> None:
        """Cache a range, if there is room. Failing to do so is harmless."""
        if self._full or not self._take_room(_on_disk(len(data))):
            return
        path = _name(version, offset, len(data))
        bucket = path.partition("/")[0]
        try:
            if bucket not in self._created:
                with contextlib.suppress(FileExistsError):
                    self._folder.make_folder(bucket, 0o700)
                self._created.add(bucket)
            with atomic_write(path, directory=self._folder, mode=PRIVATE) as file:
                file.write(zlib.crc32(data).to_bytes(_CHECKSUM, "little"))
                file.write(data)
        except OSError as error:  # The disk is full, say, or somebody has cleared the cache.
            if is_interrupt(error):
                raise
            self._created.clear()
            with contextlib.suppress(OSError):
                self._folder = self._folder.again().make()

    # Room.

    def _take_room(self, nbytes: int) -> bool:
        with self._lock:
            if nbytes > self._granted and not self._full:
                self._count(nbytes)
            if self._full or nbytes > self._granted:
                return False
            self._granted -= nbytes
            return True

    def _count(self, nbytes: int) -> None:
        """Measure the free space, and make room if there is none; full if that does not help."""
        free = self.max_bytes - sum(size for _, size in _entries(self.directory))
        if free < max(self.max_bytes // _FULL, nbytes * _GRANT):
            free += self._evict(self.max_bytes // 4)
        self._full = free < max(self.max_bytes // _FULL, nbytes)
        self._granted = max(free // _GRANT, nbytes if free >= nbytes * _GRANT else 0)
        self._full = self._full or self._granted < nbytes

    def _evict(self, wanted: int) -> int:
        """Remove what will not be read again; returns the bytes that it took."""
        freed = 0
        for path, size in _entries(self._folder):
            if os.path.basename(path).partition("-")[0] not in self._current:
                freed += _remove(self._folder, path, size)
        for name in self._older_datasets():
            if freed >= wanted:
                break
            with contextlib.suppress(OSError):
                size = sum(size for _, size in _entries(PrivateDirectory(name, self.directory)))
                self.directory.remove_private(name)
                freed += size
        return freed

    def _older_datasets(self) -> list[str]:
        """The folders of datasets opened before this one, least recently opened first."""
        try:
            own = os.fstat(self._folder.descriptor).st_mtime_ns
            others = []
            for name in self.directory.names():
                state = self.directory.stat(name) if _DATASET.fullmatch(name) else None
                if state is not None:
                    others.append((state.st_mtime_ns, name))
        except OSError:
            return []
        return [name for when, name in sorted(others) if name != self._folder.path.name and when < own]


def _name(version: str, offset: int, length: int) -> str:
    """The file of a range, in one of 256 folders."""
    name = f"{version}-{offset:x}-{length:x}"
    return f"{zlib.crc32(name.encode()) & 0xFF:02x}/{name}"


def _entries(top: Directory) -> Iterator[tuple[str, int]]:
    """All cached ranges below a folder, with what they take on disk; removes abandoned half-written files."""
    pending = ["."]
    while pending:
        folder = pending.pop()
        try:
            for entry in top.scan(folder):
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif entry.name.endswith(".part"):
                    _remove_abandoned(top, path)
                elif entry.name.count("-") == 2:
                    yield path, _on_disk(int(entry.name.rpartition("-")[2], 16))
        except (OSError, ValueError):
            continue


def _on_disk(length: int) -> int:
    return -(-(length + _CHECKSUM) // _BLOCK) * _BLOCK


def _remove(folder: Directory, path: str, size: int) -> int:
    try:
        folder.remove(path)
    except OSError:
        return 0
    return size


def _remove_abandoned(folder: Directory, path: str) -> None:
    with contextlib.suppress(OSError):
        state = folder.stat(path)
        if state is not None and state.st_mtime < time.time() - _ABANDONED:
            folder.discard(path)


def _read_all(file: int, most: int) -> bytes:
    data = os.read(file, most)
    parts = [data]
    while parts[-1] and (most := most - len(parts[-1])) > 0:
        parts.append(os.read(file, most))
    return data if len(parts) == 1 else b"".join(parts)
