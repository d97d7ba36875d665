"""Groups of near-duplicates as arrays, and which sample represents a group in an epoch.

Every mode uses the same rule: the member with the lowest priority represents its group. What differs is where
priorities come from (turns in `group_turns`, random numbers in `Buckets`) and what happens to the other
members: they are removed, or the representative is substituted for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """The units of a dataset: a unit is a group, or a sample without near-duplicates.

    >>> index = GroupIndex.of(np.array([0, 1, 1, 0, -1, 1]))
    >>> index.units.tolist(), index.sizes.tolist()
    ([0, 1, 1, 0, 2, 1], [2, 3, 3, 2, 1, 3])
    """

    units: _Ids  # of each sample, numbered in the order of their first members
    sizes: _Ids  # how many members each sample's unit has
    number_of_units: int

    @classmethod
    def of(cls, group_numbers: _Ids) -> GroupIndex:
        """The units of samples whose group numbers are given; below 0: no near-duplicates."""
        firsts = np.arange(len(group_numbers))
        grouped = np.flatnonzero(group_numbers >= 0)
        _, rows, inverse = np.unique(group_numbers[grouped], return_index=True, return_inverse=True)
        firsts[grouped] = grouped[rows][inverse]
        _, units, sizes = np.unique(firsts, return_inverse=True, return_counts=True)
        return cls(units.astype(np.int64), sizes[units].astype(np.int64), len(sizes))

    def representatives(self, ids: _Ids, priority: NDArray[np.generic]) -> _Ids:
        """For each of `ids`, the sample among them that represents its unit.

        `priority` has an entry for every sample of the dataset; the lowest wins, then the lowest id.
        """
        chosen = ids.copy()
        rows = np.flatnonzero(self.sizes[ids] > 1)
        members, units = ids[rows], self.units[ids[rows]]
        order = np.lexsort((members, priority[members], units))
        _, firsts, inverse = np.unique(units[order], return_index=True, return_inverse=True)
        chosen[rows[order]] = members[order][firsts][inverse]
        return chosen
