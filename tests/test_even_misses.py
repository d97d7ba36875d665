"""Every epoch recomputes its share of the samples it has, with `drop_last` and with `importance=`, too."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.choose import Refresh, Scores, plan_epoch
from rekindle.choose.importance.epoch_choice import choose_samples
from rekindle.choose.importance.method import ImportanceMethod
from rekindle.choose.plan import EpochPlan
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.choose.refresh_schedule import exact_factor, share_of_uses
from rekindle.choose.shard import Shard

FACTORS = st.one_of(st.integers(1, 6), st.sampled_from([1.5, 2.5, 4 / 3, 3.75]))
SEEDS = st.integers(0, 2**63 - 1)


class Cache:
    """Which result of each sample there is, and how often it was used."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.uses: Counter[tuple[int, int]] = Counter()

    def misses(self, plans: list[EpochPlan]) -> list[int]:
        """How many samples of each full batch are not there, and are computed."""
        counts = []
        for plan in plans:
            for rows in map(plan.batch, range(plan.steps)):
                count = 0
                for id_, generation in zip(rows.ids.tolist(), rows.generations.tolist(), strict=True):
                    assert generation >= 0
                    count += self.held.get(id_) != generation
                    self.held[id_] = generation
                    self.uses[id_, generation] += 1
                counts.append(count)
        return counts


@settings(max_examples=40)
@given(st.integers(1, 60), FACTORS, SEEDS, st.integers(1, 40), st.booleans(), st.booleans())
def test_an_epoch_without_its_incomplete_batch_recomputes_its_share(
    size, factor, seed, batch_size, balance, shuffle
):
    served = size - Shard().left_out(size, batch_size, drop_last=True)
    refresh, cache, epochs = Refresh(size, factor, seed), Cache(), 14
    for epoch in range(epochs):
        plan = plan_epoch(
            size=size, epoch=epoch, seed=seed, shuffle=shuffle, batch_size=batch_size, drop_last=True,
            refresh=refresh, balance=balance,
        )  # fmt: skip
        ids = plan.all_rows().ids.tolist()
        assert len(set(ids)) == len(ids) == served
        misses = cache.misses([plan])
        assert sum(misses) == (share_of_uses(factor, epoch * served, served) if epoch else served)
        if misses and shuffle and balance:
            assert max(misses) - min(misses) <= 1
    if served:
        uses = [count for (_, turn), count in cache.uses.items() if 0 < turn < epochs - 2 * factor - 2]
        assert all(count <= math.ceil(factor) + 1 for count in uses)


@settings(max_examples=15)
@given(st.integers(40, 60), st.sampled_from([2, 3]), SEEDS)
def test_over_the_epochs_all_samples_are_left_out_equally_often(size, factor, seed):
    """Batches of 18: some 4 to 17 of the samples are left out of each epoch."""
    left_out = Shard().left_out(size, 18, drop_last=True)
    refresh, counts, epochs = Refresh(size, factor, seed), np.zeros(size), 60
    for epoch in range(epochs):
        plan = plan_epoch(
            size=size, epoch=epoch, seed=seed, shuffle=True, batch_size=18, drop_last=True, refresh=refresh
        )
        counts += 1
        counts[plan.all_rows().ids] -= 1
    assert counts.sum() == epochs * left_out
    assert counts.max() - counts.min() <= 0.2 * epochs


class Given(ImportanceMethod):
    """Chooses what it is told to."""

    def __init__(self, chosen: list[list[int]]) -> None:
        self.chosen = chosen

    def plan(self, epoch: int, scores: Scores) -> Any:
        return np.array(self.chosen[epoch]), None


@settings(max_examples=40)
@given(
    st.lists(st.sets(st.integers(0, 39), min_size=1), min_size=1, max_size=10),
    FACTORS, SEEDS, st.integers(1, 12), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_an_epoch_of_chosen_samples_recomputes_its_share(
    chosen, factor, seed, batch_size, drop_last, shuffle, balance
):
    """More only if more of them than that were never computed; and then only those."""
    scores, method = Scores.unknown(40, seed), Given([sorted(ids) for ids in chosen])
    by_use, refresh = RefreshByUse(factor, batch_size, drop_last, shuffle), Refresh(40, factor, seed)
    cache = Cache()
    for epoch, ids in enumerate(chosen):
        before, unknown = int(scores.turns.sum()), len(ids - cache.held.keys())
        choice = choose_samples(method, epoch, scores, None, by_use)
        plan = choice.plan(
            size=40, epoch=epoch, seed=seed, shuffle=shuffle, batch_size=batch_size, drop_last=drop_last,
            refresh=refresh, balance=balance,
        )  # fmt: skip
        served = plan.all_rows().ids
        missing = len(set(served.tolist()) - cache.held.keys())
        misses = cache.misses([plan])
        share = share_of_uses(factor, before, len(served))
        assert abs(share - len(served) / exact_factor(factor)) < 1
        assert sum(misses) == max(share, missing)
        if shuffle:
            assert missing <= max(share, unknown - (len(ids) - len(served)))
        full = misses[: len(ids) // batch_size]
        if full and shuffle and balance:
            assert max(full) - min(full) <= 1


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


def same(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize(
    ("importance", "shares"),
    [
        (None, [960, 320, 320, 320, 320, 320]),
        (rk.RandomSubset(0.5), [448, 448, 149, 149, 150, 149]),  # All new, twice.
    ],
)
def test_a_loader_recomputes_what_is_planned(importance: Any, shares: list[int]) -> None:
    loader = rk.DataLoader(
        Numbers(), 64, shuffle=True, drop_last=True, seed=3, reuse=rk.Refurbish(3), final_transform=same,
        importance=importance,
    )  # fmt: skip
    for epoch, share in enumerate(shares):
        fresh = []
        for numbers in loader:
            fresh.append(int(loader.batch.fresh.sum()))
            if importance is not None:
                loader.feedback(losses=torch.rand(len(numbers)))
        assert abs(sum(fresh) - share) <= 1, epoch
        assert max(fresh) - min(fresh) <= 1


def test_a_result_that_comes_twice_in_an_epoch_is_recomputed_once() -> None:
    scores, by_use = Scores.unknown(6, 0), RefreshByUse(2, 3, drop_last=False, shuffle=True)
    choice = choose_samples(Given([[0, 1, 1, 1, 2, 2]]), 0, scores, None, by_use)
    plan = choice.plan(
        size=6, epoch=0, seed=0, shuffle=True, batch_size=3, drop_last=False, refresh=Refresh(6, 2, 0)
    )
    planned = plan.all_rows()
    for id_ in (0, 1, 2):
        rows = np.flatnonzero(planned.ids == id_)
        assert planned.fresh[rows].tolist() == [True] + [False] * (len(rows) - 1)
