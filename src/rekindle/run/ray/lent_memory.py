"""Memory that a loader lends an actor of its own machine, for a result that then needs no object store.

A result in the object store is written twice, by the worker and by Ray, to pages that are new each time.
Here the worker writes it to memory which the loader has mapped too, and which both use again and again. An
actor on another machine, or of another user, finds no such memory; its results go through the object store.

Memory is lent for one request and comes back with the answer. After anything else (the actor died, the answer
was lost) it is never used again: somebody may still write to it.
"""

from __future__ import annotations

import os
import uuid
import weakref
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.core.memfd import CAN_BE_FOUND, anonymous_file, map_file, memory_file_at, reserve

_MAPPED = 4  # of one loader at a time: it lends an actor two or three, until batches grow


class Loan(NamedTuple):
    """Where an actor finds the memory: in which process, as which of its files, under which name."""

    pid: int
    fd: int
    name: str
    nbytes: int

    def mapped(self) -> NDArray[np.uint8] | None:
        """The memory, mapped into this process; None if it is not to be found here."""
        file = memory_file_at(self.pid, self.fd, self.name)
        fd = None if file is None else file.open()
        if fd is None:
            return None
        try:
            return map_file(fd, self.nbytes)
        except (OSError, ValueError):  # No room in the address space; a file that is smaller.
            return None
        finally:
            os.close(fd)


class LentMemory:
    """A piece of memory, and its `loan`; the file is closed with the last reference to this."""

    def __init__(self, nbytes: int) -> None:
        name = f"result-{uuid.uuid4().hex}"
        fd = anonymous_file(nbytes, name)
        weakref.finalize(self, os.close, fd)
        reserve(fd, 0, nbytes)
        self.array, self.loan = map_file(fd, nbytes), Loan(os.getpid(), fd, name, nbytes)


class Lender:
    """What is lent to the actors, by their numbers, and what has come back from them."""

    def __init__(self, actors: int) -> None:
        self._free: list[list[LentMemory]] = [[] for _ in range(actors)]
        # Until they say that they cannot find it.
        self._finds: list[bool] = [CAN_BE_FOUND] * actors

    def lend(self, number: int, nbytes: int) -> LentMemory | None:
        """Memory for a result of an actor; None if it cannot use any, or there is none."""
        if not self._finds[number] or not nbytes:
            return None
        free = self._free[number]
        while free:
            memory = free.pop()
            if memory.loan.nbytes >= nbytes:
                return memory
        with suppress(OSError):
            return LentMemory(nbytes + nbytes // 4)  # The next request may have a few rows more.
        return None

    def take_back(
        self, number: int, memory: LentMemory, *, found: bool, nbytes: int
    ) -> NDArray[np.uint8] | None:
        """The bytes that an actor has written to the memory before it answered; None if there are none.

        The memory is lent again when nobody refers to them. An actor that has not `found` it gets no other.
        """
        if not found:
            self._finds[number], self._free[number] = False, []
        elif not nbytes:
            self._free[number].append(memory)
        else:
            written = np.frombuffer(memory.array[:nbytes].data, dtype=np.uint8)
            weakref.finalize(written, self._free[number].append, memory).atexit = False
            return written
        return None

    def note_new_actor(self, number: int) -> None:
        """Forget what is known of the actor of this number, which was replaced."""
        self._finds[number] = CAN_BE_FOUND
        self._free[number] = []


class Borrowed:
    """The memory that an actor has mapped, by the names of loans, the last few of them."""

    def __init__(self) -> None:
        self._mapped: dict[str, NDArray[np.uint8]] = {}

    def find(self, loan: Loan | None) -> NDArray[np.uint8] | None:
        """The memory of a loan; None if there is no loan, or it is not to be found here."""
        if loan is None:
            return None
        memory = self._mapped.pop(loan.name, None)
        if memory is None:
            memory = loan.mapped()
        if memory is None:
            return None
        self._mapped[loan.name] = memory  # The last one is the last to go.
        while len(self._mapped) > _MAPPED:
            del self._mapped[next(iter(self._mapped))]
        return memory
