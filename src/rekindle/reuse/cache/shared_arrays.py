"""Memory that all workers of a store see, and the one lock that its writers take."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.reduction import DupFd
from types import TracebackType
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.memfd import anonymous_file, identity, map_file, reserve
from rekindle.errors import OutOfMemoryError
from rekindle.reuse.cache.entry_table import EntryTable, TableSpec

_PAGE = 4096
Field: TypeAlias = tuple[str, type[np.int64 | np.uint8], int]  # name, type, number of elements


class SharedLock:
    """One writer at a time, among threads and processes; a killed process releases it.

    The file lock belongs to the process: the kernel releases it however the process ends. It does not exclude
    other threads of the same process, so a thread lock is taken first. An interrupt may come before it is
    released: then the thread that has it still gets it again, and releases it next time. It is never nested.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._threads = threading.RLock()
        _locks.add(self)

    def forked(self) -> None:
        """In a forked process, where the thread that held the lock does not exist."""
        self._threads = threading.RLock()

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            self._lock_file()
        except BaseException:
            self._release()
            raise

    def _lock_file(self) -> None:
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
                return
            except OSError as error:
                # The kernel sees processes and not threads: two that wait for two locks of each other, each
                # held by another thread than the one that waits, look like a deadlock.
                if error.errno != errno.EDEADLK:
                    raise
            time.sleep(0.001)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)
        finally:
            with suppress(RuntimeError):  # It is released, as often as it was taken.
                while True:
                    self._threads.release()


_locks: weakref.WeakSet[SharedLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.forked()


os.register_at_fork(after_in_child=_after_fork)


# The memory that other processes may have found, by its file. Once a process: if one of two descriptors of a
# file is closed, the process loses the locks it has by the other.
_found: weakref.WeakValueDictionary[tuple[int, int], SharedMemory] = weakref.WeakValueDictionary()


class SharedMemory:
    """Named arrays, zero at first, then tables and a heap whose pages are reserved on demand.

    Worker processes get it as a file descriptor: by fork, or pickled with the arguments of a spawned process.

    Attributes:
        arrays: The int64 arrays, and the columns of the tables.
        flags: The uint8 arrays.
        tables: The tables.
        heap: The bytes after them.
        lock: To be held by who writes.

    """

    def __init__(
        self,
        fields: Sequence[Field],
        tables: dict[str, TableSpec],
        heap: int,
        *,
        fd: int = -1,
        name: str = "",
    ) -> None:
        self._fields, self._tables, self._heap, self._name = fields, tables, heap, name
        self._users = 1
        flags: list[Field] = [(f"{name}_used", np.uint8, spec.flag_bytes) for name, spec in tables.items()]
        starts, end = [], 0
        for _, kind, count in [*fields, *flags]:
            starts.append(end)
            end += -(-np.dtype(kind).itemsize * count // 64) * 64
        self._reserved = end = -(-end // _PAGE) * _PAGE
        self._table_starts: dict[str, int] = {}
        for name, spec in tables.items():
            self._table_starts[name] = end
            end += spec.nbytes
        self._heap_start, self.nbytes = end, end + heap
        self.fd, memory = self._open(fd)
        self.arrays: dict[str, NDArray[np.int64]] = {}
        self.flags: dict[str, NDArray[np.uint8]] = {}
        self.tables: dict[str, EntryTable] = {}
        for (name, kind, count), start in zip([*fields, *flags], starts, strict=True):
            content = memory[start : start + np.dtype(kind).itemsize * count]
            if kind is np.uint8:
                self.flags[name] = content
            else:
                self.arrays[name] = content.view(np.int64)
        for name, spec in tables.items():
            start = self._table_starts[name]
            content = memory[start : start + spec.nbytes]
            self.tables[name] = table = EntryTable(spec, self.flags[f"{name}_used"], content)
            self.arrays |= table.columns
        self.heap = memory[self._heap_start :]
        self.lock = SharedLock(self.fd)
        if self._name:
            _found[identity(os.fstat(self.fd))] = self

    @staticmethod
    def attached(file: tuple[int, int]) -> SharedMemory | None:
        """The memory in this file, if this process has it open under a name already."""
        memory = _found.get(file)
        return memory if memory is not None and memory.fd >= 0 else None

    def used_again(self) -> SharedMemory:
        """Count one more user in this process: the memory must be closed once more."""
        self._users += 1
        return self

    def _open(self, fd: int) -> tuple[int, NDArray[np.uint8]]:
        """A descriptor of the memory, new unless it is given, and its bytes; ValueError if it is another."""
        if fd >= 0 and (found := os.fstat(fd).st_size) != self.nbytes:
            os.close(fd)
            raise ValueError(f"a memory file has {found} bytes, not {self.nbytes}")
        try:
            if fd < 0:
                fd = anonymous_file(self.nbytes, self._name)
                reserve(fd, 0, self._reserved)
            return fd, map_file(fd, self.nbytes)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise OutOfMemoryError(
                f"no memory for the index of a cache, {self._reserved / 2**20:.1f} MiB, or no addresses for "
                f"{self.nbytes / 2**20:.1f} MiB: {error.strerror}. Train without reuse, "
                "or raise the memory limits of this process."
            ) from error

    def reserve_heap(self, start: int, nbytes: int) -> bool:
        """Take the memory of a part of the heap from the system; False if there is none."""
        return self._reserve(self._heap_start, start, nbytes)

    def reserve_row(self, table: str, index: int) -> bool:
        """Take the memory of a row from the system before it is written; False if there is none.

        Called under the lock.
        """
        return self.tables[table].reserve(index, partial(self._reserve, self._table_starts[table]))

    def _reserve(self, origin: int, start: int, nbytes: int) -> bool:
        try:
            reserve(self.fd, origin + start, nbytes)
        except OSError:
            return False
        return True

    def __reduce__(self) -> tuple[Callable[..., SharedMemory], tuple[object, ...]]:
        return _unpickle, (self._fields, self._tables, self._heap, self._name, DupFd(self.fd))

    def close(self) -> None:
        """Release the memory; other users, other processes, and arrays in it, keep it alive."""
        self._users -= 1
        if self._users <= 0:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            self._users = 0
            self.close()


class _Duplicate(Protocol):
    """A file descriptor on its way to another process."""

    def detach(self) -> int: ...


def _unpickle(
    fields: Sequence[Field], tables: dict[str, TableSpec], heap: int, name: str, duplicate: _Duplicate
) -> SharedMemory:
    return SharedMemory(fields, tables, heap, fd=duplicate.detach(), name=name)
