"""Random choices of a fixed size: which samples are drawn is random, how many is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def share_of(count: int, share: float) -> int:
    """That share of so many samples, rounded to the nearest integer (halves up).

    >>> share_of(10, 0.25), share_of(1000, 0.7)
    (3, 700)
    """
    return math.floor(count * share + 0.5)


def smallest(values: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """A mask of the `count` smallest values, of equal ones the first. It takes no sort.

    >>> smallest(np.array([5.0, 1.0, 5.0, 9.0]), 2).tolist()
    [True, True, False, False]
    """
    chosen, equal, missing = _below(values, count)
    chosen[equal[:missing]] = True
    return chosen


def lowest(
    values: NDArray[Any], count: int, tie_breaker: Callable[[NDArray[np.int64]], NDArray[np.float64]]
) -> NDArray[np.int64]:
    """Where the `count` smallest values are, from first to last.

    Among equal ones those count for which `tie_breaker`, given where they are, is smallest.
    """
    chosen, equal, missing = _below(values, count)
    if missing < len(equal):
        equal = equal[smallest(tie_breaker(equal), missing)]
    chosen[equal] = True
    return np.flatnonzero(chosen)


def _below(values: NDArray[Any], count: int) -> tuple[NDArray[np.bool_], NDArray[np.int64], int]:
    """What is among the smallest for sure, those equal to the last that is, and how many of these are."""
    if count <= 0 or count >= len(values):
        return np.full(len(values), count > 0), np.empty(0, dtype=np.int64), 0
    last = np.partition(values, count - 1)[count - 1]
    if np.isnan(last):  # It is above all numbers.
        equal = np.isnan(values)
        below: NDArray[np.bool_] = ~equal
    else:
        below, equal = values < last, values == last
    return below, np.flatnonzero(equal), count - int(np.count_nonzero(below))


def systematic(expected: NDArray[np.float64], order: NDArray[np.int64], offset: float) -> NDArray[np.int64]:
    """How often each sample is drawn, so that it is `expected` on average and never off by 1 or more.

    Systematic sampling (Madow, 1949): samples lie on a line, in a random `order`, each as long as it is
    expected to be drawn; marks at distance 1, from a random `offset` in [0, 1) on, hit those that are drawn.
    The total is that of `expected`, rounded down or up.

    >>> systematic(np.array([0.5, 0.5, 2.0]), np.array([0, 1, 2]), 0.75).tolist()
    [1, 0, 2]
    """
    ends = np.cumsum(expected[order])
    # A total that should be an integer must not lose its last mark to rounding.
    total = np.round(ends[-1])
    if len(ends) and abs(ends[-1] - total) < 1e-6 * max(1.0, total):
        ends *= total / ends[-1] if ends[-1] else 1
        ends[-1] = total
    marks = np.floor(ends + offset)
    counts = np.empty(len(order), dtype=np.int64)
    counts[order] = np.diff(marks, prepend=np.floor(offset)).astype(np.int64)
    return counts


def capped(wanted: NDArray[np.float64], total: int) -> NDArray[np.float64]:
    """Numbers in proportion to `wanted`, none above 1, that add up to `total` (at most the number of them).

    >>> capped(np.array([1.0, 1.0, 8.0]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    result = np.array(wanted, dtype=np.float64)
    if total >= len(result):
        return np.ones_like(result)
    descending = np.argsort(-result, kind="stable")
    values = result[descending]
    # With the k largest at 1, the others share what is left: take the first k that leaves none above 1.
    rest = values.sum() - np.concatenate([[0], np.cumsum(values)[:-1]])
    left = total - np.arange(len(values))
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = left / rest
    fits = (left >= 0) & (values * factors <= 1)
    full = int(np.argmax(fits)) if fits.any() else total
    out = np.ones_like(values)
    out[full:] = np.clip(values[full:] * factors[full], 0, 1) if full < total else 0
    result[descending] = out
    return result
