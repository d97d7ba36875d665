"""Counting by level, and systematic draws, to the bit, by compiled loops: for many millions of samples.

Numba takes about a second to compile them, once on a machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba
from rekindle.core.permutation_kernel import WITHIN_KERNELS

check_compiled_code()

CountDraws = Callable[[NDArray[np.float64], NDArray[np.int64], float, float, NDArray[np.int64]], float]


@numba.njit(**WITHIN_KERNELS)
def _level(value: np.float32) -> np.uint64:
    bits = np.float32(value + np.float32(0)).view(np.int32)
    # Of negative numbers all bits count the other way round.
    flipped = np.int32(bits >> 31) | np.int32(-(1 << 31))
    return np.uint64(np.uint32(np.int32(bits ^ flipped)) >> np.uint32(12))


def _counting() -> Signature:
    from numba import float32, int64, types, void

    return void(types.Array(float32, 1, "C", readonly=True), types.Array(int64, 1, "C"))


@kernel(_counting, boundscheck=False)
def count_levels(values: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
    """Add to each level's count how many of these values it has, as `levels_of` gives them."""
    for at in range(values.size):
        counts[_level(values[at])] += 1


def _adding() -> Signature:
    from numba import float32, float64, types, void

    values, table = types.Array(float32, 1, "C", readonly=True), types.Array(float64, 1, "C")
    return void(values, table, types.Array(float64, 1, "C"))


@kernel(_adding, boundscheck=False)
def add_of_levels(
    values: NDArray[np.float32], of_levels: NDArray[np.float64], sums: NDArray[np.float64]
) -> None:
    """Add to each sum the number of its value's level."""
    for at in range(values.size):
        sums[at] += of_levels[_level(values[at])]


def _marking() -> Signature:
    from numba import boolean, float32, int64, types, uint64

    values = types.Array(float32, 1, "C", readonly=True)
    return int64(values, uint64, types.Array(boolean, 1, "C"), types.Array(int64, 1, "C"))


@kernel(_marking, boundscheck=False)
def mark_below(
    values: NDArray[np.float32], level: int, is_below: NDArray[np.bool_], places: NDArray[np.int64]
) -> int:
    """Which values are below a level, and the places of those at it: returns how many these are."""
    found = np.uint64(0)
    for at in range(values.size):
        its_level = _level(values[at])
        is_below[at] = its_level < level
        if its_level == level:
            places[found] = at
            found += np.uint64(1)
    return int(found)


def _drawing() -> Signature:
    from numba import float64, int64, types

    expected = types.Array(float64, 1, "C", readonly=True)
    return float64(
        expected, types.Array(int64, 1, "C", readonly=True), float64, float64, types.Array(int64, 1, "C")
    )


@kernel(_drawing, boundscheck=False)
def count_draws(
    expected: NDArray[np.float64],
    order: NDArray[np.int64],
    scale: float,
    begin: float,
    counts: NDArray[np.int64],
) -> float:
    """`SystematicDraw.next`: from where the line has come to, to where it comes."""
    total, end, mark = 0.0, begin, np.floor(begin)
    for at in range(order.size):
        total += expected[order[at]]
        end = total * scale + begin
        before, mark = mark, np.floor(end)
        counts[order[at]] = np.int64(mark - before)
    return end - mark if order.size else begin
