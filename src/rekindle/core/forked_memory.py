"""Whether memory was written to since workers were forked, found out without reading it.

A fork leaves both processes the same pages of memory; the first write to a page, by either, gives that
process a copy of its own. Linux tells which pages a process has to itself (`EXCLUSIVE`, see its documentation
of /proc/PID/pagemap): a page that is still shared is what it was at the fork. To look that up takes a quarter
of the time of a digest.

After another fork all pages are shared again, written to or not, so each one is preceded by a check.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import xxhash

from rekindle.core.interrupts import is_interrupt

# Bits of an entry: no other process has this page; it is a file's or shared for good; it is in memory.
EXCLUSIVE, FILE, PRESENT = (np.uint64(1 << bit) for bit in (56, 61, 63))
_ENTRY = 8  # bytes
_AT_ONCE = 1 << 13  # entries: as many as stay in a core's cache
_LEAST = 1 << 20  # bytes; a digest of fewer takes microseconds
_MOST = 1 << 30  # bytes in all; to look these up takes about 25 ms, less than to fork with them
_MERGES_PAGES = Path("/sys/kernel/mm/ksm/run")  # "0" unless equal pages of several processes are made one


class ForkedMemory:
    """A stretch of memory that processes are about to be forked with.

    `is_unwritten` is about this process, or, called in a forked one, about that.
    """

    def __init__(self, address: int, size: int) -> None:
        self.place = address, size
        first, last = -(-address // mmap.PAGESIZE), (address + size) // mmap.PAGESIZE
        self._first_page, self._pages = first, max(0, last - first)
        # What lies on the same pages as the ends is written to at any time.
        self._ends = (
            (address, first * mmap.PAGESIZE - address),
            (last * mmap.PAGESIZE, address + size - last * mmap.PAGESIZE),
        )
        self._digest = self._digest_of_ends()
        self._is_forked = self._was_written = False
        _watched.add(self)

    @classmethod
    def at(cls, address: int, size: int) -> ForkedMemory | None:
        """A stretch of memory; None if no fork shares it, or if it cannot be told what is written to."""
        if not _tells_exclusive_pages():
            return None
        memory = cls(address, size)
        is_private = memory._pages > 0 and memory._all_pages_are(PRESENT, PRESENT | FILE)
        return memory if is_private else None

    def is_unwritten(self) -> bool:
        """Whether it is proven that nothing was written here since the fork."""
        return self._is_forked and not self._was_written and self._is_shared()

    def before_fork(self) -> None:
        """Find out what cannot be found out any more after another fork."""
        if not self._is_forked:
            self._is_forked = True
        elif not self._was_written:
            self._was_written = not self._is_shared()

    def _is_shared(self) -> bool:
        shared = self._all_pages_are(PRESENT, PRESENT | FILE | EXCLUSIVE)
        return shared and self._digest_of_ends() == self._digest

    def _all_pages_are(self, expected: np.uint64, among: np.uint64) -> bool:
        """Whether Linux tells of all pages that `among` these bits they have the `expected` ones."""
        entries = np.empty(min(self._pages, _AT_ONCE), np.uint64)
        end = self._first_page + self._pages
        try:
            file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            try:
                for first in range(self._first_page, end, _AT_ONCE):
                    part = entries[: end - first]
                    if os.preadv(file, [part.data], first * _ENTRY) != part.nbytes:
                        return False
                    if not bool(((part & among) == expected).all()):
                        return False
            finally:
                os.close(file)
        except OSError as error:
            if is_interrupt(error):
                raise
            return False
        return True

    def _digest_of_ends(self) -> bytes:
        return xxhash.xxh3_128_digest(b"".join(ctypes.string_at(*end) for end in self._ends))


class ForkedArrays:
    """The memory of arrays that workers are forked with next, or were with those `before`."""

    def __init__(self, before: ForkedArrays | None = None) -> None:
        self._forks, self._left = before is None, _MOST
        self._before = {} if before is None else before._memory
        self._memory: dict[tuple[int, int], ForkedMemory] = {}

    def at(self, address: int, size: int) -> ForkedMemory | None:
        """An array's memory; None if it can never be told whether that was written to, or not soon enough."""
        known = self._before.get((address, size))
        if size < _LEAST or size > self._left or not (self._forks or known):
            return None
        self._left -= size
        memory = known if known is not None and known.is_unwritten() else ForkedMemory.at(address, size)
        if memory is not None:
            self._memory[address, size] = memory
        return memory


def is_any_shared(addresses: Iterable[int]) -> bool:
    """Whether memory at one of these, just read, may be a file's or shared with other processes for good."""
    pages = {address // mmap.PAGESIZE for address in addresses}
    if not pages:
        return False
    try:
        file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            entries = b"".join(os.pread(file, _ENTRY, page * _ENTRY) for page in pages)
        finally:
            os.close(file)
    except OSError as error:
        if is_interrupt(error):
            raise
        return True  # Nobody knows.
    found = np.frombuffer(entries, np.uint64)
    return found.size < len(pages) or not bool(((found & (PRESENT | FILE)) == PRESENT).all())


_watched: weakref.WeakSet[ForkedMemory] = weakref.WeakSet()
forks = 0  # of this process; counted twice each


def _count_fork() -> None:
    global forks
    forks += 1


def _before_fork() -> None:
    _count_fork()
    for memory in [*_watched]:
        memory.before_fork()


# Twice: other threads may begin something after the first count, and end it before the second.
os.register_at_fork(before=_before_fork, after_in_parent=_count_fork)


@functools.cache
def _tells_exclusive_pages() -> bool:
    """Whether a page that only this process has is known to be so."""
    try:
        if _MERGES_PAGES.exists() and _MERGES_PAGES.read_text().strip() != "0":
            return False  # A page may be shared again because another has the same content.
    except OSError:
        return False
    with mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.write(bytes(len(pages)))
        first = ctypes.c_char.from_buffer(pages)
        memory = ForkedMemory(ctypes.addressof(first), len(pages))
        del first
        return memory._all_pages_are(PRESENT | EXCLUSIVE, PRESENT | FILE | EXCLUSIVE)
