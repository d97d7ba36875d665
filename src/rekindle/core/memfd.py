"""Memory that processes share: an anonymous file, so that nothing is left behind after a crash."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray


def anonymous_file(nbytes: int) -> int:
    """The descriptor of a memory file of this size; pages take memory once they are written."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rekindle", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def reserve(fd: int, start: int, nbytes: int) -> None:
    """Allocate the memory of a part of the file: OSError if there is none, instead of a bus error later."""
    if nbytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, nbytes)


def map_file(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """The bytes of the file, mapped into this process."""
    return np.frombuffer(mmap.mmap(fd, nbytes), dtype=np.uint8)
