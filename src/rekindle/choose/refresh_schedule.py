"""When the cached result of each sample is recomputed: balanced eviction.

All samples stand in a random circular order. Every epoch recomputes the next 1/factor of it, so each epoch
after the first recomputes equally many, and each result is used `factor` times before its turn comes again
(⌊factor⌋ or ⌈factor⌉ times, if it is not an integer). Epoch 0 computes all of them; those that the first
round reaches early are used less often.
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
        up, down = self._fraction()
        last_visit = self._last_visit(ids, turns)
        generations = -(-(last_visit + 1) * up // (self.size * down)) - 1
        return np.where(last_visit < 0, 0, generations)

    def recomputed(self, ids: NDArray[np.int64], fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the `fresh` samples of an epoch are recomputed: here, all of them."""
        return fresh

    def substitute(self, plan: EpochPlan, turns: NDArray[np.int64] | int) -> EpochPlan:
        """The plan with near-duplicates substituted for samples: here, none are."""
        return plan

    def rounds(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """How often the result of each was recomputed up to its turn `turns`."""
        return self._last_visit(ids, turns) // max(self.size, 1) + 1

    def _last_visit(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """When each was recomputed last, in positions counted on from round to round; negative for never."""
        up, down = self._fraction()
        positions, turns = self._positions[np.asarray(ids)], np.asarray(turns, dtype=np.int64)
        # Turn t recomputes the positions from ⌊t·size/factor⌋ up to ⌊(t+1)·size/factor⌋, counted on likewise.
        refreshed = (turns + 1) * self.size * down // up
        last: NDArray[np.int64] = positions + (refreshed - 1 - positions) // self.size * self.size
        return last

    def _fraction(self) -> tuple[int, int]:
        factor = exact_factor(self.factor)
        return factor.numerator, factor.denominator
