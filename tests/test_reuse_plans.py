"""Plans of reuse: every sample as often as it should be, every batch at the same cost."""

import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calls import calls_of
from rekindle.choose import Refresh, plan_echo, plan_epoch
from rekindle.choose.echo_order import copies_of, echoed, echoed_length, echoed_stream
from rekindle.core.counter_rng import NEXT_DRAW

SIZES = st.integers(1, 300)
FACTORS = st.one_of(st.integers(1, 6), st.sampled_from([1.5, 2.5, 4 / 3, 3.75]))
SEEDS = st.integers(0, 2**63 - 1)
BATCHES = st.integers(1, 40)


def plans(size, factor, seed, batch_size, drop_last=False, epochs=12, **more):
    refresh = Refresh(size, factor, seed)
    for epoch in range(epochs):
        yield plan_epoch(
            size=size, epoch=epoch, seed=seed, shuffle=True, batch_size=batch_size, drop_last=drop_last,
            refresh=refresh, **more,
        )  # fmt: skip


@given(SIZES, FACTORS, SEEDS, BATCHES, st.booleans())
def test_every_sample_comes_once_an_epoch(size, factor, seed, batch_size, by_cost):
    costs = np.random.default_rng(0).random(size).astype(np.float32) if by_cost else None
    for plan in plans(size, factor, seed, batch_size, costs=costs):
        assert sorted(plan.ids.tolist()) == list(range(size))


@given(SIZES, FACTORS, SEEDS)
def test_every_epoch_but_the_first_refreshes_the_same_number(size, factor, seed):
    refresh = Refresh(size, factor, seed)
    everyone = np.arange(size)
    assert (refresh.generations(everyone, 0) == 0).all()
    for epoch in range(1, 20):
        fresh = int((refresh.generations(everyone, epoch) == epoch).sum())
        assert abs(fresh - size / factor) <= 1


@given(SIZES, FACTORS, SEEDS)
def test_every_entry_is_used_factor_times(size, factor, seed):
    refresh, epochs = Refresh(size, factor, seed), 40
    uses = Counter()
    for epoch in range(epochs):
        for sample, generation in enumerate(refresh.generations(np.arange(size), epoch).tolist()):
            assert generation <= epoch
            uses[sample, generation] += 1
    for (_, generation), count in uses.items():
        if 0 < generation < epochs - math.ceil(factor):  # The first epoch shortens the first round.
            assert count in (math.floor(factor), math.ceil(factor))


@given(SIZES, st.integers(1, 6), SEEDS)
def test_an_entry_of_the_first_epoch_is_used_until_its_turn_comes(size, factor, seed):
    """Group g of factor many is refreshed in epoch g: only the first group stays for a whole round."""
    refresh = Refresh(size, factor, seed)
    first = Counter()
    for epoch in range(factor + 1):
        first.update(np.flatnonzero(refresh.generations(np.arange(size), epoch) == 0).tolist())
    assert set(first.values()) <= set(range(1, factor + 1))


@given(SIZES, FACTORS, SEEDS, BATCHES, st.booleans(), st.booleans())
def test_any_two_full_batches_have_the_same_number_of_misses(
    size, factor, seed, batch_size, drop_last, by_cost
):
    costs = np.random.default_rng(0).random(size).astype(np.float32) if by_cost else None
    for plan in plans(size, factor, seed, batch_size, drop_last, costs=costs):
        full = size // batch_size
        misses = [int(plan.fresh[plan.rows(step)].sum()) for step in range(full)]
        assert not misses or max(misses) - min(misses) <= 1


@given(SIZES, FACTORS, SEEDS, BATCHES, st.booleans(), st.integers(2, 5))
def test_full_batches_of_all_ranks_have_the_same_number_of_misses(
    size, factor, seed, batch_size, by_cost, world
):
    costs = np.random.default_rng(0).random(size).astype(np.float32) if by_cost else None
    shares = [
        plans(size, factor, seed, batch_size, costs=costs, rank=rank, world=world, epochs=4)
        for rank in range(world)
    ]
    for ranks in zip(*shares, strict=True):
        assert sorted(id_ for plan in ranks for id_ in plan.ids.tolist()) == list(range(size))
        misses = [
            int(plan.fresh[plan.rows(step)].sum())
            for plan in ranks
            for step in range(len(plan.ids) // batch_size)
        ]
        assert not misses or max(misses) - min(misses) <= 1


@given(SIZES, FACTORS, SEEDS, BATCHES)
def test_a_plan_is_the_same_whenever_it_is_computed(size, factor, seed, batch_size):
    costs = np.random.default_rng(0).random(size).astype(np.float32)
    one, two = (list(plans(size, factor, seed, batch_size, costs=costs, epochs=4)) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        for name in ("ids", "generations", "fresh", "turns"):
            assert np.array_equal(getattr(a, name), getattr(b, name))


def test_plans_do_not_change_from_version_to_version():
    """These numbers are in users' checkpoints and caches."""
    plan = list(plans(10, 3, 7, 4, epochs=5))[4]
    assert plan.ids.tolist() == [2, 9, 3, 8, 5, 6, 0, 4, 7, 1]
    assert plan.generations.tolist() == [2, 3, 2, 4, 2, 4, 3, 3, 2, 4]


def test_costs_are_spread_far_more_evenly_than_by_chance():
    costs = np.random.default_rng(0).lognormal(0, 0.8, 20_000).astype(np.float32)
    spread = {}
    for name, given_costs in (("cost", costs), ("misses", None)):
        plan = list(plans(20_000, 3, 1, 64, costs=given_costs, epochs=3))[2]
        sums = [costs[plan.ids[plan.rows(step)][plan.fresh[plan.rows(step)]]].sum() for step in range(312)]
        spread[name] = np.std(sums) / np.mean(sums)
    assert spread["cost"] < spread["misses"] / 3


def test_samples_share_a_batch_with_others_in_every_epoch():
    """Balancing costs must not put the same samples into a batch over and over."""
    costs = np.random.default_rng(0).lognormal(0, 0.8, 3_000).astype(np.float32)
    planned = list(plans(3_000, 3, 1, 30, costs=costs, epochs=8))
    together = Counter()
    for plan in planned[1::3]:  # Epochs that refresh the same third.
        for step in range(plan.steps):
            rows = plan.rows(step)
            ids = sorted(plan.ids[rows][plan.fresh[rows]].tolist())
            together.update((a, b) for a in ids for b in ids if a < b)
    pairs = sum(together.values())
    often = sum(count for count in together.values() if count > 1)
    assert often / pairs < 0.05  # by chance: about 2 %


def test_without_balance_or_shuffle_the_order_is_the_plain_one():
    refresh = Refresh(50, 3, 1)
    plain = plan_epoch(size=50, epoch=4, seed=1, shuffle=True, batch_size=8, drop_last=False)
    ours = plan_epoch(
        size=50, epoch=4, seed=1, shuffle=True, batch_size=8, drop_last=False, refresh=refresh, balance=False
    )
    assert np.array_equal(plain.ids, ours.ids)
    assert np.array_equal(ours.generations, refresh.generations(ours.ids, 4))


def test_a_million_samples_are_planned_in_few_calls():
    refresh = Refresh(1_000_000, 3, 1)
    costs = np.ones(1_000_000, dtype=np.float32)

    def plan(epoch):
        plan_epoch(
            size=1_000_000, epoch=epoch, seed=1, shuffle=True, batch_size=256, drop_last=False,
            refresh=refresh, costs=costs,
        )  # fmt: skip

    plan(4)  # What is made once is made by now.
    assert 1 < calls_of(lambda: plan(5)) < 10_000


# Echoes.


@given(st.integers(0, 200), FACTORS, st.integers(0, 100), SEEDS)
def test_every_source_comes_out_factor_times(sources, factor, buffer, seed):
    echoes = echoed(sources, factor, buffer, seed=seed, turn=3)
    counts = Counter(echoes.sources.tolist())
    assert len(echoes.sources) == echoed_length(sources, factor) == sum(counts.values())
    assert all(counts[source] == copies_of(source, factor) for source in range(sources) if counts[source])
    assert set(counts.values()) <= {math.floor(factor), math.ceil(factor)}
    seen = Counter()
    for source, repeat in zip(echoes.sources.tolist(), echoes.repeats.tolist(), strict=True):
        assert repeat == seen[source]
        seen[source] += 1


@given(FACTORS, st.integers(0, 3000), SEEDS)
@settings(max_examples=30)
def test_a_stream_of_echoes_is_in_the_same_order(factor, buffer, seed):
    finite = echoed(5000, factor, buffer, seed=seed, turn=1)
    stream = islice(echoed_stream(factor, buffer, seed=seed, turn=1), 5000 - buffer)
    assert list(stream) == list(zip(*(part[: 5000 - buffer].tolist() for part in finite), strict=True))


@given(st.integers(1, 200), FACTORS, st.integers(0, 100), SEEDS)
def test_a_copy_is_delayed_by_less_than_the_buffer(sources, factor, buffer, seed):
    echoes = echoed(sources, factor, buffer, seed=seed, turn=0)
    in_order = echoed(sources, factor, 0, seed=seed, turn=0).sources
    assert in_order.tolist() == sorted(in_order.tolist())
    for position, source in enumerate(echoes.sources.tolist()):
        first = int(np.searchsorted(in_order, source))
        assert abs(position - first) <= max(buffer, 0) + math.ceil(factor)


@given(SIZES, FACTORS, SEEDS, BATCHES, st.booleans())
def test_an_echoed_epoch(size, factor, seed, batch_size, shuffle):
    plan = plan_echo(
        size=size, epoch=2, seed=seed, shuffle=shuffle, batch_size=batch_size, drop_last=False,
        factor=factor, buffer=16,
    )  # fmt: skip
    assert int(plan.fresh.sum()) == len(set(plan.ids.tolist()))
    assert (plan.generations == 2).all()
    views = set(zip(plan.ids.tolist(), plan.turns.tolist(), strict=True))
    assert len(views) == len(plan.ids)  # No view is computed twice.
    assert set((plan.turns % NEXT_DRAW).tolist()) == {2}
    assert plan.last_uses is not None
    assert int(plan.last_uses.sum()) == len(set(plan.ids.tolist()))
    for id_ in set(plan.ids.tolist()):
        assert plan.last_uses[np.flatnonzero(plan.ids == id_)[-1]]


def test_shuffling_spreads_the_repeats():
    close = echoed(2000, 2, 0, seed=1, turn=0).sources
    apart = echoed(2000, 2, 1000, seed=1, turn=0).sources
    assert (np.diff(close) == 0).mean() > 0.4
    assert (np.diff(apart) == 0).mean() < 0.02


@pytest.mark.parametrize("factor", [1, 1.5, 2])
def test_lengths(factor):
    assert echoed_length(10, factor) == 10 * factor


def test_recomputed_samples_are_in_any_row_of_a_balanced_batch():
    """MixUp and CutMix pair neighbours: of two, both are recomputed as often as chance has it."""
    pairs, rows = [], np.zeros(32)
    for plan in islice(plans(320, 2, 5, 32, epochs=9), 1, None):
        fresh = plan.fresh.reshape(-1, 32)
        assert (fresh.sum(1) == 16).all()
        pairs.append((fresh == np.roll(fresh, 1, axis=1)).mean())
        rows += fresh.sum(0)
    assert 0.4 < np.mean(pairs) < 0.58  # 15 / 31, where it was 0
    assert rows.min() > 20  # of 80
