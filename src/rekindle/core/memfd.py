"""Memory that processes share: an anonymous file, so that nothing is left behind after a crash.

Processes that were not started by each other find such memory by a name, among the open files of the same
user's processes. It lives as long as one of them has it open, however they end.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.core.interrupts import is_interrupt

_OWN = "rekindle"
CAN_BE_FOUND = (
    hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS") and os.path.isdir("/proc/self/fd")
)


def anonymous_file(nbytes: int, name: str = "") -> int:
    """The descriptor of a memory file of this size; pages take memory once they are written.

    One with a name can be found by other processes of this user (`find_memory_files`), and its size cannot
    be changed any more.
    """
    if hasattr(os, "memfd_create"):
        flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if name else 0)
        fd = os.memfd_create(f"{_OWN}-{name}" if name else _OWN, flags)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
        if name:
            os.fchmod(fd, 0o600)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _seals())
    except OSError:
        os.close(fd)
        raise
    return fd


def _seals() -> int:
    """Nobody can make a file smaller or larger: reading it never ends in a bus error."""
    return int(fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


class MemoryFile(NamedTuple):
    """A memory file that a process has open: where, and which file it is."""

    path: str
    pid: int
    identity: tuple[int, int]

    def open(self) -> int | None:
        """A descriptor of it; None if it is gone, or not a file that `anonymous_file` of this user made."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        with suppress(OSError):
            state = os.fstat(fd)
            own = state.st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) == 0o600
            if own and identity(state) == self.identity and fcntl.fcntl(fd, fcntl.F_GET_SEALS) == _seals():
                return fd
        os.close(fd)
        return None


def identity(state: os.stat_result) -> tuple[int, int]:
    """What tells a file from all others of the machine."""
    return state.st_dev, state.st_ino


def memory_file_at(pid: int, fd: int, name: str) -> MemoryFile | None:
    """The memory file of a name that a process has open under this number; None if it has none there."""
    path = f"/proc/{pid}/fd/{fd}"
    with suppress(OSError):
        if os.readlink(path) == _target(name):
            return MemoryFile(path, pid, identity(os.stat(path)))
    return None


def _target(name: str) -> str:
    return f"/memfd:{_OWN}-{name} (deleted)"


def find_memory_files(name: str) -> Iterator[MemoryFile]:
    """The memory files of a name that processes of this user have open, each once."""
    target, seen = _target(name), set()
    for pid in os.listdir("/proc") if CAN_BE_FOUND else []:
        for path in _open_files(pid):
            try:
                key = identity(os.stat(path)) if os.readlink(path) == target else None
            except OSError as error:  # It was closed meanwhile.
                if is_interrupt(error):
                    raise
                continue
            if key is not None and key not in seen:
                seen.add(key)
                yield MemoryFile(path, int(pid), key)


def _open_files(pid: str) -> list[str]:
    """The descriptors of a process; none if it has ended, belongs to somebody else, or is no process."""
    try:
        if not pid.isdecimal() or os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return []
        return [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError as error:
        if is_interrupt(error):
            raise
        return []


def reserve(fd: int, start: int, nbytes: int) -> None:
    """Allocate the memory of a part of the file: OSError if there is none, instead of a bus error later."""
    if nbytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, nbytes)


def map_file(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """The bytes of the file, mapped into this process."""
    # Without a copy of the descriptor, where Python can: closing that would release the process's locks.
    options: dict[str, bool] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    return np.frombuffer(mmap.mmap(fd, nbytes, **options), dtype=np.uint8)
