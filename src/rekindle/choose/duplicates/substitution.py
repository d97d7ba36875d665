"""Near-duplicates that are substituted for each other, so that one cached result serves a whole group.

"On a cache miss serve a cached member of the group" (IOWA), followed from epoch to epoch, comes to this: one
member's partial result is cached and serves all members' rows; after as many turns as `Refurbish` allows,
another member is computed. Here that is the plan itself: a group has one position in the order of `Refresh`,
and the member that is computed follows from how many rounds that order has made. The state of the cache
decides nothing, so the bytes are exact; and every member has its turn, so none is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.choose.batch_orders import BatchOrder
from rekindle.choose.duplicates.group_turns import GroupTurns
from rekindle.choose.planned_rows import PlannedRows
from rekindle.choose.refresh_schedule import Refresh, first_of_each
from rekindle.core.counter_rng import NEXT_DRAW


@dataclass(frozen=True, eq=False)
class SubstitutingRefresh(Refresh):
    """A `Refresh` of units instead of samples: a group is recomputed at once, as one of its members."""

    group_turns: GroupTurns = field(kw_only=True)

    @classmethod
    def over(cls, turns: GroupTurns, factor: float, seed: int) -> SubstitutingRefresh:
        """The schedule of the units whose members take these turns."""
        return cls(turns.index.number_of_units, factor, seed, group_turns=turns)

    def generations(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn in which the result was computed that each sample's unit uses in its turn `turns`."""
        return super().generations(self.group_turns.index.units[np.asarray(ids)], turns)

    def recomputed(self, ids: NDArray[np.int64], fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of the `fresh` samples the first one of each unit: the others use its result."""
        return first_of_each(self.group_turns.index.units[ids], fresh)

    def next_turns(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn after `turns` in which the result of each sample's unit is recomputed next."""
        return super().next_turns(self.group_turns.index.units[np.asarray(ids)], turns)

    def substitute(self, rows: PlannedRows, epoch: int, turns: NDArray[np.int64]) -> PlannedRows:
        """The rows with each sample replaced by the member whose result its unit uses.

        Every row has a view of its own: the member's own row has the view it has without substitution.
        """
        units, sizes = self.group_turns.index.units, self.group_turns.index.sizes
        planned, positions = rows.ids, self.group_turns.positions
        substitutes = self.group_turns.on_turn(planned, self.rounds(units[planned], turns))
        distances = (positions[planned] - positions[substitutes]) % sizes[planned]
        # A result is computed where it is used first, whichever row was balanced for that.
        fresh = self.recomputed(planned, np.equal(rows.generations, turns))
        # A sample that occurs n times in the plan has n rows for each member's distance.
        draws = rows.turns // NEXT_DRAW * sizes[planned] + distances
        views = epoch + draws * NEXT_DRAW
        return rows._replace(ids=substitutes, substituted_ids=planned, turns=views, fresh=fresh)


def reads_saved(rows: PlannedRows, due: NDArray[np.bool_]) -> NDArray[np.int8]:
    """For each row of an epoch 1 if its own sample would have been computed (`due`), less 1 if one is."""
    assert rows.substituted_ids is not None
    firsts = np.zeros(len(due), dtype=bool)  # A sample that occurs more than once is computed once.
    firsts[np.unique(rows.substituted_ids, return_index=True)[1]] = True
    saved: NDArray[np.int8] = (due & firsts).astype(np.int8) - rows.fresh.astype(np.int8)
    return saved


def superseded(order: BatchOrder, turns: GroupTurns) -> NDArray[np.int64]:
    """The samples whose cached results are not used again, because others of their groups were computed."""
    computed = order.ids[order.fresh]
    return np.setdiff1d(turns.with_duplicates(computed), computed)
