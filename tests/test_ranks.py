"""Several ranks: all end with the same scores and plans, and share the samples evenly."""

import numpy as np
import pytest
import torch

import rekindle as rk
from rank_processes import run_ranks
from rekindle.choose import Choice

SIZE, EPOCHS, WORLD = 51, 4, 2
GROUPS = [[0, 7, 13], [2, 3], [20, 21, 22, 39]]  # near-duplicates
LOSSES = torch.rand(SIZE, generator=torch.Generator().manual_seed(1)) * 3


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


def make_loader(method):
    return rk.DataLoader(Numbers(), batch_size=4, shuffle=True, seed=9, importance=method)


def methods():
    buckets = rk.Buckets(warmup=1, rate=0.1, confidence=0, patience=2)
    return {"Buckets": buckets, "InfoBatch": rk.InfoBatch(epochs=EPOCHS)}


def train(loader, rank=0):
    """Ids and weights of each epoch's samples; ranks report different numbers of their batches."""
    epochs = []
    for _ in range(EPOCHS):
        seen = []
        for rows in loader:
            seen.append((rows.tolist(), loader.batch.weights.tolist()))
            if rank == 0 or loader.batch.step != 1:
                loader.feedback(LOSSES[rows] / (1 + loader.batch.epoch), ids=rows if rank else None)
        epochs.append(seen)
    return epochs


def redundant():
    """Loaders that handle near-duplicates."""
    remove, replace = (rk.Redundancy(GROUPS, mode) for mode in ("remove", "replace"))
    correct = rk.Redundancy(GROUPS, correct=True)
    basic = {"dataset": Numbers(), "batch_size": 4, "shuffle": True, "seed": 9}
    return {
        "remove": rk.DataLoader(**basic, redundancy=remove),
        "remove, corrected": rk.DataLoader(**basic, redundancy=correct),
        "replace": rk.DataLoader(
            **basic, redundancy=replace, reuse=rk.Refurbish(2), final_transform=lambda value: value
        ),
        "of a choice": rk.DataLoader(
            **basic, redundancy=remove, importance=rk.Buckets(warmup=1, rate=0.1, confidence=0)
        ),
    }


def train_without_duplicates():
    """Ids and weights of each epoch, with an interruption by a saved state within the third."""
    found = {}
    for name, loader in redundant().items():
        epochs, again = [], redundant()[name]
        for epoch in range(EPOCHS):
            seen = []
            if epoch == 2:
                for rows in loader:
                    loader.feedback(LOSSES[rows]) if name == "of a choice" else None
                    seen.append((loader.batch.ids.tolist(), loader.batch.weights.tolist()))
                    if len(seen) == 2:
                        break
                again.load_state_dict(loader.state_dict())
                loader = again
            for rows in loader:
                loader.feedback(LOSSES[rows]) if name == "of a choice" else None
                seen.append((loader.batch.ids.tolist(), loader.batch.weights.tolist()))
            epochs.append(seen)
        found[name] = epochs
    return found


def run_rank(rank):
    found = {}
    for name, method in methods().items():
        loader = make_loader(method)
        if rank == 0:  # A progress bar, say: asking for the length must not wait for other ranks.
            assert len(loader) == 7
        epochs = train(loader, rank)
        scores = loader._parts.importance.scores
        arrays = {field: getattr(scores, field) for field in ("loss", "epoch", "count")}
        resumed = make_loader(method)
        resumed.load_state_dict(loader.state_dict())
        again = []
        for rows in resumed:
            again.append(rows.tolist())
            resumed.feedback(LOSSES[rows])
        found[name] = {"epochs": epochs, "next": again, "seconds": scores.work_seconds, **arrays}
    return {**found, **train_without_duplicates()}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(run_rank, WORLD)


@pytest.mark.parametrize("name", methods())
def test_all_ranks_end_with_the_same_scores(ranks, name):
    first, second = (rank[name] for rank in ranks)
    for field in ("loss", "epoch", "count"):
        assert np.array_equal(first[field], second[field], equal_nan=True)
    assert first["seconds"] == second["seconds"]
    # What rank 1 kept to itself in the first epoch was reported later, or never.
    assert (first["epoch"] >= 0).sum() > SIZE - 8


@pytest.mark.parametrize("name", methods())
def test_ranks_have_the_same_number_of_batches_and_share_the_samples(ranks, name):
    for epoch in range(EPOCHS):
        shares = [rank[name]["epochs"][epoch] for rank in ranks]
        assert [len(ids) for ids, _ in shares[0]] == [len(ids) for ids, _ in shares[1]]
        ids = [index for share in shares for batch, _ in share for index in batch]
        weights = [weight for share in shares for _, batch in share for weight in batch]
        assert len(ids) - len(set(ids)) <= WORLD - 1
        if epoch == 0:
            assert set(ids) == set(range(SIZE))
        if name == "InfoBatch":
            assert sum(weights) == pytest.approx(SIZE, rel=1e-5)
    first, second = (rank[name]["next"] for rank in ranks)
    assert len(first) == len(second)
    assert (
        len({index for batch in first for index in batch} & {index for batch in second for index in batch})
        <= 1
    )


@pytest.mark.parametrize("name", ["remove", "remove, corrected", "replace", "of a choice"])
def test_ranks_leave_out_the_same_duplicates_and_share_the_rest(ranks, name):
    for epoch in range(EPOCHS):
        shares = [rank[name][epoch] for rank in ranks]
        assert [len(ids) for ids, _ in shares[0]] == [len(ids) for ids, _ in shares[1]]
        ids = [index for share in shares for batch, _ in share for index in batch]
        weights = [weight for share in shares for _, batch in share for weight in batch]
        for group in GROUPS:
            members = {index for index in ids if index in group}
            assert len(members) == 1 or (name == "of a choice" and not members)
        if name == "replace":
            assert len(ids) == SIZE + 1
        else:
            assert len(ids) - len(set(ids)) <= WORLD - 1
        if name == "remove, corrected":
            assert sum(weights) == pytest.approx(SIZE, rel=1e-5)
        if name == "remove":
            assert len(set(ids)) == SIZE - 6


@pytest.mark.parametrize("name", ["remove", "remove, corrected", "replace"])
def test_ranks_have_together_what_one_alone_has(ranks, name):
    loader = redundant()[name]
    for epoch in range(EPOCHS):
        alone = set()
        for _ in loader:
            alone.update(loader.batch.ids.tolist())
        shares = [rank[name][epoch] for rank in ranks]
        assert {index for share in shares for batch, _ in share for index in batch} == alone


@pytest.mark.parametrize("world", [1, 2, 3, 7, 64])
def test_samples_added_to_share_evenly_leave_every_samples_weight_as_it_was(world):
    ids, weights = np.arange(10, 30, dtype=np.int64), np.linspace(1, 3, 20).astype(np.float32)
    shared = Choice(ids, weights, np.zeros(20, np.int64), world=world).shared_evenly(seed=1, epoch=2)
    assert len(shared.ids) % world == 0
    assert len(shared.ids) - 20 < world
    assert np.bincount(shared.ids - 10, shared.weights) == pytest.approx(weights)
