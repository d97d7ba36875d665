"""A plan holds every sample once, in torch's batches, and is the same whenever it is computed."""

from dataclasses import FrozenInstanceError
from functools import partial
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from calls import calls_of
from rekindle.choose import BatchOrder, EndOfEpoch, PlannedEpochs, iterable_orders, plan_epoch, planned_orders

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
    assert sorted(plan.ids.tolist()) == list(range(arguments["size"]))
    assert plan.generations.tolist() == [arguments["epoch"]] * arguments["size"]
    assert plan.fresh.all()
    assert (plan.weights == 1).all()
    assert plan.weights.dtype == np.float32
    if not arguments["shuffle"]:
        assert plan.ids.tolist() == list(range(arguments["size"]))


@given(PLANS)
def test_a_plan_computed_again_is_the_same_plan(arguments):
    assert np.array_equal(plan_epoch(**arguments).ids, plan_epoch(**arguments).ids)


@given(PLANS)
def test_batches_are_those_of_torchs_batch_sampler(arguments):
    plan = plan_epoch(**arguments)
    theirs = BatchSampler(plan.ids.tolist(), arguments["batch_size"], arguments["drop_last"])
    *orders, end = planned_orders(plan)
    assert [order.indices for order in orders] == list(theirs)
    assert plan.steps == len(theirs) == len(orders)
    assert end == EndOfEpoch(arguments["epoch"])


@given(PLANS)
def test_orders_hold_all_that_the_plan_holds(arguments):
    plan = plan_epoch(**arguments)
    for step, order in enumerate(islice(planned_orders(plan), plan.steps)):
        rows = plan.rows(step)
        assert (order.epoch, order.step) == (arguments["epoch"], step)
        assert order.ids.tolist() == order.indices == plan.ids[rows].tolist()
        assert all(type(index) is int for index in order.indices)
        for name in ("generations", "turns", "fresh", "weights"):
            ours = np.broadcast_to(getattr(order, name), order.ids.shape)
            assert np.array_equal(ours, getattr(plan, name)[rows])
        assert order.peers is plan.ids


@given(PLANS, st.integers(0, 600))
def test_orders_may_start_at_any_step(arguments, first_step):
    plan = plan_epoch(**arguments)
    rest = list(planned_orders(plan, first_step))
    assert _outline(rest) == _outline(list(planned_orders(plan))[:-1][first_step:] + rest[-1:])
    assert rest[-1] == EndOfEpoch(arguments["epoch"])


def _outline(orders):
    return [(o.step, o.indices) if isinstance(o, BatchOrder) else o for o in orders]


@given(PLANS, st.integers(1, 9))
def test_ranks_share_the_samples_without_overlap_and_evenly(arguments, world):
    shares = [plan_epoch(**arguments, rank=rank, world=world).ids for rank in range(world)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(arguments["size"]))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


@given(PLANS, st.integers(1, 9))
def test_ranks_together_train_in_the_order_of_one(arguments, world):
    alone = plan_epoch(**arguments).ids
    for rank in range(world):
        assert np.array_equal(plan_epoch(**arguments, rank=rank, world=world).ids, alone[rank::world])


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
        return plan_epoch(
            size=50, epoch=epoch, seed=1, shuffle=True, batch_size=5, drop_last=False
        ).ids.tolist()

    assert len({tuple(ids(epoch)) for epoch in range(20)}) == 20


def test_a_stream_has_numbered_batches_without_end():
    orders = list(islice(iterable_orders(3, 4), 3))
    assert [order.step for order in orders] == [0, 1, 2]
    assert [order.ids.tolist() for order in orders] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [len(order.indices) for order in islice(iterable_orders(0, None), 2)] == [1, 1]


def test_a_plan_cannot_be_changed():
    plan = plan_epoch(size=4, epoch=0, seed=0, shuffle=False, batch_size=2, drop_last=False)
    with pytest.raises(FrozenInstanceError):
        plan.epoch = 1
    with pytest.raises(ValueError, match="read-only"):
        plan.weights[0] = 2


def test_ten_million_samples_are_planned_in_few_calls_and_little_memory():
    plans = []

    def plan_it():
        plans.append(
            plan_epoch(size=10_000_000, epoch=0, seed=1, shuffle=True, batch_size=256, drop_last=False)
        )

    assert 1 < calls_of(plan_it) < 1000  # And not one for each sample or batch.
    (plan,) = plans
    assert next(planned_orders(plan)).indices == plan.ids[:256].tolist()
    for constant in (plan.generations, plan.fresh, plan.weights):
        assert constant.strides == (0,)
    seen = np.zeros(10_000_000, dtype=bool)
    seen[plan.ids] = True
    assert seen.all()
