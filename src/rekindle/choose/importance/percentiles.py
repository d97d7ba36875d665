"""Percentiles of scores among each other, without a sort: samples are counted by the level of their score.

A level is the first twenty bits of a score as a 32-bit float: its sign, its exponent and twelve significant
bits. Scores that agree in these are equal here. So a table of a million numbers holds what is to be known of
any number of samples, and what follows from a percentile is computed once a level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.scores import STRETCH, stretches

LEVELS = 1 << 20
_SIGN, _DROPPED = np.uint32(1 << 31), np.uint32(12)
ValuesOf = Callable[[slice], NDArray[np.floating]]  # the values of some samples


def levels_of(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """The level of each value: higher for higher ones, the highest for NaN.

    >>> levels = levels_of(np.array([-1.0, -0.0, 0.0, 1.0, 1.0001, np.inf, np.nan]))
    >>> np.diff(levels).astype(bool).tolist()
    [True, False, True, False, True, True]
    """
    with np.errstate(over="ignore"):  # A number beyond float32 is as high as infinity.
        floats = values.astype(np.float32, copy=False)
    bits = (floats + np.float32(0)).view(np.uint32)  # −0 becomes 0.
    # Of negative numbers all bits count the other way round.
    bits = bits ^ ((bits.view(np.int32) >> np.int32(31)).view(np.uint32) | _SIGN)
    bits >>= _DROPPED
    return bits.astype(np.int64)


@dataclass(frozen=True)
class LevelCounts:
    """The levels that samples have, from low to high, and how many there are of each."""

    levels: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, scores_of: ValuesOf, size: int) -> LevelCounts:
        """Count `size` samples."""
        if size <= STRETCH:
            return cls(*np.unique(levels_of(scores_of(slice(0, size))), return_counts=True))
        counts = np.zeros(LEVELS, dtype=np.int64)
        for part in stretches(size):
            levels = levels_of(scores_of(part))
            lowest = int(levels.min())
            found = np.bincount(levels - lowest)
            counts[lowest : lowest + len(found)] += found
        levels = np.flatnonzero(counts)
        return cls(levels, counts[levels])

    def percentiles(self) -> NDArray[np.float64]:
        """For each level, the share of samples below it, half of its own included."""
        middles: NDArray[np.float64] = np.cumsum(self.counts) - self.counts / 2
        return middles / max(int(self.counts.sum()), 1)

    def look_up(self, of_each: NDArray[np.float64]) -> Callable[[NDArray[np.floating]], NDArray[np.float64]]:
        """A function that gives, for scores, the numbers of their levels."""
        if len(self.levels) <= STRETCH and self.counts.sum() <= STRETCH:
            return lambda values: of_each[np.searchsorted(self.levels, levels_of(values))]
        table = np.zeros(LEVELS)
        table[self.levels] = of_each
        return lambda values: table[levels_of(values)]


def nth_smallest(values_of: ValuesOf, size: int, n: int) -> np.floating:
    """The n-th smallest of `size` values, from 1 on, exactly; NaN is above all others.

    >>> nth_smallest(lambda part: np.array([5.0, 1.0, 7.0, 9.0])[part], 4, 2)
    np.float64(5.0)
    """
    if size <= STRETCH:
        return _nth(values_of(slice(0, size)), n)
    counts = LevelCounts.of(values_of, size)
    up_to = np.cumsum(counts.counts)
    number = int(np.searchsorted(up_to, n))
    level, before = counts.levels[number], int(up_to[number] - counts.counts[number])
    parts = (values_of(part) for part in stretches(size))
    return _nth(np.concatenate([values[levels_of(values) == level] for values in parts]), n - before)


def _nth(values: NDArray[np.floating], n: int) -> np.floating:
    nth: np.floating = np.partition(values, n - 1)[n - 1]
    return nth


def percentiles(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """The share of values below each one, half of the equal ones included: above 0 and below 1.

    >>> percentiles(np.array([5.0, 1.0, 5.0, 9.0])).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    floats = values.astype(np.float32, copy=False)
    counts = LevelCounts.of(lambda part: floats[part], len(floats))
    return counts.look_up(counts.percentiles())(floats)
