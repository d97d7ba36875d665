"""Which member of a group of near-duplicates has its turn.

The members of a group stand in a circular order that is drawn from the seed, and take turns: over as many
turns as there are members, each comes once. So no member is lost for good, which one it is follows from the
turn alone, and earlier turns need no counting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.duplicates.representatives import GroupIndex
from rekindle.core import counter_rng

_Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupTurns:
    """The order in which the members of each unit take turns."""

    index: GroupIndex
    positions: _Ids  # of each sample in its unit's circular order
    members: _Ids  # all samples, unit by unit, each unit in its circular order
    starts: _Ids  # where each unit begins in `members`

    @classmethod
    def of(cls, index: GroupIndex, seed: int) -> GroupTurns:
        """The turns that follow from this seed."""
        size = len(index.units)
        drawn = counter_rng.seeds(seed, np.arange(size), step=counter_rng.Step.DUPLICATES)
        members = np.lexsort((drawn, index.units)).astype(np.int64)
        sizes = np.bincount(index.units).astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        positions = np.empty(size, dtype=np.int64)
        positions[members] = np.arange(size) - starts[index.units[members]]
        return cls(index, positions, members, starts)

    def turns_until(self, turn: int) -> _Ids:
        """How many turns after this one each sample has its own: the priority of a representative."""
        return (self.positions - turn) % self.index.sizes

    def on_turn(self, ids: _Ids, turns: _Ids) -> _Ids:
        """The member of each sample's unit that has this turn: its representative if all are candidates."""
        return self.members[self.starts[self.index.units[ids]] + turns % self.index.sizes[ids]]

    def turns_before(self, ids: _Ids, turn: int) -> _Ids:
        """How many of the turns before this one each sample has had."""
        return (turn - self.positions[ids] + self.index.sizes[ids] - 1) // self.index.sizes[ids]

    def with_duplicates(self, ids: _Ids) -> _Ids:
        """These samples and all others of their groups, each once."""
        return self.members_of(np.unique(self.index.units[ids]))

    @cached_property
    def unit_sizes(self) -> _Ids:
        """How many members each unit has."""
        return np.diff(self.starts, append=len(self.members))

    def members_of(self, units: _Ids) -> _Ids:
        """All samples of these units, unit by unit."""
        sizes = self.unit_sizes[units]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows: _Ids = np.repeat(self.starts[units], sizes) + within
        return self.members[rows]
