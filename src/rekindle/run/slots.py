"""The memory that batches are written to: anonymous, shared, reused when the last tensor on it is freed.

A slot is a memory file without a name (`memfd`), so there is nothing to clean up after a crash and the size
of `/dev/shm` does not matter. Its pages are reserved when it is created: a lack of memory is an error here,
never a bus error in a worker.

A process that is forked keeps the batches that there are then: their slots are not used again.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

from rekindle.core import forked_memory
from rekindle.core.available_memory import available_memory
from rekindle.core.interrupts import is_interrupt
from rekindle.core.memfd import anonymous_file, map_file, reserve
from rekindle.errors import OpenFilesError, OutOfMemoryError
from rekindle.run.window import Window

_PAGE = mmap.PAGESIZE
_HELD_BY_CONSUMER = 2  # batches: the one in use and the one before it
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


class Slot:
    """One piece of memory, shared or for the threads of this process; `array` is its bytes."""

    def __init__(self, number: int, nbytes: int, shared: bool = True) -> None:
        self.number = number
        self.nbytes = -(-nbytes // _PAGE) * _PAGE
        self.fd = _reserved_file(self.nbytes) if shared else -1
        try:
            self.array = map_file(self.fd, self.nbytes) if shared else _own_memory(self.nbytes)
        except BaseException as error:
            if shared:
                os.close(self.fd)
            if not isinstance(error, OSError) or is_interrupt(error):
                raise
            raise _no_room(self.nbytes, error) from error

    def close(self) -> None:
        """Release the memory; batches that still refer to it keep it mapped."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        vars(self).pop("array", None)


def _own_memory(nbytes: int) -> NDArray[np.uint8]:
    """Memory of this process alone, in huge pages where the kernel has them: far faster to allocate."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError as error:  # A kernel without huge pages.
            if is_interrupt(error):
                raise
    return np.frombuffer(memory, dtype=np.uint8)


def _reserved_file(nbytes: int) -> int:
    fd = -1
    try:
        fd = anonymous_file(nbytes)
        reserve(fd, 0, nbytes)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, *_TOO_MANY_FILES):
            raise
        raise _no_room(nbytes, error) from error
    return fd


def _no_room(nbytes: int, error: OSError) -> OutOfMemoryError | OpenFilesError:
    if error.errno in _TOO_MANY_FILES:
        return OpenFilesError(
            f"too many files are open to make room for a batch of {nbytes / 2**20:.1f} MiB: "
            f"{error.strerror}. Each batch in flight takes two, each worker a few. Raise the limit "
            "(`ulimit -n`), lower num_workers or prefetch_factor, or close files that the dataset opens."
        )
    return OutOfMemoryError(
        f"no memory for a batch of {nbytes / 2**20:.1f} MiB: {error.strerror}. Lower batch_size, "
        "prefetch_factor or num_workers, or raise the memory limit of this process."
    )


class SlotPool:
    """Slots for batches; one is free again when no tensor refers to it.

    As many as batches may be in flight and held by the loop are kept for later ones; the memory of others is
    released.
    """

    def __init__(self, window: Window, *, shared: bool = True) -> None:
        self._window, self.shared = window, shared
        self._free: deque[Slot] = deque()
        self.numbers: set[int] = set()  # of the slots that exist
        self._made = 0
        self.leased = 0
        self.closed = False

    def take(self, nbytes: int) -> Slot:
        """A slot of at least `nbytes`: a free one, or a new one."""
        for _ in range(len(self._free)):
            slot = self._free.popleft()
            if slot.nbytes >= nbytes:
                return slot
            self._drop(slot)  # Batches have grown: a larger slot replaces it.
        slot = Slot(self._made, nbytes, self.shared)
        self._made += 1
        self.numbers.add(slot.number)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Free a slot that no batch refers to."""
        if self.closed or len(self.numbers) - self.leased > self._window.size + _HELD_BY_CONSUMER:
            self._drop(slot)
        else:
            self._free.append(slot)

    def lease(self, slot: Slot) -> NDArray[np.uint8]:
        """The slot's bytes for a batch; the slot is free again when no tensor refers to them.

        If this process is forked before that, the child may refer to them for longer: the slot is given up.
        """
        # NumPy makes views of a view refer to the array at the bottom; the memoryview in between stops that.
        lease = np.frombuffer(slot.array.data, dtype=np.uint8)
        self.leased += 1
        weakref.finalize(lease, self._end_lease, slot, forked_memory.forks).atexit = False
        return lease

    def _end_lease(self, slot: Slot, forks: int) -> None:
        self.leased -= 1
        if self.shared and forks != forked_memory.forks:
            self._drop(slot)
        else:
            self.give_back(slot)

    def check_room(self, nbytes: int) -> None:
        """Raise OutOfMemoryError now if as many slots of `nbytes` as will be used do not fit."""
        # Where batches are tiny there may be more of them: some MiB, not worth an error.
        left, count = available_memory(), self._window.usual + _HELD_BY_CONSUMER
        if left is not None and nbytes * count > left:
            raise OutOfMemoryError(
                f"{count} batches of {nbytes / 2**20:.1f} MiB are to be in flight, "
                f"{nbytes * count / 2**20:.0f} MiB in all, and {left / 2**20:.0f} MiB of memory are "
                "available. Lower batch_size, prefetch_factor or num_workers."
            )

    def _drop(self, slot: Slot) -> None:
        self.numbers.discard(slot.number)
        slot.close()

    def close(self) -> None:
        """Release all free slots now, and those in use when their last tensor is freed."""
        self.closed = True
        while self._free:
            self._drop(self._free.popleft())
