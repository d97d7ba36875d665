"""How a store was used: counters that all its workers add to, each in a cache line of its own.

They are in memory of their own, also where the cache is shared with other ranks or jobs: each counts for
itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rekindle.reuse.cache.shared_arrays import Field, SharedMemory

HITS, MISSES, REFUSED, ERRORS, MICROSECONDS, FROM_OTHERS = range(6)
_COLUMNS = 8  # of 8 bytes: a cache line
_ROWS = 1024


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds, and how all its workers used it; other ranks and jobs that share it not counted."""

    entries: int
    nbytes: int
    capacity: int | None  # in bytes; None if only the disk limits it
    hits: int
    misses: int
    refused: int
    errors: int
    from_others: int  # of the hits: of values that another rank or job has computed
    seconds: float  # spent on computing values that were missing, as reported by `note_seconds`

    def without_content(self) -> StoreStats:
        """How it was used, for who shares a store whose content is counted elsewhere."""
        return replace(self, entries=0, nbytes=0, capacity=None if self.capacity is None else 0)


def total(stats: Iterable[StoreStats]) -> StoreStats:
    """The stats of several stores as if they were one."""
    found = list(stats)
    capacities = [one.capacity for one in found if one.capacity is not None]
    return StoreStats(
        entries=sum(one.entries for one in found),
        nbytes=sum(one.nbytes for one in found),
        capacity=sum(capacities) if len(capacities) == len(found) else None,
        hits=sum(one.hits for one in found),
        misses=sum(one.misses for one in found),
        refused=sum(one.refused for one in found),
        errors=sum(one.errors for one in found),
        from_others=sum(one.from_others for one in found),
        seconds=sum(one.seconds for one in found),
    )


def counter_memory() -> SharedMemory:
    """Memory for the counters of a store."""
    fields: list[Field] = [("counter_rows", np.int64, 8), ("counters", np.int64, _ROWS * _COLUMNS)]
    return SharedMemory(fields, {}, 0)


class CacheCounters:
    """Adding takes a fraction of a microsecond and no lock; reading adds up the rows of all threads."""

    def __init__(self, memory: SharedMemory) -> None:
        self._lock = memory.lock
        self._rows_taken = memory.arrays["counter_rows"]
        self._counters: NDArray[np.int64] = memory.arrays["counters"]
        self._words = self._counters.data
        self._own = threading.local()

    def add(self, column: int, count: int = 1) -> None:
        own = self._own
        if getattr(own, "pid", 0) != os.getpid():
            own.pid, own.row = os.getpid(), self._take_row()
        self._words[own.row + column] += count

    def _take_row(self) -> int:
        with self._lock:
            # Latecomers share the last row; they may lose a count to each other.
            row = min(int(self._rows_taken[0]), _ROWS - 1)
            self._rows_taken[0] = row + 1
        return row * _COLUMNS

    def stats(self, *, entries: int, nbytes: int, capacity: int | None) -> StoreStats:
        """How a store that holds so much was used."""
        return StoreStats(
            entries=entries,
            nbytes=nbytes,
            capacity=capacity,
            hits=self._total(HITS),
            misses=self._total(MISSES),
            refused=self._total(REFUSED),
            errors=self._total(ERRORS),
            from_others=self._total(FROM_OTHERS),
            seconds=self._total(MICROSECONDS) / 1e6,
        )

    def _total(self, column: int) -> int:
        return int(self._counters[column::_COLUMNS].sum())
