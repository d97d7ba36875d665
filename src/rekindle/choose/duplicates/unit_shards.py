"""Which rank has which rows of an epoch whose near-duplicates share results: sharding by generation.

As in `choose/refurbish_sequence.py`, what an epoch recomputes is dealt to the ranks afresh, and stays with
them until it is recomputed again: the units between two boundaries of the schedule are dealt together. But a
unit has as many rows as members, all of which use one result. So it is dealt as a whole, the largest first,
to a random rank that still has room for it; samples without near-duplicates fill up what is left. Only a
group for which no rank has room is computed on more than one. The room of the ranks follows from positions of
rows, of which each rank has every `world`-th: so all have equally many rows in an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.draws import earlier_occurrences
from rekindle.choose.duplicates.substitution import SubstitutingRefresh
from rekindle.choose.rank_homes import NOWHERE, Dealt
from rekindle.choose.selection import Choice
from rekindle.choose.shard import EpochLayout, Shard
from rekindle.core import counter_rng
from rekindle.core.keyed_permutation import keyed_permutation

_Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UnitShards:
    """The units of a schedule, dealt to `world` ranks."""

    refresh: SubstitutingRefresh
    world: int

    def ranks(self, epoch: int) -> NDArray[np.int32]:
        """The rank of each sample's row in an epoch."""
        ranks = np.empty(len(self.refresh.group_turns.members), dtype=np.int32)
        for start, stop in pairwise(self.refresh.boundaries(epoch)):
            samples, dealt_to = self._deal(start, stop)
            ranks[samples] = dealt_to
        return ranks

    def choice(self, epoch: int, batch_size: int, drop_last: bool) -> Choice:
        """All samples of an epoch, dealt to the ranks: as many to each.

        A rank that has one less than others has one of its own twice, which then counts for half. An
        incomplete last batch is left out of each rank's own, what is recomputed next first.
        """
        ranks, world = self.ranks(epoch), self.world
        again = self._repeated(ranks, epoch)
        ids = np.concatenate([np.arange(len(ranks)), again])
        ranks = np.concatenate([ranks, self._lacking(ranks)])
        weights = (1 / (1 + np.bincount(again, minlength=len(ids))[ids])).astype(np.float32)
        uses = np.full(len(ids), epoch, dtype=np.int64)
        left_out = Shard(world=world).left_out(len(ids), batch_size, drop_last) // world
        if left_out:
            is_due = self.refresh.generations(ids, uses) == uses
            order = self.refresh.spare_first(ids, uses, self.refresh.recomputed(ids, is_due))
            ranks[order[earlier_occurrences(ranks[order]) < left_out]] = NOWHERE
        return Choice(ids, weights, uses, world=world, dealt=Dealt(world, ranks))

    def released(self, epoch: int, rank: int) -> _Numbers:
        """The samples whose results a rank used in the epoch before, and no rank uses from this one on."""
        if not epoch:
            return np.empty(0, dtype=np.int64)
        oldest, turns = self.refresh.window(epoch).oldest, self.refresh.group_turns
        used = [np.empty(0, dtype=np.int64)]
        for start, stop in pairwise(self.refresh.boundaries(epoch - 1)):
            if stop <= oldest:
                samples, dealt_to = self._deal(start, stop)
                used.append(samples[dealt_to == rank])
        ids = np.concatenate(used)
        return np.unique(turns.on_turn(ids, self.refresh.rounds(turns.index.units[ids], epoch - 1)))

    def _deal(self, start: int, stop: int) -> tuple[_Numbers, NDArray[np.int32]]:
        """The samples of the units that are visited from `start` up to `stop`, and the rank of each."""
        turns, world = self.refresh.group_turns, self.world
        key = counter_rng.base(self.refresh.seed, counter_rng.Step.DEALT, start)
        visits = start + keyed_permutation(stop - start, key).forward(np.arange(stop - start))
        units = self.refresh.samples_of(visits)
        sizes = turns.unit_sizes[units]
        room = _every_nth(self._rows_before(start), self._rows_before(stop), world)
        whole, ranks, others = [], [], []
        for size in np.unique(sizes[sizes > 1])[::-1].tolist():
            alike = units[sizes == size]
            drawn = _drawn_places(room // size, len(alike), int(counter_rng.split(key, size)[0]))
            room -= size * np.bincount(drawn, minlength=world)
            whole.append(alike[: len(drawn)])
            ranks.append(np.repeat(drawn, size))
            others.append(alike[len(drawn) :])
        fullest_last = np.argsort(-room, kind="stable")
        samples = turns.members_of(np.concatenate([*whole, *others, units[sizes == 1]]))
        return samples, np.concatenate([*ranks, np.repeat(fullest_last, room[fullest_last])]).astype(np.int32)

    def _rows_before(self, visit: int) -> int:
        """How many rows the units have that are visited before this one, counted from visit 0 on."""
        rounds, position = divmod(visit, self.refresh.size)
        return rounds * int(self._rows[-1]) + int(self._rows[position])

    @cached_property
    def _rows(self) -> _Numbers:
        """How many rows come before each position of the circle, and in all."""
        sizes = self.refresh.group_turns.unit_sizes
        on_circle = sizes[self.refresh.samples_of(np.arange(self.refresh.size))]
        return np.concatenate([[0], np.cumsum(on_circle)])

    def _lacking(self, ranks: NDArray[np.int32]) -> NDArray[np.int32]:
        """The ranks that have a row less than others."""
        counts = np.bincount(ranks, minlength=self.world)
        return np.flatnonzero(counts < -(-len(ranks) // self.world)).astype(np.int32)

    def _repeated(self, ranks: NDArray[np.int32], epoch: int) -> _Numbers:
        """A sample for each of these: one of their own, unless they have none."""
        found = []
        for rank in self._lacking(ranks).tolist():
            own = np.flatnonzero(ranks == rank)
            own = own if len(own) else np.arange(len(ranks))
            drawn = counter_rng.seeds(self.refresh.seed, rank, epoch, counter_rng.Step.DEALT)
            found.append(own[int(drawn.flat[0]) % len(own)])
        return np.array(found, dtype=np.int64)


def unit_shards(refresh: object, shuffle: bool, layout: EpochLayout) -> UnitShards | None:
    """What deals an epoch of such a layout; None if its rows are not dealt by the results that they share."""
    if not shuffle or layout.world == 1 or not isinstance(refresh, SubstitutingRefresh):
        return None
    return UnitShards(refresh, layout.world)


def _every_nth(start: int, stop: int, world: int) -> _Numbers:
    """How many of the positions from `start` up to `stop` each rank has, of which it has every n-th."""
    behind = world - 1 - np.arange(world)
    rooms: _Numbers = (stop + behind) // world - (start + behind) // world
    return rooms


def _drawn_places(places: _Numbers, count: int, key: int) -> _Numbers:
    """The ranks of up to `count` of the places that ranks have, drawn at random without replacement."""
    ranks = np.repeat(np.arange(len(places)), places)
    return ranks[keyed_permutation(len(ranks), key).forward(np.arange(min(count, len(ranks))))]
