"""Scores take few bytes a sample: what that costs in range and precision is never seen by a choice."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.choose import Measured, Scores
from rekindle.choose.importance.epoch_choice import choose_samples
from rekindle.choose.sample_ids import all_ids, are_ascending, ids_for, ids_where
from rekindle.choose.scores import Loaded
from scored import METHODS

READS = frozenset({"mean", "squares", "count", "load_seconds", "nbytes", "loads", "made"})


def measured(ids, right):
    right = np.asarray(right, dtype=np.float32)
    zeros = np.zeros(len(ids), np.int32)
    return Measured(np.asarray(ids), 1 - right, right, 1 - right, (right > 0.5).astype(np.int8), zeros)


def loader(method, **arguments):
    return rk.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(40)), 4, shuffle=True, seed=3, importance=method,
        **arguments,
    )  # fmt: skip


def train(loader, epochs):
    seen = []
    for _ in range(epochs):
        for (ids,) in loader:
            seen.append((ids.tolist(), loader.batch.weights.tolist()))
            logits = torch.stack([ids / 40, 1 - ids / 40], 1)
            loader.feedback(logits=logits, targets=torch.zeros(len(ids), dtype=torch.long))
    return seen


@pytest.mark.parametrize("last", [31_998, 40_000, 2**30])
def test_counts_that_need_more_than_16_bits_get_them(last):
    scores = Scores.unknown(3, 0, READS)
    scores.note(last, measured([0, 2], [0.5, 0.25]))
    scores.note(last + 1, measured([0], [0.75]))
    assert scores.epoch.tolist() == [last + 1, -1, last]
    assert scores.count.tolist() == [2, 0, 1]
    assert scores.turns is scores.uses


@pytest.mark.parametrize("name", METHODS)
def test_uses_are_counted_beyond_16_bits(name):
    method, scores = METHODS[name](), Scores.unknown(9, 0, frozenset({"probability", "rival", "correct"}))
    for epoch in (0, 1):  # a method that a training has chosen by for long
        scores.uses[:] = 31_999 if epoch else 0
        choice = choose_samples(method, epoch, scores, None)
        scores.note(
            epoch, measured(np.unique(choice.ids), np.linspace(0.1, 0.9, len(set(choice.ids.tolist()))))
        )
    assert set(scores.uses[choice.ids].tolist()) == {32_000}


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=2), min_size=1, max_size=30))
def test_compact_means_and_variances_are_those_of_64_bits_but_for_rounding(epochs):
    compact, exact = Scores.unknown(2, 0, READS), Scores.unknown(2, 0)
    for epoch, right in enumerate(epochs):
        found = measured([0, 1], right)
        compact.note(epoch, found)
        exact.note(epoch, found)
    assert (compact.squares >= 0).all()
    np.testing.assert_allclose(compact.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(compact.variance, exact.variance, atol=2e-6)


def test_loads_are_counted_as_far_as_there_is_room():
    scores = Scores.unknown(2, 0, READS)
    for _ in range(300):
        found = Loaded(np.array([1]), np.array([0.25], np.float32), np.array([12_345]))
        scores.note_loads(found)
    scores.note_loads(Loaded(np.array([0]), np.array([1e6], np.float32), np.array([10**12])))
    assert scores.loads.tolist() == [1, 255]
    assert scores.load_seconds.tolist() == [60_000, 0.25]
    assert scores.nbytes.tolist() == [np.float32(10**12), 12_345]


@pytest.mark.parametrize("name", METHODS)
def test_a_state_of_wide_scores_goes_on_the_same(name):
    """States hold what they held when scores took more memory, and such ones load."""
    first, second = loader(METHODS[name]()), loader(METHODS[name]())
    train(first, 2)
    state = first.state_dict()
    saved = state["importance_state"]["scores"]
    assert saved["uses"].dtype == saved["turns"].dtype == torch.int64
    assert saved["epoch"].dtype == torch.int32
    saved |= {"age": torch.zeros(40, dtype=torch.int32), "correct": torch.ones(40, dtype=torch.int8)} | saved
    second.load_state_dict(state)
    assert train(second, 3) == train(first, 3)


def test_a_state_of_late_epochs_loads_and_goes_on():
    first, second = loader(rk.Kakurenbo(epochs=60_000)), loader(rk.Kakurenbo(epochs=60_000))
    first.set_epoch(50_000)
    train(first, 2)
    second.load_state_dict(first.state_dict())
    assert train(second, 2) == train(first, 2)


def test_turns_that_are_not_the_uses_are_refused_where_nothing_shares_results():
    one = loader(rk.InfoBatch(epochs=9))
    train(one, 1)
    state = one.state_dict()
    state["importance_state"]["scores"]["turns"][3] += 1
    with pytest.raises(rk.StateError, match=r"scores\.turns"):
        loader(rk.InfoBatch(epochs=9)).load_state_dict(state)


@settings(max_examples=40)
@given(st.integers(0, 140_000), st.floats(0, 1), st.integers(0, 99))
def test_ids_are_where_a_mask_is_true(size, share, seed):
    mask = np.random.default_rng(seed).random(size) < share
    ids = ids_where(mask)
    assert np.array_equal(ids, np.flatnonzero(mask))
    assert ids.dtype == np.int32 == all_ids(size).dtype
    assert are_ascending(ids)
    if len(ids) > 1:
        again = ids.copy()
        at = seed * 7919 % (len(ids) - 1)
        again[at + 1] = again[at]
        assert not are_ascending(again)


def test_ids_that_need_64_bits_have_them():
    assert ids_for(0, 2**31 - 1).dtype == np.int32
    assert ids_for(0, 2**31).dtype == np.int64
