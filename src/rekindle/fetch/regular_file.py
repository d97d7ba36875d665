"""Opening files that strangers may have named: only regular ones, so that no open or read ever waits."""

from __future__ import annotations

import os
import stat

from rekindle.core.interrupts import is_interrupt
from rekindle.errors import DataError, DataNotFoundError

# To open a FIFO or a device would wait without the first; a terminal must not become ours, hence the second.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KIND = 0o170000  # the bits that `stat.S_IFMT` leaves
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: str | bytes) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, or of one that a link leads to, and its state; DataError if it is none.

    The state is that of the opened file, whatever its path names by now.
    """
    file = os.open(path, _FLAGS)
    try:
        state = os.fstat(file)
        check_regular(path, state)
    except BaseException:
        os.close(file)
        raise
    return file, state


def unreadable(message: str, error: OSError) -> DataError:
    """The error to raise where a file cannot be read: if there is none, also a FileNotFoundError."""
    if is_interrupt(error):
        raise error
    return DataNotFoundError(message) if isinstance(error, FileNotFoundError) else DataError(message)


def check_regular(path: str | bytes, state: os.stat_result) -> None:
    """DataError if the state is not that of a regular file."""
    if state.st_mode & _KIND != stat.S_IFREG:  # Not by a call: this is done for every sample.
        kind = _KINDS.get(stat.S_IFMT(state.st_mode), "something else")
        raise DataError(f"{os.fsdecode(path)!r} is {kind}, not a regular file. Remove it, or name another.")
