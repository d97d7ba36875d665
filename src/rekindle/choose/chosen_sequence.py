"""The sequence of an epoch whose samples were chosen: arrays, as what was chosen is one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.balanced_shuffle import balanced_order
from rekindle.choose.draws import earlier_occurrences
from rekindle.choose.plain_sequence import shuffled_order
from rekindle.choose.plan import EpochSequence
from rekindle.choose.planned_rows import PlannedRows, constant
from rekindle.choose.rank_homes import Dealt
from rekindle.choose.refresh_schedule import Refresh
from rekindle.choose.refurbish_sequence import CostsOf
from rekindle.choose.sample_ids import Ids, are_ascending
from rekindle.choose.shard import EpochLayout, Shard
from rekindle.core import counter_rng
from rekindle.core.keyed_permutation import KeyedPermutation

_Numbers = NDArray[np.int64]


class ArraySequence:
    """Rows that are all there, as arrays."""

    first_rank = 0

    def __init__(self, rows: PlannedRows, epoch: int) -> None:
        self._rows, self.epoch, self.length = rows, epoch, len(rows.ids)
        self.period = max(self.length, 1)

    def rows(self, first: int, count: int, stride: int) -> PlannedRows:
        """The rows at `first`, `first + stride`, …"""
        return self._rows.part(slice(first, first + count * stride, stride))


class ChosenRows:
    """Chosen samples, none of which is reused: as they are, or in an order that is evaluated as they come."""

    first_rank = 0

    def __init__(
        self, ids: Ids, weights: NDArray[np.float32], epoch: int, order: KeyedPermutation | None
    ) -> None:
        self._ids, self._weights, self.epoch, self._order = ids, weights, epoch, order
        self.length = len(ids)
        self._repeats = not are_ascending(ids) and are_ascending(ids, strictly=False)
        self._turns = epoch if self._repeats else _turns(ids, epoch)
        self.period = max(self.length, 1)

    def rows(self, first: int, count: int, stride: int) -> PlannedRows:
        """The rows at `first`, `first + stride`, …"""
        rows = first + stride * np.arange(count)
        if self._order is not None:
            rows = self._order.forward(rows)
        ids, turns = self._ids[rows], self._turns
        if self._repeats:  # Equal ones are side by side: how many come before is where they begin.
            turns = self.epoch + (rows - np.searchsorted(self._ids, ids)) * counter_rng.NEXT_DRAW
        elif not isinstance(turns, int):
            turns = turns[rows]
        weights = self._weights[rows]
        return PlannedRows(
            ids.astype(np.int64, copy=False), self.epoch, turns, constant(np.bool_(True), count), weights
        )


def chosen_sequence(
    chosen: Ids,
    weights: NDArray[np.float32],
    uses: _Numbers | None,
    cached: _Numbers | None,
    dealt: Dealt | None = None,
    *,
    epoch: int,
    seed: int,
    shuffle: bool,
    drop_last: bool,
    layout: EpochLayout,
    refresh: Refresh | None = None,
    balance: bool = True,
    costs_of: CostsOf | None = None,
) -> EpochSequence:
    """Chosen samples, shuffled or as they are, for ranks that take them in turn.

    `weights` says what each counts for, and `uses`, with `refresh`, how often it was used before: by that,
    and not by epochs, its cached result ages. `cached` are the generations that the rows use, where these do
    not follow from `refresh`; −1 is none, for a row that is left out. Ranks that the rows were `dealt` to
    have those of a shuffled epoch, whoever lays it out.
    """
    if refresh is None:
        order_of_rows = shuffled_order(len(chosen), seed, epoch) if shuffle else None
        return ChosenRows(chosen, weights, epoch, order_of_rows)
    assert uses is not None  # They are counted where something is reused.
    ids = chosen.astype(np.int64, copy=False)
    turns = _turns(ids, epoch)
    generations = refresh.generations(ids, uses) if cached is None else cached
    is_due = (generations == uses) | (generations < 0)
    generations = np.where(is_due, uses, generations)
    fresh = refresh.recomputed(ids, is_due)
    last = np.empty(0, dtype=np.int64)  # the rows that are left out
    left_out = Shard(world=layout.world).left_out(len(ids), layout.batch_size, drop_last)
    is_dealt = shuffle and dealt is not None and dealt.world == layout.world > 1
    if shuffle and left_out and not is_dealt:
        if cached is None:
            last = refresh.spare_first(ids, uses, fresh)[:left_out]
        else:
            last = without_result_first(cached, fresh, seed, epoch)[:left_out]
    costs = None if costs_of is None or not (shuffle and balance) else costs_of(ids)
    if not shuffle:
        order = np.arange(len(ids))
    elif is_dealt:
        assert dealt is not None
        order = _order_of_dealt(dealt, ids, is_due, refresh, layout.batch_size, seed, epoch, balance, costs)
    elif not balance:
        order = _without(counter_rng.permutation(len(ids), seed, epoch), last)
    else:
        order = balanced_order(
            fresh, layout.batch_size, seed=seed, epoch=epoch, costs=costs, world=layout.world, left_out=last
        )
    rows = PlannedRows(ids, generations, turns, is_due, weights).part(order)
    parts = []
    for rank in range(layout.world):  # A result is computed where it is used first, on each rank.
        of_rank = slice(rank, None, layout.world)
        own = rows.part(of_rank)
        own = own._replace(fresh=refresh.recomputed(own.ids, own.fresh))
        parts.append((of_rank, refresh.substitute(own, epoch, uses[order[of_rank]])))
    return ArraySequence(PlannedRows.joined(parts), epoch)


def _order_of_dealt(
    dealt: Dealt,
    ids: _Numbers,
    is_due: NDArray[np.bool_],
    refresh: Refresh,
    batch_size: int,
    seed: int,
    epoch: int,
    balance: bool,
    costs: NDArray[np.float32] | None,
) -> _Numbers:
    """The rows in an order in which each rank has those that it was dealt; those of no rank are the last."""
    world, count = dealt.world, int(np.count_nonzero(dealt.ranks >= 0))
    by_rank = np.argsort(dealt.ranks, kind="stable")
    order = np.empty(len(ids), dtype=np.int64)
    order[count:] = by_rank[: len(ids) - count]
    starts = np.searchsorted(dealt.ranks[by_rank], np.arange(world + 1))
    for rank in range(world):
        rows = by_rank[starts[rank] : starts[rank + 1]]
        own = int(counter_rng.split(counter_rng.base(seed, counter_rng.Step.DEALT, epoch), rank)[0])
        if balance:
            fresh = refresh.recomputed(ids[rows], is_due[rows])
            own_costs = None if costs is None else costs[rows]
            within = balanced_order(fresh, batch_size, seed=own, epoch=epoch, costs=own_costs)
        else:
            within = counter_rng.permutation(len(rows), own, epoch)
        order[rank:count:world] = rows[within]
    return order


def without_result_first(generations: _Numbers, fresh: NDArray[np.bool_], seed: int, epoch: int) -> _Numbers:
    """Rows in the order in which they are left out: those without a result, those that have one, others."""
    drawn = counter_rng.seeds(seed, np.arange(len(fresh)), epoch, counter_rng.Step.LEFT_OUT)
    return np.lexsort((drawn, fresh, generations >= 0))


def _without(order: _Numbers, left_out: _Numbers) -> _Numbers:
    return order if not len(left_out) else order[~np.isin(order, left_out)]


def _turns(ids: Ids, epoch: int) -> int | _Numbers:
    """A turn for each row: occurrences are counted in `ids`, whichever order and rank they get."""
    if are_ascending(ids) or np.bincount(ids).max(initial=0) <= 1:
        return epoch
    return epoch + earlier_occurrences(ids) * counter_rng.NEXT_DRAW
