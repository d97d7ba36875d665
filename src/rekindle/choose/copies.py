"""Groups of near-copies as arrays, and which member of a group has its turn.

A unit is a group, or a sample without copies. The members of a group stand on a circle, in an order drawn
from keys, and take turns: over as many turns as there are members, each comes once. So no member is lost for
good, which one it is follows from the turn alone, and how often each came before needs no counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle import keys

_Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Copies:
    """The units of a data set; arrays have one entry a sample, but for `starts`: one a unit."""

    units: _Ids  # the number of each sample's unit
    places: _Ids  # of each sample on its unit's circle
    counts: _Ids  # how many members the sample's unit has
    members: _Ids  # all samples, unit by unit, each unit in the order of its circle
    starts: _Ids  # where each unit begins in `members`

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], size: int, seed: int) -> Copies:
        """The units of a data set of `size` samples with these groups."""
        units = np.arange(size)
        for group in groups:
            units[list(group)] = min(group)
        units = np.unique(units, return_inverse=True)[1].astype(np.int64)
        drawn = keys.seeds(seed, np.arange(size), step=keys.Step.COPIES)
        members = np.lexsort((drawn, units)).astype(np.int64)
        sizes = np.bincount(units).astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        places = np.empty(size, dtype=np.int64)
        places[members] = np.arange(size) - starts[units[members]]
        return cls(units, places, sizes[units], members, starts)

    @property
    def number_of_units(self) -> int:
        return len(self.starts)

    def with_copies(self, ids: _Ids) -> _Ids:
        """These samples and all others of their groups, each once."""
        units, firsts = np.unique(self.units[ids], return_index=True)
        counts = self.counts[ids[firsts]]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows: _Ids = np.repeat(self.starts[units], counts) + within
        return self.members[rows]

    def on_turn(self, ids: _Ids, turns: _Ids) -> _Ids:
        """The member of each sample's unit that has this turn."""
        return self.members[self.starts[self.units[ids]] + turns % self.counts[ids]]

    def turns_before(self, ids: _Ids, turn: int) -> _Ids:
        """How many of the turns before this one each sample has had."""
        return (turn - self.places[ids] + self.counts[ids] - 1) // self.counts[ids]

    def one_of_each(
        self, ids: _Ids, weights: NDArray[np.float32], turn: int, *, keep_totals: bool
    ) -> tuple[_Ids, NDArray[np.float32]]:
        """Of each unit's samples among `ids`, the one whose turn it is, or will be first.

        A sample that is there more than once stays so. With `keep_totals`, what stays of a unit has the
        weight of all that was there of it.
        """
        distances = (self.places[ids] - turn) % self.counts[ids]
        units = self.units[ids]
        nearest = np.full(self.number_of_units, len(self.units), dtype=np.int64)
        np.minimum.at(nearest, units, distances)
        kept = distances == nearest[units]
        if not keep_totals:
            return ids[kept], weights[kept]
        totals = np.bincount(units, weights, self.number_of_units)
        stayed = np.bincount(units[kept], weights[kept], self.number_of_units)
        rows = np.bincount(units[kept], minlength=self.number_of_units)
        of_unit = units[kept]
        scaled = weights[kept] * totals[of_unit] / np.where(stayed > 0, stayed, 1)[of_unit]
        shared = totals[of_unit] / rows[of_unit]  # what stays had no weight at all
        return ids[kept], np.where(stayed[of_unit] > 0, scaled, shared).astype(np.float32)
