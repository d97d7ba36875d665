"""Near-copies that stand in for each other, so that of each group only one part is made at a time.

"On a cache miss serve a cached member of the group" (IOWA), followed from epoch to epoch, comes to this: one
member's part is kept, all members' places are filled from it, and when it has been used for as many turns as
`Refurbish` says, the group needs another one. Here that is the plan itself: a group has one place on the
circle of `Refresh`, and whose part is made follows from how often the circle has come round. What happens to
be in the cache decides nothing, so bytes are exact; and each member has its turn, so none is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rekindle.choose.copies import Copies
from rekindle.choose.echo import REPEAT
from rekindle.choose.plan import EpochPlan
from rekindle.choose.refresh import Refresh


@dataclass(frozen=True, eq=False)
class StandIns(Refresh):
    """A `Refresh` whose circle is that of units: a group is made anew at once, by one of its members."""

    copies: Copies = field(kw_only=True)

    @classmethod
    def over(cls, copies: Copies, factor: float, seed: int) -> StandIns:
        """The circle of these units."""
        return cls(copies.number_of_units, factor, seed, copies=copies)

    def generations(self, ids: ArrayLike, turns: ArrayLike) -> NDArray[np.int64]:
        """The turn in which the part was made that each sample's unit uses in its turn `turns`."""
        return super().generations(self.copies.units[np.asarray(ids)], turns)

    def made(self, ids: NDArray[np.int64], fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of the `fresh` samples the first one of each unit: the others find its part."""
        rows = np.flatnonzero(fresh)
        firsts = np.unique(self.copies.units[ids[rows]], return_index=True)[1]
        made = np.zeros(len(ids), dtype=bool)
        made[rows[firsts]] = True
        return made

    def stood_in(self, plan: EpochPlan, turns: NDArray[np.int64] | int) -> EpochPlan:
        """The plan with each sample's place filled by the member whose part its unit uses.

        Each place has a view of its own: that of the member itself in its own place, others in the others'.
        """
        copies, own = self.copies, plan.ids
        served = copies.on_turn(own, self.rounds(copies.units[own], turns))
        distances = (copies.places[own] - copies.places[served]) % copies.counts[own]
        # A part is made where it is used first, whichever place was balanced for that.
        fresh = self.made(own, plan.generations == turns)
        return replace(plan, ids=served, own=own, turns=plan.turns + distances * REPEAT, fresh=fresh)


def reads_spared(plan: EpochPlan, plain: Refresh, turns: NDArray[np.int64] | int) -> NDArray[np.int8]:
    """For each place of such a plan 1 if its own sample would have been made, and −1 if one was made there.

    `turns` are those of the places' own samples, had nobody stood in for them, and `plain` is their circle.
    """
    assert plan.own is not None
    due = plain.generations(plan.own, turns) == turns
    firsts = np.zeros(len(due), dtype=bool)  # Of a sample that is there more than once, one is made.
    firsts[np.unique(plan.own, return_index=True)[1]] = True
    spared: NDArray[np.int8] = (due & firsts).astype(np.int8) - plan.fresh.astype(np.int8)
    return spared
