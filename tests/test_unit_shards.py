"""Near-duplicates that share results are sharded by generation: ranks recompute what one process does."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.choose.duplicates.group_turns import GroupTurns
from rekindle.choose.duplicates.representatives import GroupIndex
from rekindle.choose.duplicates.substitution import SubstitutingRefresh
from rekindle.choose.duplicates.unit_shards import UnitShards
from rekindle.choose.rank_homes import NOWHERE
from rekindle.choose.shard import Shard


def shards(sizes, world, factor=3, seed=5):
    """Units of these sizes, their samples in random places, dealt to so many ranks."""
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    numbers[np.isin(numbers, np.flatnonzero(np.asarray(sizes) == 1))] = -1
    np.random.default_rng(seed).shuffle(numbers)
    turns = GroupTurns.of(GroupIndex.of(numbers), seed)
    return UnitShards(SubstitutingRefresh.over(turns, factor, seed), world)


class Caches:
    """What ranks with private caches compute, epoch by epoch."""

    def __init__(self, dealt, drop_last=False, batch_size=8):
        self.dealt, self.drop_last, self.batch_size = dealt, drop_last, batch_size
        self.held = [{} for _ in range(dealt.world)]

    def epoch(self, epoch):
        """The rows of each rank, and how many results it had to compute."""
        choice = self.dealt.choice(epoch, self.batch_size, self.drop_last)
        shares, computed, world = [], [], self.dealt.world
        plan = choice.plan(
            size=len(self.dealt.refresh.group_turns.members), epoch=epoch, seed=1, shuffle=True,
            batch_size=self.batch_size, drop_last=self.drop_last, refresh=self.dealt.refresh,
        )  # fmt: skip
        for rank, cache in enumerate(self.held):
            rows = replace(plan, shard=Shard(rank, world)).all_rows()
            for id_ in self.dealt.released(epoch, rank).tolist():
                assert cache.pop(id_, epoch - 1) < epoch
            wanted = dict(zip(rows.ids.tolist(), rows.generations.tolist(), strict=True))
            missing = {id_ for id_, generation in wanted.items() if cache.get(id_) != generation}
            assert missing == set(rows.ids[rows.fresh].tolist()) or epoch
            cache |= wanted
            shares.append(rows)
            computed.append(len(missing))
        return shares, computed


@pytest.mark.parametrize("world", [1, 2, 8, 64])
@pytest.mark.parametrize("sizes", ["few groups", "pairs", "some large"])
def test_any_number_of_ranks_recomputes_a_third(world, sizes):
    few = [2, 3, 5] * 60 + [1] * 3830
    sizes = {"few groups": few, "pairs": [2] * 2221, "some large": [1] * 3600 + [2] * 200 + [90] * 5}[sizes]
    ranks, samples = Caches(shards(sizes, world)), sum(sizes)
    for epoch in range(6):
        shares, computed = ranks.epoch(epoch)
        substituted = Counter(id_ for share in shares for id_ in share.substituted_ids.tolist())
        assert set(substituted) == set(range(samples))
        assert sum(substituted.values()) - samples == -samples % world
        assert len({len(share.ids) for share in shares}) == 1
        if epoch:
            assert sum(computed) <= len(sizes) / 3 + 2 + 6 * world / 3  # those split among ranks
            assert sum(computed) <= 0.34 * samples
            assert max(map(len, ranks.held)) <= 1.02 * samples / world + 8


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 5),
    st.sampled_from([1, 1.5, 3]), st.booleans(),
)  # fmt: skip
def test_all_ranks_have_as_many_rows_and_groups_stay_together(sizes, world, epoch, factor, drop_last):
    dealt = shards(sizes, world, factor)
    ranks, samples = dealt.ranks(epoch), sum(sizes)
    counts = np.bincount(ranks, minlength=world)
    assert counts.sum() == samples
    assert np.ptp(counts) <= 1
    choice = dealt.choice(epoch, 4, drop_last)
    count = -(-samples // world)
    each = count - count % 4 if drop_last else count
    assert (
        np.bincount(choice.dealt.ranks[choice.dealt.ranks != NOWHERE], minlength=world).tolist()
        == [each] * world
    )
    total = np.zeros(samples)
    np.add.at(total, choice.ids, choice.weights)
    np.testing.assert_allclose(total, 1, rtol=1e-6)
    if max(sizes) == 1:
        return
    homes, units = defaultdict(set), dealt.refresh.group_turns.index.units
    for unit, rank in zip(units.tolist(), ranks.tolist(), strict=True):
        homes[unit].add(rank)
    stretches = len(dealt.refresh.boundaries(epoch)) - 1
    assert sum(len(where) - 1 for where in homes.values()) <= stretches * world


def test_what_is_cached_stays_with_its_rank_and_all_meet_over_time():
    dealt, met = shards([1] * 24 + [2] * 8, 4), set()
    units = dealt.refresh.group_turns.index.units
    before = dealt.ranks(0)
    for epoch in range(1, 240):
        ranks = dealt.ranks(epoch)
        is_cached = dealt.refresh.generations(np.arange(40), np.full(40, epoch)) < epoch
        assert np.array_equal(ranks[is_cached], before[is_cached])
        met |= {
            (one, other)
            for rank in range(4)
            for one in units[ranks == rank]
            for other in units[ranks == rank]
        }
        before = ranks
    assert len(met) == 32 * 32


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return index, torch.rand(())


def same(value):
    return value


def loaders(world, **arguments):
    groups = rk.Redundancy([[i, i + 1, i + 2] for i in range(0, 36, 3)], "replace")
    return [
        rk.DataLoader(
            Numbers(), 4, shuffle=True, seed=3, shard=(rank, world), redundancy=groups, reuse=rk.Refurbish(3),
            final_transform=same, **arguments,
        )
        for rank in range(world)
    ]  # fmt: skip


@pytest.mark.parametrize("drop_last", [False, True])
def test_loaders_recompute_what_one_does_and_let_go_of_what_others_recompute(drop_last):
    ranks, recomputed, used = loaders(3, drop_last=drop_last), 0, 0
    for epoch in range(8):
        fresh = [loader.batch.fresh for loader in ranks for _ in loader]
        if epoch:
            recomputed, used = recomputed + sum(int(one.sum()) for one in fresh), used + sum(map(len, fresh))
        held = [loader.report().reuse.store.entries for loader in ranks]
        assert sum(held) <= 72 + 3
    assert recomputed / used <= 0.34 * 72 / 96 + 0.02


def test_other_ranks_go_on_with_the_rest_of_the_epoch():
    first = loaders(4)
    for loader in first:
        list(loader)
    seen = []
    for loader in first:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
            seen += loader.batch.ids.tolist()
    rest, second = [], loaders(2)
    for loader in second:
        loader.load_state_dict(first[2].state_dict())
        rest += [int(id_) for _ in loader for id_ in loader.batch.ids]
    alone = loaders(1)[0]
    list(alone)
    assert sorted(seen + rest) == sorted(int(id_) for _ in alone for id_ in alone.batch.ids)
