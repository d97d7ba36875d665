"""The sequence of an epoch that reuses cached results: sharded by generation, in balanced batches.

What an epoch recomputes is dealt to the ranks afresh, evenly and at random; until it is recomputed again, it
stays with the rank that computed it, whose cache has it. For that, the visits between two boundaries of the
schedule are put in a random order, drawn anew for every stretch of visits, and visit v belongs to rank
v mod world in that order. A window of an epoch begins and ends at boundaries, so each rank has every
`world`-th of its visits: as many as the others, give or take one, of what is recomputed as of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.balanced_shuffle import BalancedShuffle, evened_out
from rekindle.choose.planned_rows import PlannedRows, constant
from rekindle.choose.refresh_schedule import Refresh
from rekindle.choose.shard import EpochLayout
from rekindle.core import counter_rng
from rekindle.core.keyed_permutation import KeyedPermutation, keyed_permutation

if TYPE_CHECKING:
    from rekindle.choose.refurbish_kernel import CompiledRows

_Numbers: TypeAlias = NDArray[np.int64]
CostsOf: TypeAlias = Callable[[_Numbers], NDArray[np.float32]]  # what some samples cost to compute
_COST_WINDOW = 64  # batches whose costs are evened out together
_LONG = 1 << 23  # rows of a rank in an epoch from which on compiling the loop over them pays
_ORDERS = (counter_rng.Step.ROWS, counter_rng.Step.FRESH_ORDER, counter_rng.Step.CACHED_ORDER)
_MANY = 1 << 13  # rows at once: the first few of any epoch do not wait for a compiler


class RefurbishSequence:
    """All samples that an epoch serves, laid out for the ranks that it is begun with.

    `balance` gives every batch the same share of samples to recompute; with `costs_of`, of their costs. The
    order in which a rank has its samples follows from `seed`, by default that of the refresh.
    """

    def __init__(
        self,
        refresh: Refresh,
        epoch: int,
        layout: EpochLayout,
        *,
        balance: bool = True,
        costs_of: CostsOf | None = None,
        seed: int | None = None,
    ) -> None:
        self.epoch, self._refresh, self._world = epoch, refresh, layout.world
        self._seed = refresh.seed if seed is None else seed
        self.length = refresh.size if refresh.served is None else refresh.served
        # A row that is repeated is one of the same rank.
        whole = self.length // self._world * self._world
        self.period = whole or max(self.length, 1)
        self._window = refresh.window(epoch)
        self.first_rank = self._window.oldest % self._world
        self._batch_size, self._balance, self._costs_of = layout.batch_size, balance, costs_of
        self._of_rank = lru_cache(maxsize=None)(self._share)
        self._compiled = lru_cache(maxsize=1)(self._compiled_rows)

    def rows(self, first: int, count: int, stride: int) -> PlannedRows:
        """The rows at `first`, `first + stride`, …"""
        if stride == self._world:
            if count >= _MANY and self.length // self._world >= _LONG and self._is_plain:
                return self._many_rows(first % self._world, first // self._world, count)
            visits = self._visits(first % self._world, first // self._world + np.arange(count))
        else:
            positions = first + stride * np.arange(count)
            numbers, own = np.divmod(positions, self._world)
            visits = np.empty(count, dtype=np.int64)
            for one in np.unique(own).tolist():
                here = own == one
                visits[here] = self._visits(one, numbers[here])
        generations, ids = self._refresh.generations_of(visits), self._refresh.samples_of(visits)
        fresh = visits >= self._window.fresh
        return PlannedRows(ids, generations, self.epoch, fresh, constant(np.float32(1), count))

    @property
    def _is_plain(self) -> bool:
        return self._balance and self._costs_of is None

    @cached_property
    def _boundaries(self) -> list[int]:
        return self._refresh.boundaries(self.epoch) if self.length else []

    def _many_rows(self, own: int, first: int, count: int) -> PlannedRows:
        """The same as `rows`, by compiled code: `count` of a rank's from `first` on."""
        share, size = self._of_rank(own), self._batch_size
        batches = np.arange(first // size, (first + count - 1) // size + 2)
        begin, end = int(batches[0]) * size, min(int(batches[-1]) * size, share.count)
        slots = share.shuffle.slots(int(batches[0]), len(batches) - 1).astype(np.uint32, copy=False)
        ids, generations, fresh = self._compiled(own).rows(
            slots, int(batches[0]), share.shuffle.fresh_before(batches), end - begin
        )
        here = slice(first - begin, first - begin + count)
        weights = constant(np.float32(1), count)
        return PlannedRows(ids[here], generations[here], self.epoch, fresh[here], weights)

    def _compiled_rows(self, own: int) -> CompiledRows:
        from rekindle.choose.refurbish_kernel import CompiledRows, VisitStretches

        share, starts, seed = self._of_rank(own), self._boundaries, self._refresh.seed
        generations = self._refresh.generations_of(np.array(starts[:-1])).tolist()
        dealt = [_dealt_order(seed, *stretch) for stretch in pairwise(starts)] if self._world > 1 else []
        return CompiledRows(
            world=self._world,
            first_fresh=share.first_fresh,
            first_other=share.first_cached,
            stretches=VisitStretches(starts, generations, dealt),
            fresh_order=share.fresh_order,
            other_order=share.cached_order,
            circle=self._refresh.circle,
        )

    def _visits(self, own: int, numbers: _Numbers) -> _Numbers:
        """The visits of a rank's rows, of the one that has row `own` of the sequence."""
        share = self._of_rank(own)
        if not self._balance:
            return self._dealt_visits(share.first_cached, share.cached_order, numbers)
        shuffle = share.shuffle
        is_fresh, places = shuffle.places(numbers)
        visits = np.empty(len(numbers), dtype=np.int64)
        rows = np.flatnonzero(is_fresh)
        if self._costs_of is None:
            visits[rows] = self._dealt_visits(share.first_fresh, share.fresh_order, places[rows])
        else:
            visits[rows] = self._by_cost(share, numbers, places[rows])
        rows = np.flatnonzero(~is_fresh)
        visits[rows] = self._dealt_visits(share.first_cached, share.cached_order, places[rows])
        return visits

    def _dealt_visits(self, first: int, order: KeyedPermutation, places: _Numbers) -> _Numbers:
        """The visits at these places of a rank's order, whose first one was dealt as number `first`."""
        dealt = first + self._world * order.forward(places)
        return dealt if self._world == 1 else self._undealt(dealt)

    def _by_cost(self, share: _RankShare, numbers: _Numbers, places: _Numbers) -> _Numbers:
        """The same with the costs of batches evened out, in windows of batches."""
        if not len(places):
            return places
        assert self._costs_of is not None
        rows = self._batch_size * _COST_WINDOW
        windows = range(int(numbers.min()) // rows, int(numbers.max()) // rows + 1)
        first, found = 0, list[_Numbers]()
        for window in windows:
            batches = np.arange(window * _COST_WINDOW, (window + 1) * _COST_WINDOW + 1)
            bounds = share.shuffle.fresh_before(batches)
            first = first if found else int(bounds[0])
            numbers = np.arange(bounds[0], bounds[-1])
            visits = self._dealt_visits(share.first_fresh, share.fresh_order, numbers)
            costs = self._costs_of(self._refresh.samples_of(visits))
            found.append(visits[evened_out(costs, bounds[1:] - bounds[0])])
        evened: _Numbers = np.concatenate(found)[places - first]
        return evened

    def _undealt(self, dealt: _Numbers) -> _Numbers:
        """The visits that stand at positions of the order in which they are dealt to ranks."""
        if not len(dealt):
            return dealt
        lowest, highest = dealt.min(), dealt.max()
        for start, stop in pairwise(self._boundaries):
            if stop <= lowest or start > highest:
                continue
            order = _dealt_order(self._refresh.seed, start, stop)
            if start <= lowest and highest < stop:
                return start + order.forward(dealt - start)
            here = np.flatnonzero((dealt >= start) & (dealt < stop))
            dealt[here] = start + order.forward(dealt[here] - start)
        return dealt

    def _share(self, own: int) -> _RankShare:
        """What the rank has that comes `own` rows after the first."""
        world = self._world
        oldest, fresh_from, end = self._window
        rank = (own + self.first_rank) % world
        first_cached = oldest + own
        first_fresh = fresh_from + (rank - fresh_from) % world
        count, fresh = (len(range(first, end, world)) for first in (first_cached, first_fresh))
        cached = count - fresh if self._balance else count
        within_batches, of_fresh, of_cached = counter_rng.keys(self._seed, _ORDERS, self.epoch, rank)
        return _RankShare(
            count,
            first_cached,
            first_fresh,
            KeyedPermutation(fresh, of_fresh),
            KeyedPermutation(cached, of_cached),
            BalancedShuffle(count, fresh, self._batch_size, within_batches),
        )


@dataclass(frozen=True, eq=False, slots=True)
class _RankShare:
    """The visits of a rank: every `world`-th from these on, and the orders in which they come."""

    count: int
    first_cached: int
    first_fresh: int
    fresh_order: KeyedPermutation
    cached_order: KeyedPermutation
    shuffle: BalancedShuffle


def _dealt_order(seed: int, start: int, stop: int) -> KeyedPermutation:
    """The order in which the visits from `start` up to `stop` are dealt to ranks."""
    return keyed_permutation(stop - start, counter_rng.base(seed, counter_rng.Step.DEALT, start))
