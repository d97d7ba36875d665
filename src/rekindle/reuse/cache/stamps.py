"""The stamp of a cache entry: one 64-bit word by which readers without a lock know what they have read.

It holds the entry's generation plus 1 (0: there is no entry), how often the entry was written, and two flags:
`BUSY` while it is being written, and `INHERITED` if an earlier run wrote it. A reader takes the stamp, reads
the entry, and takes the stamp again: if it has not changed, what was read is the entry of that generation. A
writer that was killed leaves `BUSY` behind, which is a miss.
"""

from __future__ import annotations

import platform
import threading

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.reuse.cache.entry_table import EntryTable

BUSY, INHERITED = 1, 2  # An inherited entry gives way to any other generation.
_WRITE = 4  # added by every write
GENERATION = 32  # the bit at which the generation starts
_WRITES = (1 << GENERATION) - _WRITE


def generation_of(stamp: int) -> int:
    """The generation of an entry; -1 if there is none."""
    return (stamp >> GENERATION) - 1


def is_held(stamp: int, generation: int) -> bool:
    """Whether an entry of this generation is here, completely written."""
    return stamp >> GENERATION == generation + 1 > 0 and not stamp & BUSY


def are_held(
    table: EntryTable, column: str, ids: NDArray[np.int64], generations: ArrayLike
) -> NDArray[np.bool_]:
    """Which samples have an entry of the given generations, by the stamps in a column of a table."""
    held = np.zeros(np.broadcast_shapes(ids.shape, np.shape(generations)), dtype=bool)
    there = np.broadcast_to(table.are_there(ids), held.shape)
    found = table.columns[column][np.broadcast_to(ids, held.shape)[there]]
    wanted = np.broadcast_to(generations, held.shape)[there] + 1
    held[there] = (found >> GENERATION == wanted) & (found & BUSY == 0) & (wanted > 0)
    return held


def may_replace(stamp: int, generation: int) -> bool:
    """Whether an entry of this generation may replace the one that is here."""
    return stamp & (BUSY | INHERITED) != 0 or stamp >> GENERATION <= generation


def next_stamp(stamp: int, generation: int) -> int:
    """The stamp after the next write to an entry; generation -1 if that removes it."""
    return (generation + 1 << GENERATION) | (stamp + _WRITE & _WRITES)


def removed(stamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """`next_stamp` of many entries that are removed."""
    return stamps + _WRITE & _WRITES


def _fence() -> None:
    """Keep reads and writes before this call from being reordered after it: a lock taken twice does."""
    lock = threading.Lock()
    for _ in range(2):
        with lock:
            pass


def _no_fence() -> None:
    """Nothing: x86 reorders neither reads with reads nor writes with writes."""


fence = _no_fence if platform.machine() in ("x86_64", "AMD64") else _fence
