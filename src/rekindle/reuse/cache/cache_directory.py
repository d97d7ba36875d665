"""The directory of a disk cache: one for each fingerprint, and for each store that is open at a time.

It is private to the user, so that nobody else can read the samples in it, change them or hold its lock. The
folder that holds the directories may be open to all: what others put there is passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

from rekindle.core.atomic_file import atomic_write
from rekindle.core.directory import PRIVATE, Directory, PrivateDirectory
from rekindle.errors import ArgumentError

_FORMAT = 2
_NAME = re.compile(r"rekindle-([0-9a-f]{24})-([0-9]{1,9})")  # of the fingerprint, and a number
_LOCK = "lock"
# Descriptor and users of each lock. A file lock belongs to the process: two stores of one process share it.
_locked: dict[tuple[int, int], tuple[int, int]] = {}
_guard = threading.Lock()


class CacheDirectory:
    """A directory that no other cache uses, locked as long as a process lives that uses it.

    A second store with the same fingerprint, in this process or another, gets a directory of its own, unless
    it shares the cache: then it joins the directory of that name. Worker processes write to their store's
    directory as well, but do not hold the lock.
    """

    def __init__(self, disk: Path, fingerprint: str, join: str = "") -> None:
        key = hashlib.sha256(f"{_FORMAT} {fingerprint}".encode()).hexdigest()[:24]
        self._owner, self._lock = os.getpid(), -1
        self._base = Directory(disk.resolve())
        try:
            self._base.make()
            self.directory = self._join(join) if join else self._take(key)
        except OSError as error:
            raise ArgumentError(
                f"disk={str(disk)!r} cannot hold a cache: {error}. Give a folder that can be written to."
            ) from error
        if join:
            return
        about = json.dumps({"format": _FORMAT, "fingerprint": fingerprint}).encode()
        with (
            suppress(OSError),  # The disk may be full; only people read this.
            atomic_write("about.json", directory=self.directory, mode=PRIVATE) as file,
        ):
            file.write(about)

    def _take(self, key: str) -> PrivateDirectory:
        """The first directory of this key that can be had, locked; a new one if there is none."""
        matches = [_NAME.fullmatch(name) for name in self._base.names()]
        taken = {int(match[2]) for match in matches if match and match[1] == key}  # Others may plant many.
        for number in sorted(taken):
            directory = PrivateDirectory(f"rekindle-{key}-{number}", self._base)
            with suppress(OSError):  # Somebody else's, or being deleted.
                if directory.is_marked and self._locks(directory):
                    return directory
        for number in count():
            if number in taken:
                continue
            directory = PrivateDirectory(f"rekindle-{key}-{number}", self._base)
            with suppress(FileExistsError):
                self._base.make_folder(directory.path.name, 0o700)
                if directory.make().is_marked and self._locks(directory):
                    return directory
        raise AssertionError("unreachable")

    def _join(self, name: str) -> PrivateDirectory:
        """The directory of a cache that others use. OSError if they do not any more."""
        directory = PrivateDirectory(name, self._base)
        if _NAME.fullmatch(name) is None or not directory.is_marked:
            raise FileNotFoundError(f"{name!r} is no directory of this cache")
        self._lock = _lock_together(directory)
        return directory

    def _locks(self, directory: PrivateDirectory) -> bool:
        self._lock = _lock(directory)
        return self._lock >= 0

    def evict_others(self, limit: int) -> None:
        """Delete the user's caches of other fingerprints, oldest first, while all exceed `limit` bytes."""
        others = [self._candidate(name) for name in self._base.names() if _NAME.fullmatch(name)]
        sizes = {one.path: _size_and_change(one) for one in [*filter(None, others), self.directory]}
        for path in sorted(sizes, key=lambda path: sizes[path][1]):
            if sum(size for size, _ in sizes.values()) <= limit:
                break
            if path != self.directory.path and self._delete(PrivateDirectory(path.name, self._base)):
                del sizes[path]

    def _candidate(self, name: str) -> PrivateDirectory | None:
        """A directory of this user's that Rekindle has made; None for all else."""
        directory = PrivateDirectory(name, self._base)
        try:
            return directory if directory.is_marked else None
        except OSError:
            return None

    def _delete(self, directory: PrivateDirectory) -> bool:
        with suppress(OSError):
            lock = _lock(directory)
            if lock >= 0:
                try:
                    self._base.remove_private(directory.path.name)
                finally:
                    _unlock(directory, lock)
                return True
        return False  # In use.

    def close(self) -> None:
        """Let another store use the directory."""
        if os.getpid() == self._owner and self._lock >= 0:
            _unlock(self.directory, self._lock)
        self._lock = -1

    def __del__(self) -> None:
        self.close()


def _lock(directory: PrivateDirectory) -> int:
    """The descriptor that holds the lock of a directory; -1 if another store holds it. OSError."""
    with _guard:
        if _identity(directory) in _locked:
            return -1
        try:
            fd = directory.lock(_LOCK, by_process=True)
        except BlockingIOError:
            return -1
        directory.share_lock(fd)  # From now on nobody else can have it alone, and others can join.
        _locked[_identity(directory)] = fd, 1
        return fd


def _lock_together(directory: PrivateDirectory) -> int:
    """A descriptor that holds the lock of a directory together with others. OSError."""
    key = _identity(directory)
    with _guard:
        fd, users = _locked.get(key, (-1, 0))
        if not users:
            fd = directory.lock(_LOCK, by_process=True, together=True)
        _locked[key] = fd, users + 1
        return fd


def _unlock(directory: PrivateDirectory, fd: int) -> None:
    key = _identity(directory)
    with _guard:
        _, users = _locked.pop(key, (fd, 1))
        if users > 1:
            _locked[key] = fd, users - 1
        else:
            os.close(fd)


def _identity(directory: PrivateDirectory) -> tuple[int, int]:
    state = os.fstat(directory.descriptor)
    return state.st_dev, state.st_ino


def _size_and_change(directory: PrivateDirectory) -> tuple[int, float]:
    """The bytes of all files, and when the last of them was changed."""
    size, changed = 0, 0.0
    with suppress(OSError):
        for entry in directory.scan():
            with suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                size, changed = size + state.st_size, max(changed, state.st_mtime)
    return size, changed
