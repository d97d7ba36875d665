"""Which sequence of samples an epoch has, and one rank's plan of it."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.chosen_sequence import chosen_sequence
from rekindle.choose.plain_sequence import PlainSequence, shuffled_order
from rekindle.choose.plan import EpochPlan, EpochSequence
from rekindle.choose.rank_homes import Dealt
from rekindle.choose.refresh_schedule import Refresh
from rekindle.choose.refurbish_sequence import CostsOf, RefurbishSequence
from rekindle.choose.sample_ids import Ids
from rekindle.choose.shard import ONE_RANK, EpochLayout, EpochStart, Shard


class _RequiredPlanArguments(TypedDict):
    size: int
    epoch: int
    seed: int
    shuffle: bool
    batch_size: int
    drop_last: bool


class PlanArguments(_RequiredPlanArguments, total=False):
    """The arguments of `plan_epoch` that order and batch samples, whichever they are."""

    shard: Shard
    start: EpochStart | None
    refresh: Refresh | None
    balance: bool
    costs_of: CostsOf | None


def plan_epoch(
    *,
    size: int,
    epoch: int,
    seed: int,
    shuffle: bool,
    batch_size: int,
    drop_last: bool,
    shard: Shard | None = None,
    start: EpochStart | None = None,
    refresh: Refresh | None = None,
    balance: bool = True,
    costs_of: CostsOf | None = None,
) -> EpochPlan:
    """A rank's plan of an epoch that has every sample once, shuffled or in order.

    With `refresh`, cached results are reused. A shuffled epoch is then sharded by generation and balanced:
    each batch has the same share of samples to recompute, or of their costs. What is left out of a shuffled
    epoch are samples that need not be recomputed in it.

    `start` is where the rank starts in an epoch that others, of another world or batch size, have begun.

    >>> plan = plan_epoch(size=5, epoch=0, seed=1, shuffle=False, batch_size=2, drop_last=False)
    >>> [plan.batch(step).ids.tolist() for step in range(plan.steps)]
    [[0, 1], [2, 3], [4]]
    """
    shard = shard or ONE_RANK
    start = start or EpochStart(EpochLayout(shard.world, batch_size))
    sequence: EpochSequence
    if refresh is None:
        sequence = PlainSequence(size, epoch, shuffled_order(size, seed, epoch) if shuffle else None)
    else:
        begun = Shard(0, start.layout.world, shard.drop_last)
        served = size - begun.left_out(size, start.layout.batch_size, drop_last)
        if shuffle:
            sequence = RefurbishSequence(
                refresh.serving(served), epoch, start.layout, balance=balance, costs_of=costs_of, seed=seed
            )
        else:  # Those behind the last batch never come.
            sequence = PlainSequence(served, epoch, None, Refresh(served, refresh.factor, refresh.seed))
    return EpochPlan(sequence, batch_size, drop_last, shard, start)


def plan_chosen(
    ids: Ids,
    weights: NDArray[np.float32],
    uses: NDArray[np.int64] | None,
    cached: NDArray[np.int64] | None,
    dealt: Dealt | None = None,
    *,
    even_weights: bool,
    size: int,
    epoch: int,
    seed: int,
    shuffle: bool,
    batch_size: int,
    drop_last: bool,
    shard: Shard | None = None,
    start: EpochStart | None = None,
    refresh: Refresh | None = None,
    balance: bool = True,
    costs_of: CostsOf | None = None,
) -> EpochPlan:
    """The same for samples that were chosen of `size`; see `chosen_sequence`."""
    shard = shard or ONE_RANK
    start = start or EpochStart(EpochLayout(shard.world, batch_size))
    sequence = chosen_sequence(
        ids, weights, uses, cached, dealt, epoch=epoch, seed=seed, shuffle=shuffle, drop_last=drop_last,
        layout=start.layout, refresh=refresh, balance=balance, costs_of=costs_of,
    )  # fmt: skip
    return EpochPlan(sequence, batch_size, drop_last, shard, start, even_weights)
