"""What was read from afar, kept on the local disk: bounded, checksummed, shared by processes without a lock.

Each range is a file of its own that is whole or not there, and holds a checksum. A cache that is full takes
nothing more: training reads everything once an epoch, in another order each time, and to evict one sample
for another only costs writes (the reasoning of CoorDL's MinIO cache, VLDB'21). Room is made only by what is
of no more use: ranges of objects that have changed, and data sets that were not opened for longest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CHECKSUM = 4  # bytes, before the data
_BLOCK = 4096  # what a file takes on disk is a multiple of it
_GRANT = 16  # a process may write a 16th of what is free before it counts again: 16 of them cannot overfill
_FULL = 256  # less than a 256th of the bound free is full
_ABANDONED = 3600.0  # seconds after which a half-written file has no writer any more
_DEFAULT_BYTES = 32 << 30


def cache_directory() -> Path:
    """Where the user's caches lie."""
    named = os.environ.get("XDG_CACHE_HOME")
    return Path(named or Path.home() / ".cache") / "rekindle"


def default_bound(directory: Path) -> int:
    """32 GiB, or half of what the disk has free, if that is less."""
    while not directory.exists():
        directory = directory.parent
    return min(_DEFAULT_BYTES, shutil.disk_usage(directory).free // 2)


class Versions:
    """Many versions of objects, 16 hexadecimal digits each, in little memory."""

    def __init__(self, versions: Iterable[str]) -> None:
        self._sorted: NDArray[np.uint64] = np.unique(
            np.fromiter((int(one, 16) for one in versions), dtype=np.uint64)
        )

    def __contains__(self, version: str) -> bool:
        number = np.uint64(int(version, 16))
        place = int(np.searchsorted(self._sorted, number))
        return place < len(self._sorted) and bool(self._sorted[place] == number)


@dataclass(frozen=True)
class Shelf:
    """Where the ranges of one data set are kept.

    `directory` is that of all shelves, `bound` what they may take on disk together, `name` what the data set
    is called, and `current` the versions of its objects as they are now: ranges of others make room.
    """

    directory: Path
    bound: int
    name: str
    current: Versions


class RangeCache:
    """One process's view of a shelf, in a directory that others use as well."""

    def __init__(self, shelf: Shelf) -> None:
        self.directory, self.bound = shelf.directory, shelf.bound
        self._shelf = shelf.directory / hashlib.sha256(shelf.name.encode()).hexdigest()[:32]
        self._current = shelf.current
        self._granted = 0
        self._full = shelf.bound <= 0
        self._lock = threading.Lock()
        self._made: set[int] = set()
        if self.bound > 0:
            with contextlib.suppress(OSError):
                self._shelf.mkdir(parents=True, exist_ok=True)
                os.utime(self._shelf)

    def get(self, version: str, offset: int, length: int) -> bytes | None:
        """A range, if it is there and whole."""
        path = self._path(version, offset, length)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            checksum, data = os.read(file, _CHECKSUM), _read_all(file, length + 1)
        except OSError:
            return None
        finally:
            os.close(file)
        if len(data) == length and zlib.crc32(data).to_bytes(_CHECKSUM, "little") == checksum:
            return data
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None

    def put(self, version: str, offset: int, data: bytes) -> None:
        """Keep a range, if there is room. Not being able to does no harm."""
        if self._full or not self._take_room(_on_disk(len(data))):
            return
        path = self._path(version, offset, len(data))
        folder, _, name = path.rpartition("/")
        part = f"{folder}/.{os.getpid()}-{threading.get_ident()}-{name}"
        try:
            if self._bucket(name) not in self._made:
                os.makedirs(folder, exist_ok=True)
                self._made.add(self._bucket(name))
            with open(part, "wb") as file:
                file.write(zlib.crc32(data).to_bytes(_CHECKSUM, "little"))
                file.write(data)
            os.replace(part, path)
        except OSError:  # The disk is full, say, or somebody has cleared the cache.
            self._made.clear()
            with contextlib.suppress(OSError):
                os.unlink(part)

    def _path(self, version: str, offset: int, length: int) -> str:
        name = f"{version}-{offset:x}-{length:x}"
        return f"{self._shelf}/{self._bucket(name):02x}/{name}"

    @staticmethod
    def _bucket(name: str) -> int:
        return zlib.crc32(name.encode()) & 0xFF

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
        """See what is free, and make room if nothing is; full if that does not help."""
        free = self.bound - sum(size for _, size in _entries(self.directory))
        if free < max(self.bound // _FULL, nbytes * _GRANT):
            free += self._make_room(self.bound // 4)
        self._full = free < max(self.bound // _FULL, nbytes)
        self._granted = max(free // _GRANT, nbytes if free >= nbytes * _GRANT else 0)
        self._full = self._full or self._granted < nbytes

    def _make_room(self, wanted: int) -> int:
        """Remove what nobody will ask for; returns the bytes that it took."""
        made = 0
        for path, size in _entries(self._shelf):
            if os.path.basename(path).partition("-")[0] not in self._current:
                made += _remove(path, size)
        for shelf in self._other_shelves():
            if made >= wanted:
                break
            made += sum(_remove(path, size) for path, size in _entries(shelf))
            shutil.rmtree(shelf, ignore_errors=True)
        return made

    def _other_shelves(self) -> list[Path]:
        """Those opened before ours was, the one not opened for longest first."""
        try:
            own = self._shelf.stat().st_mtime_ns
            others = [(path.stat().st_mtime_ns, path) for path in self.directory.iterdir() if path.is_dir()]
        except OSError:
            return []
        return [path for when, path in sorted(others) if path != self._shelf and when < own]


def _entries(top: Path) -> Iterator[tuple[str, int]]:
    """All ranges below, with what they take on disk; half-written files that nobody writes are removed."""
    waiting = [str(top)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.name.startswith("."):
                        _remove_abandoned(entry.path)
                    elif entry.name.count("-") == 2:
                        yield entry.path, _on_disk(int(entry.name.rpartition("-")[2], 16))
        except (OSError, ValueError):
            continue


def _on_disk(length: int) -> int:
    return -(-(length + _CHECKSUM) // _BLOCK) * _BLOCK


def _remove(path: str, size: int) -> int:
    try:
        os.unlink(path)
    except OSError:
        return 0
    return size


def _remove_abandoned(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.stat(path).st_mtime < time.time() - _ABANDONED:
            os.unlink(path)


def _read_all(file: int, most: int) -> bytes:
    data = os.read(file, most)
    parts = [data]
    while parts[-1] and (most := most - len(parts[-1])) > 0:
        parts.append(os.read(file, most))
    return data if len(parts) == 1 else b"".join(parts)
