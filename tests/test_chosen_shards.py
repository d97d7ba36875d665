"""Chosen samples are sharded by generation: ranks keep what they have cached, and recompute what one does."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.choose import EpochLayout, EpochStart, Measured, Refresh, Shard
from rekindle.choose.importance.session import ImportanceSession
from rekindle.choose.rank_homes import NOWHERE, RankHomes
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.core.counters import Counters
from scored import METHODS


def same(value):
    return value


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return index, torch.rand(())


def loaders(world, **arguments):
    return [
        rk.DataLoader(
            Numbers(), 4, shuffle=True, seed=3, shard=(rank, world), importance=rk.RandomSubset(0.75),
            reuse=rk.Refurbish(3), final_transform=same, **arguments,
        )
        for rank in range(world)
    ]  # fmt: skip


# Of 96 samples: groups of two, three and eight near-duplicates, and samples without any.
GROUPS = [[n, n + 48] for n in range(12)] + [[n, n + 10, n + 20] for n in range(12, 20)] + [[*range(80, 88)]]
SHARED = {"redundancy": rk.Redundancy(GROUPS, "replace")}


class Ranks:
    """The epochs of some ranks, each with a cache of its own that has no limit."""

    def __init__(self, method, world, size=4000, batch_size=16, drop_last=False, factor=3):
        self.world, self.size, self.batch_size, self.drop_last = world, size, batch_size, drop_last
        by_use = RefreshByUse(factor, batch_size, drop_last, shuffle=True)
        self.session = ImportanceSession(method, size, 7, Counters(), refresh=by_use, shard=Shard(0, world))
        self.refresh, self.caches = Refresh(size, factor, 7), [{} for _ in range(world)]
        self.losses = np.random.default_rng(1).exponential(size=size).astype(np.float32)

    def epoch(self, epoch):
        """Each rank's rows, and how many results it had to compute for them."""
        choice = self.session.choose(epoch)
        shares, computed = [], []
        for rank, cache in enumerate(self.caches):
            rows = choice.plan(
                size=self.size, epoch=epoch, seed=7, shuffle=True, batch_size=self.batch_size,
                drop_last=self.drop_last, shard=Shard(rank, self.world), refresh=self.refresh,
            ).all_rows()  # fmt: skip
            wanted = dict(zip(rows.ids.tolist(), rows.generations.tolist(), strict=True))
            computed.append(sum(cache.get(id_) != generation for id_, generation in wanted.items()))
            cache |= wanted
            for gone in () if choice.dealt is None else choice.dealt.gone_from(rank).tolist():
                cache.pop(gone, None)
            shares.append(rows)
        ids = np.unique(choice.ids)
        losses = self.losses[ids] / (1 + epoch)
        right = np.exp(-losses)
        correct, zeros = (right > 0.5).astype(np.int8), np.zeros(len(ids), np.int32)
        self.session.scores.note(epoch, Measured(ids, losses, right, (1 - right) / 2, correct, zeros))
        return shares, computed


@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_ranks_recomputes_what_one_does(name):
    alone = Ranks(METHODS[name](), 1)
    of_one = [alone.epoch(epoch)[1][0] for epoch in range(8)]
    for world in (2, 8):
        ranks, recomputed = Ranks(METHODS[name](), world), 0
        for epoch in range(8):
            shares, computed = ranks.epoch(epoch)
            chosen = Counter(ranks.session.choice.ids.tolist())
            assert Counter(id_ for share in shares for id_ in share.ids.tolist()) == chosen
            assert len({len(share.ids) for share in shares}) == 1
            recomputed += sum(computed)
            if epoch >= 4:
                assert sum(computed) <= 0.34 * sum(len(share.ids) for share in shares) or (
                    sum(computed) <= of_one[epoch] + 2 * world
                )
        assert recomputed <= 1.01 * sum(of_one) + 8 * world


def test_each_rank_caches_its_share():
    ranks = Ranks(METHODS["InfoBatch"](), 4)
    for epoch in range(8):
        ranks.epoch(epoch)
        for cache in ranks.caches:
            assert abs(len(cache) - 1000) <= 50  # as chance has it: which of its samples are chosen


def test_samples_meet_on_ranks_over_time():
    ranks, met = Ranks(rk.RandomSubset(keep=0.5), 2, size=40, batch_size=4), set()
    for epoch in range(160):
        for share in ranks.epoch(epoch)[0]:
            ids = share.ids.tolist()
            met |= {(one, other) for one in ids for other in ids}
    assert len(met) == 40 * 40


@settings(max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=90), st.integers(1, 7), st.integers(0, 9), st.data())
def test_a_deal_gives_every_rank_its_share_and_moves_only_what_must(ids, world, left_out, data):
    ids = np.array(ids)
    homes = RankHomes(31, world)
    homes.ranks[:] = data.draw(st.lists(st.integers(-1, world - 1), min_size=31, max_size=31))
    before = homes.ranks.copy()
    due = np.array(data.draw(st.lists(st.booleans(), min_size=31, max_size=31)))[ids]
    last = np.random.default_rng(0).permutation(len(ids))[: min(left_out, len(ids))]
    dealt = homes.deal(ids, due, last, seed=1, epoch=2)
    assert (dealt.ranks[last] == NOWHERE).all()
    rows = np.setdiff1d(np.arange(len(ids)), last)
    counts = np.bincount(dealt.ranks[rows], minlength=world)
    assert counts.tolist() == [len(range(rank, len(rows), world)) for rank in range(world)]
    kept = rows[~due[rows] & (before[ids[rows]] >= 0)]
    for rank in range(world):
        own = kept[before[ids[kept]] == rank]
        stay = int((dealt.ranks[own] == rank).sum())
        assert stay == min(len(own), counts[rank]) or stay >= counts[rank]
    assert (dealt.gone_from(0) >= 0).all()
    again = RankHomes(31, world)
    again.ranks[:] = before
    assert np.array_equal(again.deal(ids, due, last, seed=1, epoch=2).ranks, dealt.ranks)


@pytest.mark.parametrize("drop_last", [False, True])
def test_other_ranks_go_on_with_what_was_dealt(drop_last):
    ranks = Ranks(rk.RandomSubset(keep=0.5), 4, size=400, batch_size=4, drop_last=drop_last)
    for epoch in range(3):
        ranks.epoch(epoch)
    choice, layout = ranks.session.choose(3), {"size": 400, "epoch": 3, "seed": 7, "shuffle": True}
    layout |= {"drop_last": drop_last, "refresh": ranks.refresh}

    def views(world, start, batch_size=4):
        return [
            choice.plan(**layout, batch_size=batch_size, shard=Shard(rank, world), start=start).all_rows()
            for rank in range(world)
        ]

    whole = views(4, None)
    seen = {int(id_) for share in whole for id_ in share.ids[:20]}
    start = EpochStart.after(80, EpochLayout(4, 4), EpochLayout(3, 4))
    rest = [int(id_) for share in views(3, start) for id_ in share.ids]
    left = {int(id_) for share in whole for id_ in share.ids} - seen
    assert len(seen) == 80
    if drop_last:  # More may come of those that were to be left out.
        assert len(set(rest)) == len(rest) > 400 // 2 - 80 - 12
        assert not seen & set(rest)
    else:
        assert set(rest) == left


def test_loaders_recompute_a_third_and_let_go_of_what_others_recompute():
    ranks, used, computed = loaders(3), 0, 0
    for epoch in range(9):
        fresh = [loader.batch.fresh for loader in ranks for _ in loader]
        if epoch >= 3:
            used, computed = used + sum(map(len, fresh)), computed + sum(int(one.sum()) for one in fresh)
        held = [loader.report().reuse.store.entries for loader in ranks]
        assert sum(held) <= 96
    assert computed / used <= 0.34


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("groups", ["small", "pairs", "one large"])
def test_near_duplicates_go_to_the_rank_that_has_their_result(groups, drop_last):
    pairs = [[n, n + 1] for n in range(0, 96, 2)]
    found = {"small": GROUPS, "pairs": pairs, "one large": [[*range(14)]]}[groups]
    misses, entries = {}, {}
    for world in (1, 2, 4):
        ranks = loaders(world, redundancy=rk.Redundancy(found, "replace"), drop_last=drop_last)
        for _ in range(9):
            steps = {sum(1 for _ in loader) for loader in ranks}
            assert len(steps) == 1
        stores = [loader.report().reuse.store for loader in ranks]
        misses[world] = sum(store.misses for store in stores)
        entries[world] = [store.entries for store in stores]
    for world in (2, 4):  # In each epoch, a group may stand at the border of two ranks.
        assert misses[world] <= misses[1] + 9 * world
        assert sum(entries[world]) <= entries[1][0] + 3 * world
        if groups != "one large":  # Whoever has that has fewer others.
            assert max(entries[world]) <= entries[1][0] / world + 12


@pytest.mark.parametrize("shared", [{}, SHARED], ids=["alone", "shared"])
@pytest.mark.parametrize("epoch", [0, 4])
def test_a_state_goes_on_with_what_was_dealt(epoch, shared):
    first = loaders(3, **shared)
    for _ in range(epoch):
        for loader in first:
            list(loader)
    running = [iter(loader) for loader in first]
    for batches in running * 2:
        next(batches)
    second = loaders(3, **shared)
    for loader in second:
        loader.load_state_dict(first[1].state_dict())
    for _ in range(3):
        for batches, loader in zip(running, second, strict=True):
            wanted = [(ids.tolist(), drawn.tolist()) for ids, drawn in batches]
            assert [(ids.tolist(), drawn.tolist()) for ids, drawn in loader] == wanted
        running = [iter(loader) for loader in first]


@pytest.mark.parametrize("shared", [{}, SHARED], ids=["alone", "shared"])
def test_ranks_of_another_number_are_dealt_to_again_between_two_epochs(shared):
    first = loaders(4, **shared)
    for loader in first:
        list(loader)
    misses = {}
    for world in (1, 3):
        after, misses[world] = loaders(world, **shared), []
        for loader in after:
            loader.load_state_dict(first[0].state_dict())
        for _ in range(3):
            fresh = [loader.batch.fresh for loader in after for _ in loader]
            misses[world].append(sum(int(one.sum()) for one in fresh))
    for alone, together in zip(misses[1], misses[3], strict=True):
        assert together <= alone + 6  # nothing moves, or next to nothing


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("dealt", lambda saved: saved["ranks"].fill_(0)),
        ("dealt", lambda saved: saved["ranks"].fill_(9)),
        ("dealt", lambda saved: saved.update(world=5)),
        ("homes", lambda saved: saved.update(ranks=saved["ranks"][1:])),
        ("homes", lambda saved: saved["ranks"].fill_(-2)),
    ],
)
def test_what_no_ranks_can_have_been_dealt_is_refused(field, change):
    first, second = loaders(3)[:2]
    next(iter(first))
    state = first.state_dict()
    change(state["importance_state"][field])
    with pytest.raises(rk.StateError, match=field):
        second.load_state_dict(state)
