"""Memory that all workers of a store see, and the one lock that its writers take."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from contextlib import suppress
from multiprocessing.reduction import DupFd
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import OutOfMemoryError
from rekindle.memory_file import anonymous_file, map_file, reserve

_PAGE = 4096
Field = tuple[str, type[np.generic], int]  # name, type, number of elements


class SharedLock:
    """One writer at a time, among threads and processes; a killed process holds nothing.

    The lock on the file is the process's own: the kernel takes it back when the process ends, however it
    ends. It does not tell threads apart, so there is a lock for them in front of it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._threads = threading.Lock()
        _locks.add(self)

    def forked(self) -> None:
        """In a new process, where a thread that held the lock does not exist."""
        self._threads = threading.Lock()

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
        finally:
            self._threads.release()


_locks: weakref.WeakSet[SharedLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.forked()


os.register_at_fork(after_in_child=_after_fork)


class SharedMemory:
    """Named arrays, zero at first, and after them a heap whose pages are taken when they are asked for.

    Travels to worker processes as a descriptor, by fork or with what a spawned process is started with.
    """

    def __init__(self, fields: list[Field], heap: int, fd: int = -1) -> None:
        self._fields, self._heap = fields, heap
        starts, end = [], 0
        for _, kind, count in fields:
            starts.append(end)
            end += -(-np.dtype(kind).itemsize * count // 64) * 64
        self._heap_start = -(-end // _PAGE) * _PAGE
        self.fd = self._make() if fd < 0 else fd
        memory = map_file(self.fd, self._heap_start + heap)
        self.arrays: dict[str, NDArray[Any]] = {}
        for (name, kind, count), start in zip(fields, starts, strict=True):
            nbytes = np.dtype(kind).itemsize * count
            self.arrays[name] = memory[start : start + nbytes].view(kind)
        self.heap = memory[self._heap_start :]
        self.lock = SharedLock(self.fd)

    def _make(self) -> int:
        fd = -1
        try:
            fd = anonymous_file(self._heap_start + self._heap)
            reserve(fd, 0, self._heap_start)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise OutOfMemoryError(
                f"no memory for the directory of a cache, {self._heap_start / 2**20:.1f} MiB: "
                f"{error.strerror}. Train without reuse, or raise the memory limit of this process."
            ) from error
        return fd

    def reserve_heap(self, start: int, nbytes: int) -> bool:
        """Take memory for a part of the heap; False if there is none."""
        try:
            reserve(self.fd, self._heap_start + start, nbytes)
        except OSError:
            return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._fields, self._heap, DupFd(self.fd))

    def close(self) -> None:
        """Let go of the memory; other processes, and views of it, keep their own hold."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            self.close()


def _arrived(fields: list[Field], heap: int, duplicate: Any) -> SharedMemory:
    return SharedMemory(fields, heap, duplicate.detach())
