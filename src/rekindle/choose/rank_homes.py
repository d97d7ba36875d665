"""Which rank has the cached result of each sample, where samples are chosen: sharding by generation.

What a choice recomputes is dealt to the ranks afresh, at random; everything else goes to the rank that has
its result. All ranks have equally many rows: whoever has fewer cached ones gets more of the others. Only if a
rank had more cached rows than its share, some would move, and be recomputed where they come to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng

NOWHERE = -1


class Dealt(NamedTuple):
    """The rank of each row of a choice, of so many ranks; `NOWHERE` for rows that are left out.

    `moved` are the samples that are recomputed on another rank than before, and `moved_from` says on which
    they were. After a resume they are not known.
    """

    world: int
    ranks: NDArray[np.int32]
    moved: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    moved_from: NDArray[np.integer] = np.empty(0, dtype=np.int32)

    def gone_from(self, rank: int) -> NDArray[np.int64]:
        """The samples whose results this rank has, and will not be asked for any more."""
        gone: NDArray[np.int64] = self.moved[self.moved_from == rank]
        return gone


def shares_of(rows: int, world: int) -> NDArray[np.int64]:
    """How many of so many rows each rank has, if they take them in turn."""
    shares: NDArray[np.int64] = (rows + world - 1 - np.arange(world)) // world
    return shares


class RankHomes:
    """The rank that computed each sample's result last. Two bytes a sample, for up to 32,767 ranks."""

    def __init__(self, size: int, world: int) -> None:
        self.world = world
        kind: type[np.int16 | np.int32] = np.int16 if world < 1 << 15 else np.int32
        self.ranks: NDArray[np.integer] = np.full(size, NOWHERE, dtype=kind)

    def deal(
        self,
        ids: NDArray[np.int64],
        is_due: NDArray[np.bool_],
        left_out: NDArray[np.int64],
        *,
        seed: int,
        epoch: int,
    ) -> Dealt:
        """Deal the rows of a choice, some of which are recomputed, and some `left_out`; note who has what.

        All ranks get equally many if the others divide by their number.
        """
        world, count = self.world, len(ids)
        keys = counter_rng.seeds(seed, ids, epoch, counter_rng.Step.DEALT)  # equal for the rows of one sample
        homes = np.where(is_due, NOWHERE, self.ranks[ids])
        homes[left_out] = world  # behind all others
        ranks = np.full(count, NOWHERE, dtype=np.int32)
        order = np.lexsort((keys, homes))
        starts = np.searchsorted(homes[order], np.arange(world + 1))
        shares = shares_of(count - len(left_out), world)
        kept = np.minimum(np.diff(starts), shares)
        free = [order[: starts[0]]]
        for rank in range(world):
            first, stop = starts[rank], starts[rank] + kept[rank]
            ranks[order[first:stop]] = rank
            free.append(order[stop : starts[rank + 1]])
        rows = np.concatenate(free)
        # In a random order, the rows of a sample beside each other: computed once, they are used on one rank.
        rows = rows[np.lexsort((ids[rows], keys[rows]))]
        ranks[rows] = np.repeat(np.arange(world, dtype=np.int32), shares - kept)
        return self._noted(ids, is_due, ranks)

    def _noted(self, ids: NDArray[np.int64], is_due: NDArray[np.bool_], ranks: NDArray[np.int32]) -> Dealt:
        dealt = np.flatnonzero(ranks >= 0)
        before = self.ranks[ids[dealt]]
        self.ranks[ids[dealt]] = ranks[dealt]
        moved = (before >= 0) & (before != self.ranks[ids[dealt]]) & is_due[dealt]
        return Dealt(self.world, ranks, ids[dealt][moved], before[moved])
