"""Plans of reuse: every sample as often as it should be, every batch at the same cost."""

import math
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calls import calls_of
from rekindle.choose import Refresh, Shard, plan_echo, plan_epoch
from rekindle.choose.draws import earlier_occurrences
from rekindle.choose.echo_order import EchoOrder, copies_of, echoed, echoed_length, echoed_stream
from rekindle.core.counter_rng import NEXT_DRAW

SIZES = st.integers(1, 300)
FACTORS = st.one_of(st.integers(1, 6), st.sampled_from([1.5, 2.5, 4 / 3, 3.75]))
SEEDS = st.integers(0, 2**63 - 1)
BATCHES = st.integers(1, 40)
COSTS = np.random.default_rng(0).random(300).astype(np.float32)


def plans(size, factor, seed, batch_size, drop_last=False, epochs=12, **more):
    refresh = Refresh(size, factor, seed)
    for epoch in range(epochs):
        yield plan_epoch(
            size=size, epoch=epoch, seed=seed, shuffle=True, batch_size=batch_size, drop_last=drop_last,
            refresh=refresh, **more,
        )  # fmt: skip


@given(SIZES, FACTORS, SEEDS, BATCHES, st.booleans())
def test_every_sample_comes_once_an_epoch(size, factor, seed, batch_size, by_cost):
    for plan in plans(size, factor, seed, batch_size, costs_of=COSTS.__getitem__ if by_cost else None):
        assert sorted(plan.all_rows().ids.tolist()) == list(range(size))


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
    costs_of = COSTS.__getitem__ if by_cost else None
    for plan in plans(size, factor, seed, batch_size, drop_last, costs_of=costs_of):
        misses = [int(plan.batch(step).fresh.sum()) for step in range(size // batch_size)]
        assert not misses or max(misses) - min(misses) <= 1


@given(SIZES, FACTORS, SEEDS, BATCHES, st.booleans(), st.integers(2, 5))
def test_batches_of_a_rank_have_the_same_number_of_misses_and_those_of_all_ranks_about(
    size, factor, seed, batch_size, by_cost, world
):
    costs_of = COSTS.__getitem__ if by_cost else None
    shares = [
        plans(size, factor, seed, batch_size, costs_of=costs_of, shard=Shard(rank, world), epochs=4)
        for rank in range(world)
    ]
    for ranks in zip(*shares, strict=True):
        everyone = []
        for plan in ranks:
            full = min(plan.samples, size // world) // batch_size
            misses = [int(plan.batch(step).fresh.sum()) for step in range(full)]
            assert not misses or max(misses) - min(misses) <= 1
            everyone += misses
        assert not everyone or max(everyone) - min(everyone) <= 2


@given(SIZES, FACTORS, SEEDS, BATCHES)
def test_a_plan_is_the_same_whenever_it_is_computed(size, factor, seed, batch_size):
    one, two = (
        list(plans(size, factor, seed, batch_size, costs_of=COSTS.__getitem__, epochs=4)) for _ in range(2)
    )
    for a, b in zip(one, two, strict=True):
        for mine, other in zip(a.all_rows(), b.all_rows(), strict=True):
            assert np.array_equal(mine, other)


def test_plans_do_not_change_from_version_to_version():
    """These numbers are in users' checkpoints and caches."""
    rows = list(plans(10, 3, 7, 4, epochs=5))[4].all_rows()
    assert rows.ids.tolist() == [3, 4, 7, 0, 6, 2, 8, 5, 9, 1]
    assert rows.generations.tolist() == [2, 4, 2, 3, 3, 4, 3, 2, 4, 2]
    rows = list(plans(10, 3, 7, 4, epochs=5, shard=Shard(1, 2)))[4].all_rows()
    assert rows.ids.tolist() == [7, 9, 8, 1, 2]
    assert rows.generations.tolist() == [2, 4, 3, 2, 4]


def test_costs_are_spread_far_more_evenly_than_by_chance():
    costs = np.random.default_rng(0).lognormal(0, 0.8, 20_000).astype(np.float32)
    spread = {}
    for name, costs_of in (("cost", costs.__getitem__), ("misses", None)):
        plan = list(plans(20_000, 3, 1, 64, costs_of=costs_of, epochs=3))[2]
        sums = [costs[rows.ids[rows.fresh]].sum() for rows in map(plan.batch, range(312))]
        spread[name] = np.std(sums) / np.mean(sums)
    assert spread["cost"] < spread["misses"] / 3


def test_samples_share_a_batch_with_others_in_every_epoch():
    """Balancing costs must not put the same samples into a batch over and over."""
    costs = np.random.default_rng(0).lognormal(0, 0.8, 3_000).astype(np.float32)
    planned = list(plans(3_000, 3, 1, 30, costs_of=costs.__getitem__, epochs=8))
    together = Counter()
    for plan in planned[1::3]:  # Epochs that refresh the same third.
        for rows in map(plan.batch, range(plan.steps)):
            ids = sorted(rows.ids[rows.fresh].tolist())
            together.update((a, b) for a in ids for b in ids if a < b)
    pairs = sum(together.values())
    often = sum(count for count in together.values() if count > 1)
    assert often / pairs < 0.05  # by chance: about 2 %


@given(SIZES, FACTORS, SEEDS, BATCHES)
def test_without_balance_or_shuffle_there_is_the_same_to_recompute(size, factor, seed, batch_size):
    refresh = Refresh(size, factor, seed)
    for epoch in range(6):
        for shuffle in (False, True):
            rows = plan_epoch(
                size=size, epoch=epoch, seed=seed, shuffle=shuffle, batch_size=batch_size, drop_last=False,
                refresh=refresh, balance=False,
            ).all_rows()  # fmt: skip
            assert sorted(rows.ids.tolist()) == list(range(size))
            assert shuffle or rows.ids.tolist() == list(range(size))
            assert np.array_equal(rows.generations, refresh.generations(rows.ids, epoch))
            assert np.array_equal(rows.fresh, rows.generations == epoch)


def test_a_million_samples_are_planned_in_few_calls():
    refresh = Refresh(1_000_000, 3, 1)

    def plan(epoch):
        plan = plan_epoch(
            size=1_000_000, epoch=epoch, seed=1, shuffle=True, batch_size=256, drop_last=False,
            refresh=refresh, costs_of=lambda ids: np.ones(len(ids), dtype=np.float32),
        )  # fmt: skip
        plan.batch(plan.steps // 2)

    plan(4)  # What is made once is made by now.
    assert 1 < calls_of(lambda: plan(5)) < 10_000


# Echoes.


@given(st.integers(0, 200), FACTORS, st.integers(0, 100), SEEDS)
def test_every_source_comes_out_factor_times(sources, factor, buffer, seed):
    echoes = echoed(sources, factor, buffer, seed=seed, turn=3)
    order = EchoOrder(sources, factor, buffer, seed=seed, turn=3)
    cuts = [0, order.length // 3, order.length // 2, order.length]
    copies = np.concatenate([order.copies(*stretch) for stretch in pairwise(cuts)])
    assert np.array_equal(order.sources(copies), echoes.sources)
    repeats, is_last = order.repeats(copies)
    assert np.array_equal(repeats, echoes.repeats)
    assert np.array_equal(is_last, earlier_occurrences(echoes.sources[::-1])[::-1] == 0)
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


@given(SIZES, FACTORS, SEEDS, BATCHES, st.booleans(), st.integers(1, 4))
def test_an_echoed_epoch(size, factor, seed, batch_size, shuffle, world):
    views = set()
    for rank in range(world):
        plan = plan_echo(
            size=size, epoch=2, seed=seed, shuffle=shuffle, batch_size=batch_size, drop_last=False,
            factor=factor, buffer=16, shard=Shard(rank, world),
        )  # fmt: skip
        rows = plan.all_rows()
        assert len(rows.ids) == echoed_length(-(-size // world), factor)
        assert int(rows.fresh.sum()) == len(set(rows.ids.tolist()))
        assert rows.generations == 2
        views |= set(zip(rows.ids.tolist(), rows.turns.tolist(), strict=True))
        assert len(views) == (rank + 1) * len(rows.ids)  # No view is computed twice.
        assert set((rows.turns % NEXT_DRAW).tolist()) == {2}
        assert int(rows.last_uses.sum()) == len(set(rows.ids.tolist()))
        for id_ in set(rows.ids.tolist()):
            assert rows.last_uses[np.flatnonzero(rows.ids == id_)[-1]]


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
        fresh = plan.all_rows().fresh.reshape(-1, 32)
        assert (fresh.sum(1) == 16).all()
        pairs.append((fresh == np.roll(fresh, 1, axis=1)).mean())
        rows += fresh.sum(0)
    assert 0.4 < np.mean(pairs) < 0.58  # 15 / 31, where it was 0
    assert rows.min() > 20  # of 80
