"""When the cached result of each sample is recomputed: balanced eviction.

All samples stand in a random circular order. Every epoch recomputes the next 1/factor of it, so each epoch
after the first recomputes equally many, and each result is used `factor` times before its turn comes again
(⌊factor⌋ or ⌈factor⌉ times, if it is not an integer). Epoch 0 computes all of them; those that the first
round reaches early are used less often.

Where an incomplete last batch is left out, an epoch uses, and so recomputes, fewer of them; and those that
are left out are samples whose result is the oldest and is recomputed next. So still each result is used
`factor` times, and no sample comes for whose result there was no turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.core import counter_rng

if TYPE_CHECKING:
    from rekindle.choose.plan import EpochPlan

_CIRCLE = 2**63  # the turn that the circular order is drawn for: not an epoch
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
    _positions: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positions = np.empty(self.size, dtype=np.int64)
        positions[counter_rng.permutation(self.size, self.seed, _CIRCLE)] = np.arange(self.size)
        object.__setattr__(self, "_positions", positions)

    def generations(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn in which the cached result was computed that each sample uses in its turn `turns`.

        A turn is an epoch, if every sample is used once in each; otherwise it is how often the sample was
        used before.
        """
        last_visit = self._last_visit(ids, turns)
        return np.where(last_visit < 0, 0, self._turns_of(last_visit))

    def next_turns(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn after `turns` in which the result of each is recomputed next."""
        return self._turns_of(self._last_visit(ids, turns) + self.size)

    def recomputed(self, ids: NDArray[np.int64], fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the `fresh` rows of an epoch are recomputed: the first one of each sample."""
        return first_of_each(ids, fresh)

    def substitute(self, plan: EpochPlan, turns: NDArray[np.int64] | int) -> EpochPlan:
        """The plan with near-duplicates substituted for samples: here, none are."""
        return plan

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

    def _last_visit(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """When each was recomputed last, in positions counted on from round to round; negative for never."""
        up, down = self._fraction()
        positions, turns = self._positions[np.asarray(ids)], np.asarray(turns, dtype=np.int64)
        # Turn t recomputes the positions from ⌊t·uses/factor⌋ up to ⌊(t+1)·uses/factor⌋, counted on likewise.
        refreshed = (turns + 1) * self._uses_a_turn * down // up
        last: NDArray[np.int64] = positions + (refreshed - 1 - positions) // self.size * self.size
        return last

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
