"""A lock by name among the processes of this user on this host, which the kernel releases when one dies.

It is a socket in Linux's abstract namespace: nothing on disk, nothing left behind. Whoever can bind the name
has the lock. Others connect, which tells them whose it is, and read, which ends when the holder closes it.
Any user can bind any name, so a lock that somebody else holds is not waited for.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_WAIT = 120.0  # seconds: longer than it takes to begin a cache, if the disk is slow
_RETRY = 0.005  # between binding and listening, a holder cannot be connected to
_CREDENTIALS = struct.Struct("iii")  # process, user, group

_held: set[socket.socket] = set()


def _after_fork() -> None:
    """In a forked process: only the process that took a lock holds it."""
    for held in _held:
        held.close()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def host_lock(name: str, wait: float = _WAIT) -> Iterator[bool]:
    """Hold the lock for a block. False is given if it could not be had: the block runs without it then.

    >>> with host_lock("example") as held:
    ...     held
    True
    """
    held = _take(f"\0rekindle-{os.geteuid()}-{name}", time.monotonic() + wait)
    try:
        yield held is not None
    finally:
        if held is not None:
            _held.discard(held)
            held.close()


def _take(address: str, until: float) -> socket.socket | None:
    """The socket that is the lock; None if there are none, if somebody else has it, or it takes too long."""
    while True:
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(address)
            lock.listen(512)
        except OSError as error:
            lock.close()
            if error.errno != errno.EADDRINUSE or not _wait_for_holder(address, until):
                return None
        else:
            _held.add(lock)
            return lock


def _wait_for_holder(address: str, until: float) -> bool:
    """Wait until the holder of a lock has let it go; False if it is somebody else's, or takes too long."""
    left = until - time.monotonic()
    if left <= 0:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
        waiting.settimeout(left)
        try:
            waiting.connect(address)
            _, user, _ = _CREDENTIALS.unpack(
                waiting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if user != os.geteuid():
                return False
            with suppress(ConnectionResetError):
                waiting.recv(1)
        except TimeoutError:
            return False
        except OSError:  # Just let go, or not listening yet.
            time.sleep(_RETRY)
    return True
