"""The samples and weights of an epoch of a dataset with near-duplicates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.duplicates.group_turns import GroupTurns
from rekindle.choose.plan import batches_per_epoch
from rekindle.choose.selection import Choice
from rekindle.choose.shard import Shard

_Ids = NDArray[np.int64]
_Weights = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class EpochSamples:
    """What an epoch has of each group: a pure function of the epoch.

    With `remove`, a group is represented by one member. Otherwise all members stay, and it is for
    `SubstitutingRefresh` to decide who serves them.
    """

    turns: GroupTurns
    seed: int
    remove: bool
    keep_totals: bool  # of the weights: a representative has the weight of all that it represents

    def reduce(self, ids: _Ids, weights: _Weights, epoch: int) -> tuple[_Ids, _Weights]:
        """What remains of chosen samples; one that occurs more than once still does."""
        if not self.remove:
            return ids, weights
        kept = ids == self.turns.index.representatives(ids, self.turns.turns_until(epoch))
        if not self.keep_totals:
            return ids[kept], weights[kept]
        return ids[kept], self._totals(ids, weights, kept)

    def used(self, ids: _Ids) -> _Ids:
        """Which samples count as used if these are chosen: those that share a cached result do together."""
        return np.unique(ids) if self.remove else self.turns.with_duplicates(ids)

    def choice(self, epoch: int, shard: Shard | None = None) -> Choice:
        """The samples of an epoch in which no importance method chooses, as ranks share them evenly."""
        everything = np.arange(len(self.turns.index.units))
        ids, weights = self.reduce(everything, np.ones(len(everything), dtype=np.float32), epoch)
        uses = self.turns.turns_before(ids, epoch) if self.remove else np.full(len(ids), epoch)
        rank, world = (0, 1) if shard is None else (shard.rank, shard.world)
        return Choice(ids, weights, uses, False, rank, world).shared_evenly(self.seed, epoch)

    def steps(self, batch_size: int, drop_last: bool, world: int = 1) -> int:
        """How many batches each of so many ranks has in such an epoch."""
        index = self.turns.index
        count = index.number_of_units if self.remove else len(index.units)
        return batches_per_epoch(-(-count // world), batch_size, drop_last)

    def _totals(self, ids: _Ids, weights: _Weights, kept: NDArray[np.bool_]) -> _Weights:
        """The weights of the kept samples, scaled to the total of each unit."""
        units, number = self.turns.index.units[ids], self.turns.index.number_of_units
        own = units[kept]
        totals = np.bincount(units, weights, number)[own]
        remaining = np.bincount(own, weights[kept], number)[own]
        rows = np.bincount(own, minlength=number)[own]
        scaled = weights[kept] * totals / np.where(remaining > 0, remaining, 1)
        shared = totals / rows  # where the kept samples have no weight at all
        return np.where(remaining > 0, scaled, shared).astype(np.float32)
