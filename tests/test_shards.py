"""Ranks divide an epoch evenly, keep what they have cached, and hand over to any other number of ranks."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.choose import (
    Choice,
    EpochLayout,
    EpochPlan,
    EpochStart,
    Refresh,
    Shard,
    plan_echo,
    plan_epoch,
)
from rekindle.choose.duplicates.group_turns import GroupTurns
from rekindle.choose.duplicates.representatives import GroupIndex
from rekindle.choose.duplicates.substitution import SubstitutingRefresh
from rekindle.errors import ArgumentError

FACTORS = st.one_of(st.integers(1, 6), st.sampled_from([1.5, 2.5, 4 / 3, 3.75]))
SEEDS = st.integers(0, 2**63 - 1)
LAYOUT = {"seed": 5, "shuffle": True, "drop_last": False}


def ranks(world, drop=False, **arguments):
    return [plan_epoch(**arguments, shard=Shard(rank, world, drop)).all_rows() for rank in range(world)]


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(ArgumentError, match="no rank 4 of 4"):
        Shard(4, 4)


# Sharding by generation.


@settings(max_examples=40)
@given(
    st.integers(9, 300), st.integers(1, 9), FACTORS, SEEDS, st.integers(1, 20),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_ranks_have_equal_shares_of_every_epoch_and_keep_what_they_computed(
    size, world, factor, seed, batch_size, drop_last, drop, balance
):
    refresh, owner = Refresh(size, factor, seed), {}
    for epoch in range(8):
        shares = ranks(
            world, drop, size=size, epoch=epoch, seed=seed, shuffle=True, batch_size=batch_size,
            drop_last=drop_last, refresh=refresh, balance=balance,
        )  # fmt: skip
        assert len({len(share.ids) for share in shares}) == 1
        views, own = Counter(), {}
        for rank, share in enumerate(shares):
            views.update(
                zip(share.ids.tolist(), np.broadcast_to(share.turns, share.ids.shape).tolist(), strict=True)
            )
            for id_, generation, fresh in zip(share.ids, share.generations, share.fresh, strict=True):
                if fresh:
                    own[id_, generation] = rank
                else:  # Computed on this rank, in this epoch or before it.
                    assert owner.get((id_, generation), own.get((id_, generation))) == rank
        owner |= own
        assert set(views.values()) <= {1}
        ids = {id_ for id_, _ in views}
        if not drop_last and not drop:
            assert ids == set(range(size))
        else:
            assert size - len(ids) < world * (batch_size if drop_last else 1)


@pytest.mark.parametrize("world", [1, 2, 3, 8, 13, 64])
def test_a_third_is_recomputed_and_each_rank_caches_its_share_for_any_number_of_ranks(world):
    size, epochs = 10_007, 7
    refresh, caches = Refresh(size, 3, 1), [{} for _ in range(world)]
    computed = used = 0
    for epoch in range(epochs):
        fresh_of_ranks = []
        for cache, share in zip(
            caches,
            ranks(world, **LAYOUT, size=size, epoch=epoch, batch_size=16, refresh=refresh),
            strict=True,
        ):
            wanted = dict(zip(share.ids.tolist(), share.generations.tolist(), strict=True))
            missing = sum(cache.get(id_) != generation for id_, generation in wanted.items())
            cache.update(wanted)
            for gone in cache.keys() - wanted.keys():  # It has gone to another rank.
                del cache[gone]
            fresh_of_ranks.append(missing)
            if epoch:
                computed, used = computed + missing, used + len(share.ids)
            assert abs(len(cache) - size / world) <= 1
        assert max(fresh_of_ranks) - min(fresh_of_ranks) <= 2
    assert computed / used < 0.3345


@pytest.mark.parametrize(("size", "world"), [(36, 3), (35, 3), (48, 4)])
def test_all_pairs_of_samples_meet_on_a_rank_over_time(size, world):
    refresh, met = Refresh(size, 3, 1), set()
    for epoch in range(0, 240, 3):
        for share in ranks(world, **LAYOUT, size=size, epoch=epoch, batch_size=4, refresh=refresh):
            met.update(combinations(sorted(set(share.ids.tolist())), 2))
    assert met == set(combinations(range(size), 2))


def test_which_rank_a_sample_comes_to_is_as_random_as_a_deal():
    """Two samples are on one rank as often as chance has it, also where the size divides by the ranks."""
    size, world, together, rounds = 60, 4, 0, 0
    refresh = Refresh(size, 2, 1)
    for epoch in range(0, 200, 2):
        for share in ranks(world, **LAYOUT, size=size, epoch=epoch, batch_size=4, refresh=refresh):
            together += {0, 1} <= set(share.ids.tolist())
        rounds += 1
    assert 0.12 < together / rounds < 0.38  # 14 / 59 is about 0.24.


# Any other number of ranks goes on where one stopped.


def _refurbish(size, factor=3):
    refresh = Refresh(size, factor, 5)
    return lambda **given: plan_epoch(size=size, epoch=4, **LAYOUT, refresh=refresh, **given)


def _by_cost(size):
    refresh, costs = Refresh(size, 3, 5), np.random.default_rng(0).random(size).astype(np.float32)
    return lambda **given: plan_epoch(
        size=size, epoch=4, **LAYOUT, refresh=refresh, costs_of=costs.__getitem__, **given
    )


def _echo(size):
    return lambda **given: plan_echo(size=size, epoch=4, **LAYOUT, factor=2, buffer=8, **given)


def _chosen(size):
    drawn = np.random.default_rng(1)
    ids = drawn.integers(0, size, size)  # Some come more than once.
    choice = Choice(ids, drawn.random(size).astype(np.float32), np.full(size, 3))
    refresh = Refresh(size, 3, 5)
    return lambda **given: choice.plan(size=size, epoch=4, **LAYOUT, refresh=refresh, **given)


def _near_duplicates(size):
    numbers = np.where(np.arange(size) % 3 < 2, np.arange(size) // 3, -1)  # pairs, and samples without any
    refresh = SubstitutingRefresh.over(GroupTurns.of(GroupIndex.of(numbers), 5), 3, 5)
    choice = Choice(np.arange(size), np.ones(size, dtype=np.float32), np.full(size, 4))
    return lambda **given: choice.plan(size=size, epoch=4, **LAYOUT, refresh=refresh, **given)


KINDS = {
    "plain": lambda size: lambda **given: plan_epoch(size=size, epoch=4, **LAYOUT, **given),
    "refurbish": _refurbish,
    "by cost": _by_cost,
    "echo": _echo,
    "chosen": _chosen,
    "near-duplicates": _near_duplicates,
}


def begin(plan, world, batch_size):
    """The global batches of an epoch from its beginning."""
    return global_batches(plan, world, batch_size, EpochStart(EpochLayout(world, batch_size)))


def global_batches(plan, world, batch_size, start):
    """The views in each step of all ranks, from a start on."""
    first = plan(batch_size=batch_size, shard=Shard(0, world), start=start)
    plans = [
        EpochPlan(first.sequence, batch_size, drop_last=False, shard=Shard(rank, world), start=start)
        for rank in range(world)
    ]
    assert len({one.steps for one in plans}) == 1
    batches = []
    for step in range(start.first_step, plans[0].steps):
        batch = []
        for one in plans:
            rows = one.batch(step)
            columns = (rows.ids, rows.generations, rows.turns, rows.weights)
            batch += zip(
                *(np.broadcast_to(column, rows.ids.shape).tolist() for column in columns), strict=True
            )
        batches.append(sorted(batch))
    return batches


SOME, ALL = (1, 2, 3, 5, 8, 12), tuple(range(1, 13))  # ranks


@pytest.mark.parametrize(
    ("kind", "worlds"),
    [
        *((kind, ALL if kind == next(iter(KINDS)) else SOME) for kind in KINDS),
        *(pytest.param(kind, ALL, marks=pytest.mark.slow) for kind in [*KINDS][1:]),
    ],
)
def test_any_world_goes_on_where_any_other_stopped(kind, worlds):
    """Any two numbers of ranks: what is left comes, once, with the views that it would have had."""
    size, batch_size = 101, 2
    plan = KINDS[kind](size)
    for before in worlds:
        whole = begin(plan, before, batch_size)
        length = plan(batch_size=batch_size, shard=Shard(0, before), start=None).sequence.length
        steps = max(1, len(whole) // 3)
        consumed = steps * before * batch_size
        left = Counter(view for batch in whole[steps:] for view in batch)
        for after in worlds:
            layouts = EpochLayout(before, batch_size), EpochLayout(after, batch_size)
            rest = global_batches(plan, after, batch_size, EpochStart.after(consumed, *layouts))
            came = Counter(view for batch in rest for view in batch)
            assert set(came.values()) <= {1}
            real = {view for view in came if view[2] < 1 << 44}  # no repetitions to fill the last batch
            expected = {view for view in left if view[2] < 1 << 44}
            assert real == expected
            assert len(expected) == length - consumed
            assert len(came) - len(real) < after
            if before == after:
                assert rest == whole[steps:]


@pytest.mark.parametrize("kind", KINDS)
def test_with_an_equal_global_batch_the_global_batches_are_the_same_sets(kind):
    plan = KINDS[kind](192)
    whole = begin(plan, 4, 6)
    for world in (1, 2, 3, 6, 12):
        start = EpochStart.after(72, EpochLayout(4, 6), EpochLayout(world, 24 // world))
        assert global_batches(plan, world, 24 // world, start) == whole[3:]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(worlds=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 7)), min_size=5, max_size=5))
def test_a_chain_of_worlds_sees_every_sample_of_the_epoch_once(kind, worlds):
    plan = KINDS[kind](500)
    first = EpochLayout(*worlds[0])
    everything = {view for batch in begin(plan, *worlds[0]) for view in batch if view[2] < 1 << 44}
    consumed, seen = 0, []
    for number, (world, batch_size) in enumerate(worlds):
        now = EpochLayout(world, batch_size)
        start = EpochStart.after(consumed, first, now)
        batches = global_batches(plan, world, batch_size, start)
        done = batches if number == len(worlds) - 1 else batches[:2]
        seen += [view for batch in done for view in batch if view[2] < 1 << 44]
        consumed = start.consumed(start.first_step + len(done), now)
    assert len(set(seen)) == len(seen)
    assert set(seen) == everything


def test_how_far_an_epoch_is_consumed_is_the_same_in_any_layout():
    plan = plan_epoch(
        size=100, epoch=0, seed=0, shuffle=True, batch_size=5, drop_last=False, shard=Shard(1, 3),
        start=EpochStart(EpochLayout(2, 4), offset=40),
    )  # fmt: skip
    assert [plan.consumed(step) for step in range(3)] == [40, 55, 70]
