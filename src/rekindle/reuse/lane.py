"""The folder of a disk cache: one for each fingerprint, and one for each store that is open at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from rekindle.errors import ArgumentError

_FORMAT = 1
_MOST_LANES = 1024
_held: set[str] = set()  # The lock on a file does not tell apart two stores of the same process.
_guard = threading.Lock()


class Lane:
    """A folder that no other store uses, locked for as long as the process that made it lives.

    A second store with the same fingerprint, in this process or another, gets a folder of its own. Worker
    processes write to it as well, but do not hold the lock.
    """

    def __init__(self, disk: Path, fingerprint: str) -> None:
        name = hashlib.sha256(f"{_FORMAT} {fingerprint}".encode()).hexdigest()[:24]
        self._owner, self._lock = os.getpid(), -1
        try:
            disk.mkdir(parents=True, exist_ok=True)
            for number in range(_MOST_LANES):
                self.folder = (disk / f"{name}-{number}").resolve()
                self._lock = _lock(self.folder)
                if self._lock >= 0:
                    break
            else:
                raise OSError(f"{_MOST_LANES} stores with this fingerprint are open already")
        except OSError as error:
            raise ArgumentError(
                f"disk={str(disk)!r} cannot hold a cache: {error}. Give a folder that can be written to."
            ) from error
        about = {"format": _FORMAT, "fingerprint": fingerprint}
        with suppress(OSError):  # The disk may be full; only people read this.
            (self.folder / "about.json").write_text(json.dumps(about))

    def make_room(self, limit: int) -> None:
        """Remove caches of other fingerprints, oldest first, as far as all of them take more than `limit`."""
        others = [path for path in self.folder.parent.glob("*-*") if path != self.folder]
        others = [path for path in others if (path / "lock").exists()]
        sizes = {path: _bytes_in(path) for path in [*others, self.folder]}
        for path in sorted(others, key=lambda path: _changed(path)):
            if sum(sizes.values()) <= limit:
                break
            lock = _lock(path)
            if lock < 0:
                continue  # In use.
            shutil.rmtree(path, ignore_errors=True)
            _unlock(path, lock)
            del sizes[path]

    def close(self) -> None:
        """Let another store have the folder."""
        if os.getpid() == self._owner and self._lock >= 0:
            _unlock(self.folder, self._lock)
        self._lock = -1

    def __del__(self) -> None:
        self.close()


def _lock(folder: Path) -> int:
    """The descriptor that holds the lock of a folder; -1 if someone else has it. OSError."""
    folder.mkdir(exist_ok=True)
    with _guard:
        if str(folder) in _held:
            return -1
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return -1
        except OSError:
            os.close(fd)
            raise
        _held.add(str(folder))
        return fd


def _unlock(folder: Path, fd: int) -> None:
    with _guard:
        _held.discard(str(folder))
        os.close(fd)


def _bytes_in(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                total += entry.stat().st_size
    return total


def _changed(folder: Path) -> float:
    try:
        return max(entry.stat().st_mtime for entry in os.scandir(folder))
    except (OSError, ValueError):
        return 0.0
