"""When the cached result of each sample is recomputed: balanced eviction.

All samples stand in a random circular order. Every epoch recomputes the next 1/factor of it, so each epoch
after the first recomputes equally many, and each result is used `factor` times before its turn comes again
(⌊factor⌋ or ⌈factor⌉ times, if it is not an integer). Epoch 0 computes all of them; those that the first
round reaches early are used less often.

A visit is a position on the circle, counted on from round to round. The visits whose results an epoch uses
are a window of consecutive ones that ends where the epoch has come to: the newest of them are recomputed in
it. So what an epoch has, and of which generation, follows from arithmetic, without an array.

Where an incomplete last batch is left out, the window is shorter, and what is left out is the oldest visits,
those of the samples that are recomputed next. So still each result is used `factor` times, and no sample
comes for whose result there was no turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.choose.planned_rows import PlannedRows
from rekindle.core import counter_rng
from rekindle.core.keyed_permutation import KeyedPermutation, keyed_permutation

_FINEST = 1000  # factors are taken as fractions with denominators up to this


def exact_factor(factor: float) -> Fraction:
    """A reuse factor as the fraction that is meant: 1.1 is 11/10."""
    return Fraction(factor).limit_denominator(_FINEST)


def share_of_uses(factor: float, before: int, count: int) -> int:
    """How many of the next `count` uses recompute, so that of all uses since the first one in `factor` does.

    >>> [share_of_uses(3, before, 10) for before in (0, 10, 20)]
    [3, 3, 4]
    """
    each = exact_factor(factor)
    up, down = each.numerator, each.denominator
    return (before + count) * down // up - before * down // up


def first_of_each(results: NDArray[np.int64], fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of the `fresh` rows those that are the first to use one of these results."""
    rows = np.flatnonzero(fresh)
    firsts = np.zeros(len(fresh), dtype=bool)
    firsts[rows[np.unique(results[rows], return_index=True)[1]]] = True
    return firsts


class VisitWindow(NamedTuple):
    """The visits whose results an epoch uses: from `oldest` up to `end`, recomputed from `fresh` on."""

    oldest: int
    fresh: int
    end: int


@dataclass(frozen=True)
class Refresh:
    """The schedule of a dataset of `size` samples.

    >>> refresh = Refresh(size=6, factor=3, seed=0)
    >>> [int((refresh.generations(range(6), epoch) == epoch).sum()) for epoch in range(5)]
    [6, 2, 2, 2, 2]
    """

    size: int
    factor: float
    seed: int
    served: int | None = None  # how many of the samples a turn uses, if not all

    def serving(self, served: int) -> Refresh:
        """The same schedule where a turn uses so many samples."""
        return replace(self, served=served)

    def window(self, epoch: int) -> VisitWindow:
        """The visits whose results an epoch uses."""
        end = self._refreshed(epoch)
        oldest = end - self._uses_a_turn
        return VisitWindow(oldest, self._refreshed(epoch - 1) if epoch else oldest, end)

    def boundaries(self, epoch: int) -> list[int]:
        """Where windows of epochs, or what they recompute, begin and end within the window of this one.

        Between two of them lie visits that are recomputed in the same epoch, and used last in the same.
        """
        oldest, _, end = self.window(epoch)
        found, turn = {oldest, end}, epoch - 1
        while (stop := self._refreshed(turn)) > oldest:
            found.add(stop)
            turn -= 1
        turn = epoch + 1
        while (start := self._refreshed(turn) - self._uses_a_turn) < end:
            found.add(start)
            turn += 1
        return sorted(found)

    def samples_of(self, visits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whose visits these are."""
        if not len(visits):
            return visits
        # A window spans less than two rounds: a subtraction is quicker than a division for each.
        positions = visits - int(visits.min()) // self.size * self.size
        np.subtract(positions, self.size, out=positions, where=positions >= self.size)
        return self.circle.inverse(positions)

    def generations_of(self, visits: NDArray[np.int64]) -> NDArray[np.int64]:
        """The turns in which the results of visits are computed; those before the first round, in turn 0."""
        return np.maximum(self._turns_of(visits), 0)

    def generations(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn in which the cached result was computed that each sample uses in its turn `turns`.

        A turn is an epoch, if every sample is used once in each; otherwise it is how often the sample was
        used before.
        """
        return self.generations_of(self._last_visit(ids, turns))

    def next_turns(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn after `turns` in which the result of each is recomputed next."""
        return self._turns_of(self._last_visit(ids, turns) + self.size)

    def recomputed(self, ids: NDArray[np.int64], fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the `fresh` rows of an epoch are recomputed: the first one of each sample."""
        return first_of_each(ids, fresh)

    def substitute(self, rows: PlannedRows, epoch: int, turns: NDArray[np.int64]) -> PlannedRows:
        """The rows with near-duplicates substituted for samples: here, none are."""
        return rows

    def spare_first(
        self, ids: NDArray[np.int64], turns: NDArray[np.int64] | int, fresh: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The rows of an epoch, those first that can be left out without others having to be recomputed.

        These are samples whose cached result is recomputed next, the oldest results first; among equals, it
        is drawn. The same ones come first in all turns until then: a result that was not computed in epoch 0,
        its sample having been left out, is not asked for before its turn.
        """
        following = self.next_turns(ids, turns)
        drawn = counter_rng.seeds(self.seed, ids, following, counter_rng.Step.LEFT_OUT)
        return np.lexsort((drawn, self.generations(ids, turns) - turns, following - turns, fresh))

    def rounds(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """How often the result of each was recomputed up to its turn `turns`."""
        return self._last_visit(ids, turns) // max(self.size, 1) + 1

    @property
    def circle(self) -> KeyedPermutation:
        """The position of each sample on the circle, and back."""
        return keyed_permutation(self.size, counter_rng.base(self.seed, counter_rng.Step.CIRCLE, 0))

    def _last_visit(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """When each was recomputed last; negative for never."""
        up, down = self._fraction()
        positions = self.circle.forward(np.asarray(ids, dtype=np.int64))
        refreshed = (np.asarray(turns, dtype=np.int64) + 1) * self._uses_a_turn * down // up
        last: NDArray[np.int64] = positions + (refreshed - 1 - positions) // self.size * self.size
        return last

    def _refreshed(self, turn: int) -> int:
        """Up to which visit turns up to this one have recomputed: ⌊(turn + 1) · uses a turn / factor⌋."""
        up, down = self._fraction()
        return (turn + 1) * self._uses_a_turn * down // up

    def _turns_of(self, visits: NDArray[np.int64]) -> NDArray[np.int64]:
        up, down = self._fraction()
        turns: NDArray[np.int64] = -(-(visits + 1) * up // (self._uses_a_turn * down)) - 1
        return turns

    @property
    def _uses_a_turn(self) -> int:
        return max(1, self.size if self.served is None else self.served)

    def _fraction(self) -> tuple[int, int]:
        factor = exact_factor(self.factor)
        return factor.numerator, factor.denominator
