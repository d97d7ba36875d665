"""When the cached part of each sample is made anew: balanced eviction.

All samples lie on a circle, in random order. Every epoch refreshes the next 1/factor of the circle, so each
epoch after the first makes as many parts anew as any other, and each part is used `factor` times before its
turn comes again (⌊factor⌋ or ⌈factor⌉ times, if it is not whole). Epoch 0 makes all of them; those that the
first round comes to early are used less often.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle import keys

if TYPE_CHECKING:
    from rekindle.choose.plan import EpochPlan

_CIRCLE = 2**63  # the turn that the order on the circle is drawn for: no epoch
_FINEST = 1000  # factors are taken as fractions with denominators up to this


def exact_factor(factor: float) -> Fraction:
    """How often something is used, as the fraction that is meant: 1.1 is 11/10."""
    return Fraction(factor).limit_denominator(_FINEST)


@dataclass(frozen=True)
class Refresh:
    """The circle of a data set of `size` samples.

    >>> refresh = Refresh(size=6, factor=3, seed=0)
    >>> [int((refresh.generations(range(6), epoch) == epoch).sum()) for epoch in range(5)]
    [6, 2, 2, 2, 2]
    """

    size: int
    factor: float
    seed: int
    _places: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = np.empty(self.size, dtype=np.int64)
        places[keys.permutation(self.size, self.seed, _CIRCLE)] = np.arange(self.size)
        object.__setattr__(self, "_places", places)

    def generations(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn in which the cached part of each sample was made that is used in its turn `turns`.

        A turn is an epoch, if every sample is used once in each; otherwise it is how often the sample was
        used before.
        """
        up, down = self._fraction()
        last_visit = self._last_visit(ids, turns)
        generations = -(-(last_visit + 1) * up // (self.size * down)) - 1
        return np.where(last_visit < 0, 0, generations)

    def made(self, ids: NDArray[np.int64], fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the `fresh` samples of an epoch really have to be made."""
        return fresh

    def stood_in(self, plan: EpochPlan, turns: NDArray[np.int64] | int) -> EpochPlan:
        """The plan with others in the places of samples, where there are any that stand in for them."""
        return plan

    def rounds(self, places: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """How often the part of each entry of the circle was made anew up to its turn `turns`."""
        return self._last_visit(places, turns) // max(self.size, 1) + 1

    def _last_visit(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """When each was refreshed last, in places counted round and round; negative for never."""
        up, down = self._fraction()
        places, turns = self._places[np.asarray(ids)], np.asarray(turns, dtype=np.int64)
        # Turn t refreshes the places from ⌊t·size/factor⌋ up to ⌊(t+1)·size/factor⌋, counted round and round.
        refreshed = (turns + 1) * self.size * down // up
        last: NDArray[np.int64] = places + (refreshed - 1 - places) // self.size * self.size
        return last

    def _fraction(self) -> tuple[int, int]:
        factor = exact_factor(self.factor)
        return factor.numerator, factor.denominator
