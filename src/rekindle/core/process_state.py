"""Whether another process runs, as far as the operating system reports."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from rekindle.core.interrupts import is_interrupt

# Loaded here, as every forked worker would copy what that touches.
_C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended (a zombie has); true where that cannot be found out."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # It exists, and belongs to another user.
        pass
    return _state(pid) != b"Z"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; false where that cannot be found out."""
    return _state(pid) in (b"T", b"t")


def end_with_parent() -> None:
    """Have this process killed when the thread that started it ends, even while it is stopped; on Linux."""
    if _C_LIBRARY is not None:
        set_death_signal = 1  # PR_SET_PDEATHSIG
        _C_LIBRARY.prctl(set_death_signal, signal.SIGKILL)


def _state(pid: int) -> bytes:
    """The letter that Linux shows for a process; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError) as error:
        if is_interrupt(error):
            raise
        return b""
