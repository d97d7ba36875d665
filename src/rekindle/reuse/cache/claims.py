"""Who computes what right now: loaders that share a cache and need the same part wait for the first of them.

Without this, jobs that run in step, with the same seed, would all compute every part at the same moment. A
claim is a hint and nothing depends on it: it is written without a lock, may be overwritten by another one,
and is waited for only as long as its process runs, and no longer than `_LONGEST`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np

from rekindle.core.process_state import is_running
from rekindle.reuse.cache.serialization import Value
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory

_SLOTS = 4096
_LONGEST = 5.0  # seconds to wait for a part: its loader may be stopped
_LOOK_AFTER = 0.1  # seconds, whether the process still runs
_SHORTEST, _LONGER = 2e-4, 5e-3  # seconds between two looks at the cache
_GENERATIONS = 1 << 16  # Of two that differ by a multiple, one is waited for in vain: then it is gone.


def fields() -> list[Field]:
    """The shared arrays of the claims."""
    return [("claimed", np.int64, _SLOTS), ("claimed_by", np.int64, _SLOTS)]


class Claims:
    """The parts that are being computed."""

    def __init__(self, memory: SharedMemory) -> None:
        self._claimed, self._by = memory.arrays["claimed"].data, memory.arrays["claimed_by"].data

    def wait_or_claim(self, row: int, generation: int, find: Callable[[], Value]) -> Value:
        """What `find` finds once somebody else has computed it; None if it is for the caller to compute.

        Then it is claimed until `release`.
        """
        key, slot = row * _GENERATIONS + generation % _GENERATIONS + 1, row % _SLOTS
        me = os.getpid() << 24 | threading.get_native_id() & 0xFFFFFF
        started = looked = time.monotonic()
        pause = _SHORTEST
        while self._claimed[slot] == key and self._by[slot] != me:
            time.sleep(pause)
            found = find()
            if found is not None:
                return found
            now = time.monotonic()
            if now > looked + _LOOK_AFTER:
                looked = now
                if now > started + _LONGEST or not is_running(self._by[slot] >> 24):
                    break
            pause = min(2 * pause, _LONGER)
        self._by[slot], self._claimed[slot] = me, key
        return None

    def release(self, row: int) -> None:
        """Let go of a claim, when the part is computed or cannot be."""
        self._claimed[row % _SLOTS] = 0
