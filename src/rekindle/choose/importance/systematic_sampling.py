"""Random choices of a fixed size: which samples are drawn is random, how many is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.percentiles import LevelCounts, ValuesOf, marked_below
from rekindle.choose.scores import MANY, STRETCH, Scores, stretches

if TYPE_CHECKING:
    from rekindle.choose.importance.level_kernel import CountDraws

ValuesAt = Callable[[NDArray[np.int64]], NDArray[np.floating]]  # the values of samples at these places
_ROUNDING = 1e-5  # more than sums of a billion chances are off by


def share_of(count: int, share: float) -> int:
    """That share of so many samples, rounded to the nearest integer (halves up).

    >>> share_of(10, 0.25), share_of(1000, 0.7)
    (3, 700)
    """
    return math.floor(count * share + 0.5)


def lowest(
    values: NDArray[np.floating], count: int, tie_breaker: ValuesAt | None = None
) -> NDArray[np.int64]:
    """Where the `count` smallest values are, from first to last: see `are_lowest`.

    >>> lowest(np.array([5.0, 1.0, 5.0, 9.0]), 2).tolist()
    [0, 1]
    """
    return np.flatnonzero(are_lowest(lambda part: values[part], len(values), count, tie_breaker))


def are_lowest(
    values_of: ValuesOf,
    size: int,
    count: int,
    tie_breaker: ValuesAt | None = None,
    exact: ValuesAt | None = None,
    counts: LevelCounts | None = None,
) -> NDArray[np.bool_]:
    """A mask of the `count` smallest of `size` values, which takes no sort; NaN is above all others.

    Among equal ones those count for which `tie_breaker`, given where they are, is smallest; without it, the
    first. `values_of` may give 32-bit floats of which `exact` gives all bits, where some are to be compared.
    `counts` are those of `values_of`, where they are known.
    """
    if count <= 0 or count >= size:
        return np.full(size, count > 0)
    counts = LevelCounts.of(values_of, size) if counts is None else counts
    level, below = counts.level_of(count)
    chosen = np.empty(size, dtype=bool)
    places, found = [], []
    for part in stretches(size):
        values = values_of(part)
        here = marked_below(values, level, chosen[part], compiled=size >= MANY)
        places.append(here + part.start)
        found.append(values[here])
    of_level = np.concatenate(places)
    values = np.concatenate(found) if exact is None else exact(of_level)
    last = np.partition(values, count - below - 1)[count - below - 1]
    is_lower, is_last = values < last, np.isnan(values) if np.isnan(last) else values == last
    if np.isnan(last):
        is_lower = ~is_last
    chosen[of_level[is_lower]] = True
    equal = of_level[is_last]
    missing = count - below - int(np.count_nonzero(is_lower))
    if missing < len(equal) and tie_breaker is not None:
        equal = equal[lowest(tie_breaker(equal), missing)]
    chosen[equal[:missing]] = True
    return chosen


class SystematicDraw:
    """How often samples are drawn, so that it is as expected on average and never off by 1 or more.

    Systematic sampling (Madow, 1949): samples lie on a line, each as long as it is expected to be drawn;
    marks at distance 1, from a random `offset` in [0, 1) on, hit those that are drawn. Samples are given
    stretch by stretch, and lie in a random order within each: in `order`, of as many as the longest has. How
    many are drawn of all is what is expected, rounded down or up: `total`, if that is an integer but for
    rounding.

    >>> SystematicDraw(np.array([0, 1, 2]), offset=0.75, total=3).next(np.array([0.5, 0.5, 2.0])).tolist()
    [1, 0, 2]
    """

    def __init__(self, order: NDArray[np.int64], offset: float, total: float) -> None:
        # A total that should be an integer must not lose its last mark to rounding, nor gain one.
        self._end = min(max(offset, _ROUNDING), 1 - _ROUNDING)
        nearest = np.round(total)
        self._scale = nearest / total if total and abs(total - nearest) < 1e-6 * max(1.0, nearest) else 1.0
        self._order = order
        self._compiled: CountDraws | None = None

    @classmethod
    def of(cls, scores: Scores, epoch: int, total: float) -> SystematicDraw:
        """The draw of an epoch from all samples, in stretches."""
        count = min(STRETCH, len(scores))
        offset = float(scores.uniforms(epoch, draw=1, ids=np.zeros(1, dtype=np.int64))[0])
        draw = cls(scores.order(epoch, count).forward(np.arange(count)), offset, total)
        if len(scores) >= MANY:
            from rekindle.choose.importance.level_kernel import count_draws

            draw._compiled = count_draws()
        return draw

    def next(self, expected: NDArray[np.float64]) -> NDArray[np.int64]:
        """How often each of the next samples is drawn."""
        order = self._order if len(expected) == len(self._order) else self._order[self._order < len(expected)]
        if self._compiled is not None:
            counts = np.empty(len(order), dtype=np.int64)
            self._end = self._compiled(expected, order, self._scale, self._end, counts)
            return counts
        ends = np.cumsum(expected[order])
        ends *= self._scale
        ends += self._end
        marks = np.floor(ends)
        counts = np.empty(len(order), dtype=np.int64)
        counts[order] = np.diff(marks, prepend=np.floor(self._end)).astype(np.int64)
        self._end = float(ends[-1] - marks[-1]) if len(ends) else self._end
        return counts


def capped(
    wanted: NDArray[np.float64], total: int, counts: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Numbers in proportion to `wanted`, none above 1, that add up to `total` (at most the number of them).

    With `counts`, each number stands for so many.

    >>> capped(np.array([1.0, 1.0, 8.0]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    counts = np.ones(len(wanted), dtype=np.int64) if counts is None else counts
    result = np.ones(len(wanted))
    if total >= counts.sum():
        return result
    some = np.flatnonzero(counts)
    descending = some[np.argsort(-wanted[some], kind="stable")]
    values, each = wanted[descending], counts[descending]
    # With the k largest at 1, the others share what is left: take the first k that leaves none above 1.
    sums = np.cumsum(values * each)
    rest = sums[-1] - np.concatenate([[0], sums[:-1]])
    left = total - (np.cumsum(each) - each)
    with np.errstate(divide="ignore", invalid="ignore"):
        fits = (left >= 0) & (values * (left / rest) <= 1)
    if fits.any():
        full = int(np.argmax(fits))
        result[descending[full:]] = np.clip(values[full:] * (left[full] / rest[full]), 0, 1)
    else:  # All that is left over is 0: the first of it take what there is.
        result[descending] = np.clip(left / each, 0, 1)
    return result
