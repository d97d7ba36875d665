"""Masks to indices, and indices to counts, by compiled loops: for many millions of samples.

Numba takes about a second to compile them, once on a machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.sample_ids import Ids
from rekindle.core.compiled_code import check_compiled_code, kernel
from rekindle.core.compiler import Signature

check_compiled_code()


def _finding(ids: str) -> Signature:
    from numba import boolean, types, void

    return void(types.Array(boolean, 1, "C", readonly=True), types.Array(getattr(types, ids), 1, "C"))


@kernel(_finding, boundscheck=False)
def indices_where(is_chosen: NDArray[np.bool_], ids: Ids) -> None:
    """The indices for which a mask is true: as many as `ids` has room for."""
    found = np.uint64(0)
    if ids.size == 0:
        return
    for at in range(is_chosen.size):  # Each is written, and stays if the next one is written behind it.
        ids[found] = at
        found += np.uint64(is_chosen[at])
        if found == np.uint64(ids.size):
            break


def _counting(uses: str, ids: str) -> Signature:
    from numba import int64, types

    counts = types.Array(getattr(types, uses), 1, "C")
    return int64(counts, types.Array(getattr(types, ids), 1, "C", readonly=True), int64)


@kernel(_counting, boundscheck=False)
def add_while_ascending(uses: NDArray[np.signedinteger], ids: Ids, number: int) -> int:
    """Add a number for each of these samples, once for one that comes several times in succession.

    Ends before an index that is lower than the one before it; returns how many indices were taken.
    """
    before = np.int64(-1)
    for at in range(ids.size):
        sample = np.int64(ids[at])
        if sample < before:
            return at
        uses[np.uint64(sample)] += number * (sample != before)
        before = sample
    return ids.size


def _repeating(ids: str) -> Signature:
    from numba import int64, types, void

    times = types.Array(int64, 1, "C", readonly=True)
    return void(times, int64, types.Array(getattr(types, ids), 1, "C"))


@kernel(_repeating, boundscheck=False)
def repeat_indices(times: NDArray[np.int64], start: int, ids: Ids) -> None:
    """The indices from `start` on, each as many times as it says: `ids` has room for all of them."""
    end = np.uint64(0)
    for at in range(times.size):
        for _ in range(times[at]):
            ids[end] = start + at
            end += np.uint64(1)
