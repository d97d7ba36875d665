"""A plan holds every sample once, in torch's batches, and is the same whenever it is computed."""

import tracemalloc
from dataclasses import FrozenInstanceError
from functools import partial
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from calls import calls_of
from rekindle.choose import (
    BatchOrder,
    EndOfEpoch,
    PlannedEpochs,
    Refresh,
    Shard,
    iterable_orders,
    plan_epoch,
    planned_orders,
)

PLANS = st.fixed_dictionaries(
    {
        "size": st.integers(0, 500),
        "epoch": st.integers(0, 10_000),
        "seed": st.integers(0, 2**63 - 1),
        "shuffle": st.booleans(),
        "batch_size": st.integers(1, 70),
        "drop_last": st.booleans(),
    }
)


@given(PLANS)
def test_a_plan_has_every_sample_once_and_fresh(arguments):
    plan = plan_epoch(**arguments)
    rows, size, batch_size = plan.all_rows(), arguments["size"], arguments["batch_size"]
    left_out = size % batch_size if arguments["drop_last"] else 0
    assert len(set(rows.ids.tolist())) == len(rows.ids) == plan.samples == size - left_out
    assert set(rows.ids.tolist()) <= set(range(size))
    assert rows.generations == rows.turns == arguments["epoch"]
    assert rows.fresh.all()
    assert (rows.weights == 1).all()
    assert rows.weights.dtype == np.float32
    if not arguments["shuffle"]:
        assert rows.ids.tolist() == list(range(size - left_out))


@given(PLANS)
def test_a_plan_computed_again_is_the_same_plan(arguments):
    assert np.array_equal(plan_epoch(**arguments).all_rows().ids, plan_epoch(**arguments).all_rows().ids)


@given(PLANS)
def test_batches_are_those_of_torchs_batch_sampler(arguments):
    plan = plan_epoch(**arguments)
    everything = plan_epoch(**{**arguments, "drop_last": False}).all_rows().ids.tolist()
    theirs = BatchSampler(everything, arguments["batch_size"], arguments["drop_last"])
    *orders, end = planned_orders(plan)
    assert [order.indices for order in orders] == list(theirs)
    assert plan.steps == len(theirs) == len(orders)
    assert end == EndOfEpoch(arguments["epoch"])


@given(PLANS)
def test_orders_hold_all_that_the_plan_holds(arguments):
    plan = plan_epoch(**arguments)
    everything, size = plan.all_rows(), arguments["batch_size"]
    for step, order in enumerate(islice(planned_orders(plan), plan.steps)):
        rows = everything.part(slice(step * size, (step + 1) * size))
        assert (order.epoch, order.step) == (arguments["epoch"], step)
        assert order.ids.tolist() == order.indices == rows.ids.tolist()
        assert all(type(index) is int for index in order.indices)
        for name in ("generations", "turns", "fresh", "weights"):
            assert np.array_equal(getattr(order, name), getattr(rows, name))
        assert order.plan is plan


@given(PLANS, st.lists(st.integers(0, 500), max_size=20))
def test_batches_may_be_asked_for_in_any_order(arguments, steps):
    plan, again = plan_epoch(**arguments), plan_epoch(**arguments)
    in_order = [plan.batch(step).ids.tolist() for step in range(plan.steps)]
    for step in steps:
        if step < plan.steps:
            assert again.batch(step).ids.tolist() == in_order[step]


@given(PLANS, st.integers(0, 600))
def test_orders_may_start_at_any_step(arguments, first_step):
    plan = plan_epoch(**arguments)
    rest = list(planned_orders(plan, first_step))
    assert _outline(rest) == _outline(list(planned_orders(plan))[:-1][first_step:] + rest[-1:])
    assert rest[-1] == EndOfEpoch(arguments["epoch"])


def _outline(orders):
    return [(o.step, o.indices) if isinstance(o, BatchOrder) else o for o in orders]


@given(PLANS, st.integers(1, 9), st.booleans())
def test_ranks_divide_the_samples_as_torchs_distributed_sampler_does(arguments, world, drops):
    """Each rank has as many; what cannot be divided is repeated or left out."""
    arguments = {**arguments, "shuffle": False, "drop_last": False}
    numbers = range(arguments["size"])
    for rank in range(world):
        plan = plan_epoch(**arguments, shard=Shard(rank, world, drops))
        if drops or len(numbers):  # torch cannot pad nothing.
            theirs = DistributedSampler(numbers, world, rank, shuffle=False, drop_last=drops)
            assert plan.all_rows().ids.tolist() == list(theirs)


@given(PLANS, st.integers(1, 9))
def test_ranks_together_train_in_the_order_of_one(arguments, world):
    alone = plan_epoch(**{**arguments, "drop_last": False}).all_rows().ids
    for rank in range(world):
        own = plan_epoch(**arguments, shard=Shard(rank, world)).all_rows().ids
        expected = alone[rank::world][: len(own)]
        assert np.array_equal(own[: len(expected)], expected)


@given(PLANS, st.integers(2, 9))
def test_a_repeated_sample_is_another_view(arguments, world):
    views = []
    for rank in range(world):
        rows = plan_epoch(**arguments, shard=Shard(rank, world)).all_rows()
        views += zip(rows.ids.tolist(), np.broadcast_to(rows.turns, rows.ids.shape).tolist(), strict=True)
    assert len(set(views)) == len(views)


def _plan(size, arguments, epoch):
    return plan_epoch(size=size(), epoch=epoch, **arguments)


@given(PLANS)
def test_epochs_follow_each_other_without_end(arguments):
    arguments = dict(arguments)
    epoch, size = arguments.pop("epoch"), arguments.pop("size")
    plan_of = partial(_plan, lambda: size, arguments)
    orders = PlannedEpochs(plan_of, epoch=epoch, first_step=0, without=())
    for number in (epoch, epoch + 1, epoch + 2):
        plan = plan_epoch(size=size, epoch=number, **arguments)
        ours = list(islice(orders, plan.steps + 1))
        assert _outline(ours) == _outline(planned_orders(plan))


def test_a_first_epoch_may_go_on_in_its_middle_and_leave_out_steps():
    arguments = {"seed": 0, "shuffle": False, "batch_size": 2, "drop_last": False}
    plan_of = partial(_plan, lambda: 10, arguments)
    orders = PlannedEpochs(plan_of, epoch=4, first_step=1, without={2})
    steps = [(o.epoch, o.step) for o in islice(orders, 12) if isinstance(o, BatchOrder)]
    assert steps == [(4, 1), (4, 3), (4, 4), *((5, n) for n in range(5)), (6, 0), (6, 1)]


def test_a_dataset_that_grows_is_seen_in_the_next_epoch():
    samples = [0, 1]
    arguments = {"seed": 0, "shuffle": False, "batch_size": 8, "drop_last": False}
    plan_of = partial(_plan, lambda: len(samples), arguments)
    orders = PlannedEpochs(plan_of, epoch=0, first_step=0, without=())
    assert next(orders).indices == [0, 1]
    samples.append(2)
    assert next(orders) == EndOfEpoch(0)
    assert next(orders).indices == [0, 1, 2]


def test_shuffled_epochs_differ_from_each_other():
    def ids(epoch):
        return (
            plan_epoch(size=50, epoch=epoch, seed=1, shuffle=True, batch_size=5, drop_last=False)
            .all_rows()
            .ids.tolist()
        )

    assert len({tuple(ids(epoch)) for epoch in range(20)}) == 20


def test_a_stream_has_numbered_batches_without_end():
    orders = list(islice(iterable_orders(3, 4), 3))
    assert [order.step for order in orders] == [0, 1, 2]
    assert [order.ids.tolist() for order in orders] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [len(order.indices) for order in islice(iterable_orders(0, None), 2)] == [1, 1]


def test_a_plan_cannot_be_changed():
    plan = plan_epoch(size=4, epoch=0, seed=0, shuffle=False, batch_size=2, drop_last=False)
    with pytest.raises(FrozenInstanceError):
        plan.batch_size = 1
    with pytest.raises(ValueError, match="read-only"):
        plan.batch(0).weights[0] = 2


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("refresh", [None, Refresh(10**12, 3, 1)])
@pytest.mark.parametrize("shard", [Shard(), Shard(5, 64)])
def test_a_trillion_samples_are_planned_in_few_calls_and_little_memory(shuffle, refresh, shard):
    size, plans = 10**12, []

    def plan_it():
        plan = plan_epoch(
            size=size, epoch=7, seed=1, shuffle=shuffle, batch_size=256, drop_last=False, refresh=refresh,
            shard=shard,
        )  # fmt: skip
        plans.append([plan.batch(0), plan.batch(plan.steps // 2), plan.batch(plan.steps - 1)])

    plan_it()  # What is made once is made by now.
    tracemalloc.start()
    assert 1 < calls_of(plan_it) < 5000  # And not one for each sample or batch.
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300e6  # Tables of a million entries, the square root: not one for each sample.
    for rows in plans[0]:
        assert len(set(rows.ids.tolist())) == len(rows.ids) > 0
        assert 0 <= rows.ids.min() <= rows.ids.max() < size
