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

from rekindle.choose.scores import MANY, STRETCH, stretches

LEVELS = 1 << 20
_SIGN, _DROPPED = np.uint32(1 << 31), np.uint32(12)
ValuesOf = Callable[[slice], NDArray[np.floating]]  # the values of some samples


def levels_of(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """The level of each value: higher for higher ones, the highest for NaN.

    >>> levels = levels_of(np.array([-1.0, -0.0, 0.0, 1.0, 1.0001, np.inf, np.nan]))
    >>> np.diff(levels).astype(bool).tolist()
    [True, False, True, False, True, True]
    """
    bits = (_in_float32(values) + np.float32(0)).view(np.uint32)  # −0 becomes 0.
    # Of negative numbers all bits count the other way round.
    flipped = (bits.view(np.int32) >> np.int32(31)).view(np.uint32)
    flipped |= _SIGN
    bits ^= flipped
    bits >>= _DROPPED
    return bits.astype(np.int64)


def _count_levels(values: NDArray[np.floating], counts: NDArray[np.int64]) -> None:
    levels = levels_of(values)
    lowest = int(levels.min())
    found = np.bincount(levels - lowest)
    counts[lowest : lowest + len(found)] += found


def _compiled_count() -> Callable[[NDArray[np.floating], NDArray[np.int64]], None]:
    from rekindle.choose.importance.level_kernel import count_levels

    compiled = count_levels()
    return lambda values, counts: compiled(_in_float32(values), counts)


def marked_below(
    values: NDArray[np.floating], level: int, is_below: NDArray[np.bool_], *, compiled: bool
) -> NDArray[np.int64]:
    """Set which values are below a level; returns the places of those at it."""
    if not compiled:
        levels = levels_of(values)
        np.less(levels, level, out=is_below)
        return np.flatnonzero(levels == level)
    from rekindle.choose.importance.level_kernel import mark_below

    places = np.empty(len(values), dtype=np.int64)
    return places[: mark_below()(_in_float32(values), level, is_below, places)].copy()


def _in_float32(values: NDArray[np.floating]) -> NDArray[np.float32]:
    if values.dtype == np.float32:
        return np.ascontiguousarray(values)
    with np.errstate(over="ignore"):  # A number beyond float32 is as high as infinity.
        return np.ascontiguousarray(values, dtype=np.float32)


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
        count = _count_levels if size < MANY else _compiled_count()
        for part in stretches(size):
            count(scores_of(part), counts)
        levels = np.flatnonzero(counts)
        return cls(levels, counts[levels])

    def percentiles(self) -> NDArray[np.float64]:
        """For each level, the share of samples below it, half of its own included."""
        middles: NDArray[np.float64] = np.cumsum(self.counts) - self.counts / 2
        return middles / max(int(self.counts.sum()), 1)

    def level_of(self, n: int) -> tuple[int, int]:
        """The level of the n-th lowest sample, from 1 on, and how many samples are below that level."""
        up_to = np.cumsum(self.counts)
        number = int(np.searchsorted(up_to, n))
        return int(self.levels[number]), int(up_to[number] - self.counts[number])

    def adder(
        self, of_each: NDArray[np.float64]
    ) -> Callable[[NDArray[np.floating], NDArray[np.float64]], None]:
        """A function that adds, for scores, the numbers of their levels to some sums."""
        if self.counts.sum() < MANY:
            found = self.look_up(of_each)

            def add(values: NDArray[np.floating], sums: NDArray[np.float64]) -> None:
                sums += found(values)

            return add
        from rekindle.choose.importance.level_kernel import add_of_levels

        compiled, table = add_of_levels(), self._table(of_each)
        return lambda values, sums: compiled(_in_float32(values), table, sums)

    def _table(self, of_each: NDArray[np.float64]) -> NDArray[np.float64]:
        table = np.zeros(LEVELS)
        table[self.levels] = of_each
        return table

    def look_up(self, of_each: NDArray[np.float64]) -> Callable[[NDArray[np.floating]], NDArray[np.float64]]:
        """A function that gives, for scores, the numbers of their levels."""
        if len(self.levels) <= STRETCH and self.counts.sum() <= STRETCH:
            return lambda values: of_each[np.searchsorted(self.levels, levels_of(values))]
        table = self._table(of_each)
        return lambda values: table[levels_of(values)]


def percentiles(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """The share of values below each one, half of the equal ones included: above 0 and below 1.

    >>> percentiles(np.array([5.0, 1.0, 5.0, 9.0])).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    floats = values.astype(np.float32, copy=False)
    counts = LevelCounts.of(lambda part: floats[part], len(floats))
    return counts.look_up(counts.percentiles())(floats)
