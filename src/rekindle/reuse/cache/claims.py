"""Who computes what right now: loaders that share a cache leave the same part to the first of them.

Without this, jobs that run in step, with the same seed, would all compute every part at the same moment. A
claim is a hint and nothing depends on it: it is written without a lock, may be overwritten by another one,
and is waited for only as long as its process runs, and no longer than `_LONGEST`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from rekindle.core.process_state import is_running
from rekindle.reuse.cache.serialization import Value
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory

_SLOTS = 4096
_LONGEST = 5.0  # seconds to wait for a part: its loader may be stopped
_LOOK_AFTER = 0.1  # seconds, whether the process still runs
_SHORTEST, _LONGER = 2e-3, 8e-3  # seconds between two looks at a claim: each wakes a process up
_GENERATIONS = 1 << 16  # Of two that differ by a multiple, one is waited for in vain: then it is gone.
_GOLDEN = (5**0.5 - 1) / 2  # Multiples of it, modulo 1, lie far apart from one another.


FIELDS: tuple[Field, ...] = (("claimed", np.int64, _SLOTS), ("claimed_by", np.int64, _SLOTS))


class Claims:
    """The parts that are being computed."""

    def __init__(self, memory: SharedMemory) -> None:
        self._claimed, self._by = memory.arrays["claimed"].data, memory.arrays["claimed_by"].data

    def is_elsewhere(self, row: int, generation: int) -> bool:
        """Whether somebody else is computing it."""
        slot = row % _SLOTS
        return self._claimed[slot] == _key(row, generation) and self._by[slot] != _me()

    def order_of(self, parts: list[tuple[int, int]], member: int) -> Iterator[int]:
        """In which order to take parts, given as row and generation: what others compute now comes last.

        Each loader begins with another one. So those that run in step, with the same seed, divide the work
        instead of waiting for each other.
        """
        first, later = int(len(parts) * (member * _GOLDEN % 1)), []
        for number in (*range(first, len(parts)), *range(first)):
            if self.is_elsewhere(*parts[number]):
                later.append(number)
            else:
                yield number
        yield from later

    def wait_or_claim(self, row: int, generation: int, find: Callable[[], Value]) -> Value:
        """What `find` finds once nobody is computing it; None if it is for the caller to compute.

        Then it is claimed until `release`.
        """
        slot = row % _SLOTS
        started = looked = time.monotonic()
        pause = _SHORTEST
        while self.is_elsewhere(row, generation):
            time.sleep(pause)
            now = time.monotonic()
            if now > looked + _LOOK_AFTER:
                looked = now
                if now > started + _LONGEST or not is_running(self._by[slot] >> 24):
                    break
            pause = min(2 * pause, _LONGER)
        found = find()  # Also if it was not claimed: it may have come since the caller missed it.
        if found is None:
            self._by[slot], self._claimed[slot] = _me(), _key(row, generation)
        return found

    def release(self, row: int) -> None:
        """Let go of a claim, when the part is computed or cannot be."""
        self._claimed[row % _SLOTS] = 0


def _key(row: int, generation: int) -> int:
    return row * _GENERATIONS + generation % _GENERATIONS + 1


def _me() -> int:
    return os.getpid() << 24 | threading.get_native_id() & 0xFFFFFF
