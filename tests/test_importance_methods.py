"""Plans of chosen samples: budgets are exact, and unbiased methods count every sample for 1."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.choose import Measured, Scores
from rekindle.choose.importance.criteria import cross_entropy, cross_entropy_of_iowa, importance, io, margin
from rekindle.choose.importance.method import arrays_read_by, as_method
from rekindle.choose.importance.percentiles import percentiles
from rekindle.choose.importance.systematic_sampling import (
    share_of,
)
from rekindle.choose.selection import validated
from scored import METHODS, scored

SIZES, SEEDS = st.integers(1, 300), st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("name", METHODS)
@given(size=SIZES, seed=SEEDS, known=st.floats(0, 1), epoch=st.integers(0, 12))
@settings(max_examples=40)
def test_the_same_scores_give_the_same_usable_plan(name, size, seed, known, epoch):
    plans = [validated(METHODS[name]().plan(epoch, scored(size, seed, known)), size, name) for _ in range(2)]
    assert np.array_equal(plans[0][0], plans[1][0])
    assert np.array_equal(plans[0][1], plans[1][1])


@pytest.mark.parametrize("name", METHODS)
def test_a_plan_leaves_the_scores_alone(name):
    scores, same = scored(100, 3, epochs=3), scored(100, 3, epochs=3)
    METHODS[name]().plan(4, scores)
    for field in ("loss", "probability", "rival", "correct", "epoch", "count", "mean", "squares"):
        assert np.array_equal(getattr(scores, field), getattr(same, field), equal_nan=True)


# Budgets.


@given(size=SIZES, seed=SEEDS, keep=st.floats(0.01, 1), epoch=st.integers(0, 20), cycle=st.booleans())
def test_a_random_subset_has_its_budget_and_no_sample_twice(size, seed, keep, epoch, cycle):
    ids, _ = rk.RandomSubset(keep=keep, cycle=cycle).plan(epoch, scored(size, seed))
    assert len(ids) == len(set(ids.tolist())) == max(1, share_of(size, keep))


@given(size=SIZES, seed=SEEDS, keep=st.floats(0.05, 1))
def test_a_cycle_of_random_subsets_goes_through_all_samples(size, seed, keep):
    method, scores = rk.RandomSubset(keep=keep), scored(size, seed)
    epochs = -(-size // max(1, share_of(size, keep)))
    seen = np.concatenate([method.plan(epoch, scores)[0] for epoch in range(epochs)])
    assert set(seen.tolist()) == set(range(size))


@given(size=SIZES, seed=SEEDS, keep=st.floats(0.01, 1), known=st.floats(0, 1))
def test_selective_backprop_keeps_the_share_that_is_asked_for(size, seed, keep, known):
    ids, _ = rk.SelectiveBackprop(keep=keep).plan(1, scored(size, seed, known))
    assert len(ids) == len(set(ids.tolist()))
    assert abs(len(ids) - max(1, share_of(size, keep))) <= 1


@given(size=SIZES, seed=SEEDS, keep=st.floats(0.1, 2), epoch=st.integers(0, 12))
def test_online_batch_selection_has_its_budget(size, seed, keep, epoch):
    ids, _ = rk.OnlineBatchSelection(epochs=10, keep=keep).plan(epoch, scored(size, seed))
    assert abs(len(ids) - max(1, share_of(size, keep))) <= 1


@given(size=SIZES, seed=SEEDS, hide=st.floats(0, 1), known=st.floats(0, 1))
def test_kakurenbo_hides_no_more_than_it_may_and_only_what_is_sure(size, seed, hide, known):
    scores = scored(size, seed, known)
    ids, _ = rk.Kakurenbo(epochs=10, hide=hide).plan(1, scores)
    hidden = np.setdiff1d(np.arange(size), ids)
    assert len(hidden) <= share_of(size, hide)
    assert (scores.correct[hidden] == 1).all()
    assert (scores.probability[hidden] >= 0.7).all()


def test_kakurenbo_shows_again_what_was_hidden_for_long():
    scores, method = scored(1000, 5), rk.Kakurenbo(epochs=100, longest=2)
    assert len(method.plan(1, scores)[0]) < 1000
    assert len(method.plan(2, scores)[0]) < 1000
    assert len(method.plan(3, scores)[0]) == 1000


# Weights.


def _counts(method, scores, epoch, draws):
    """What each sample counts for on average over many seeds."""
    total = np.zeros(len(scores))
    for seed in range(draws):
        scores.seed = seed
        ids, weights = method.plan(epoch, scores)
        np.add.at(total, ids, weights)
    return total / draws


@pytest.mark.parametrize(
    "method",
    [
        rk.InfoBatch(epochs=10),
        rk.InfoBatch(epochs=10, ratio=0.77),
        rk.InfoBatch(epochs=2, ratio=0.5, anneal=0.3),
        rk.SelectiveBackprop(beta=1, correct=True),
        rk.OnlineBatchSelection(epochs=10, correct=True),
        rk.OnlineBatchSelection(epochs=10, keep=0.4, correct=True),
    ],
    ids=repr,
)
def test_unbiased_methods_count_every_sample_for_one_on_average(method):
    scores = scored(61, 7)
    found = _counts(method, scores, 1, 1000)
    # The standard error of a sample's mean is below 0.1 but for the rarest; five of them is the limit.
    spread = np.sqrt(1 / np.clip(percentiles(scores.loss), 0.02, 1) / 1000)
    assert (np.abs(found - 1) < 5 * np.maximum(spread, 0.05)).all()
    assert abs(found.mean() - 1) < 0.01


@given(size=st.integers(2, 300), seed=SEEDS, ratio=st.floats(0, 0.99), epoch=st.integers(0, 12))
def test_info_batch_keeps_the_sum_of_weights(size, seed, ratio, epoch):
    scores = scored(size, seed)
    ids, weights = rk.InfoBatch(epochs=10, ratio=ratio).plan(epoch, scores)
    assert weights.sum(dtype=np.float64) == pytest.approx(size)
    assert set(np.flatnonzero(scores.loss >= scores.mean_loss)) <= set(ids.tolist())


def test_info_batch_anneals_at_fractions_of_an_epoch():
    scores, method = scored(10_000, 1), rk.InfoBatch(epochs=10, ratio=0.5, anneal=0.15)
    below = (scores.loss < scores.mean_loss).sum()
    left_out = [10_000 - len(method.plan(epoch, scores)[0]) for epoch in range(10)]
    assert left_out == [share_of(below, 0.5)] * 8 + [share_of(below, 0.25), 0]


def test_active_bias_prefers_what_the_model_is_undecided_about():
    scores = scored(50, 2, epochs=6)
    steady = Measured(
        np.arange(10), np.full(10, 0.1, np.float32), np.full(10, 0.9, np.float32), np.zeros(10, np.float32),
        np.ones(10, np.int8), np.zeros(10, np.int32),
    )  # fmt: skip
    fresh = Scores.unknown(50, 2)
    for epoch in range(6):
        fresh.note(epoch, steady)
    for name in ("count", "mean", "squares"):
        getattr(scores, name)[:10] = getattr(fresh, name)[:10]
    _, weights = rk.ActiveBias(warmup=3).plan(6, scores)
    assert weights[:10].max() < weights[10:].min()
    assert weights.mean() == pytest.approx(1)
    spread = np.sqrt(scores.variance + scores.variance**2 / 5)
    assert weights == pytest.approx((spread + spread.mean()) / (2 * spread.mean()))


def test_online_batch_selection_draws_by_rank_and_ends_evenly():
    scores, method = scored(100, 3), rk.OnlineBatchSelection(epochs=11)
    hardest = np.argsort(-scores.loss)
    counts = np.zeros(100)
    for seed in range(400):
        scores.seed = seed
        counts += np.bincount(method.plan(0, scores)[0], minlength=100)
    expected = np.exp(-np.arange(100) * np.log(100) / 100)
    assert counts[hardest] / 400 == pytest.approx(expected * 100 / expected.sum(), abs=0.12)
    assert np.bincount(method.plan(10, scores)[0], minlength=100).tolist() == [1] * 100


def test_selective_backprop_keeps_by_the_power_of_the_percentile():
    scores, counts = scored(200, 4), np.zeros(200)
    method = rk.SelectiveBackprop(beta=3)
    for seed in range(500):
        scores.seed = seed
        counts[method.plan(1, scores)[0]] += 1
    assert counts / 500 == pytest.approx(percentiles(scores.loss) ** 3, abs=0.12)
    assert counts.sum() / 500 == pytest.approx(50, abs=1)


@pytest.mark.parametrize("size", [100, 5000])
@pytest.mark.parametrize("floor", [0.05, 0.2])
def test_selective_backprop_corrects_by_no_more_than_its_floor(size, floor):
    scores, method = scored(size, 4), rk.SelectiveBackprop(correct=True, floor=floor)
    heaviest = 0.0
    for seed in range(20):
        scores.seed = seed
        heaviest = max(heaviest, method.plan(1, scores)[1].max())
    assert 0.5 / floor < heaviest <= 1 / floor


# Criteria.


def test_criteria_are_those_of_iowa():
    scores = scored(100, 8)
    p, rival = scores.probability.astype(float), scores.rival.astype(float)
    assert cross_entropy(scores) == pytest.approx(-np.log2(p))
    assert cross_entropy_of_iowa(scores) == pytest.approx(-p * np.log2(p))
    assert margin(scores) == pytest.approx(1 - (p - rival))
    scores.load_seconds[:] = np.linspace(0.1, 1, 100)
    scores.nbytes[:] = 1000
    assert io(scores, 0.25)(slice(None)) == pytest.approx(
        1 / (0.25 * scores.load_seconds / scores.load_seconds.mean() + 0.75)
    )


def test_costly_samples_and_only_they_lose_importance_by_io():
    scores = scored(100, 8)
    before = importance(scores, ("cross_entropy", "io"), 1.0).rounded
    scores.load_seconds[:] = 1
    assert np.array_equal(importance(scores, ("cross_entropy", "io"), 1.0).rounded, before)
    scores.load_seconds[:10] = 9
    after = importance(scores, ("cross_entropy", "io"), 1.0).rounded
    assert (after[:10] < before[:10]).all()
    assert (after[10:] > before[10:]).all()


@given(size=SIZES, seed=SEEDS, known=st.floats(0, 1))
def test_what_was_never_measured_is_most_important(size, seed, known):
    scores = scored(size, seed, known)
    for criteria in (
        ("cross_entropy",),
        ("cross_entropy_of_iowa",),
        ("margin",),
        ("cross_entropy", "margin", "io"),
    ):
        assert np.isinf(importance(scores, criteria, 0.5).rounded[~scores.known]).all()


@given(seed=SEEDS, share=st.floats(0.01, 1), measured=st.floats(0, 1), alpha=st.floats(0, 1))
@settings(max_examples=8)
def test_many_samples_count_as_the_plain_formula_says_to_the_bit(seed, share, measured, alpha):
    method = rk.Buckets(warmup=1, bottleneck="io", confidence=0.5, alpha=alpha)
    scores, rng = Scores.unknown(66_000, seed, arrays_read_by(method)), np.random.default_rng(seed)
    known = np.flatnonzero(rng.random(66_000) < share)
    scores.epoch[known] = 0
    scores.probability[known] = rng.random(len(known))
    scores.rival[known] = rng.random(len(known))
    loaded = np.flatnonzero(rng.random(66_000) < measured)
    scores.load_seconds[loaded] = rng.exponential(0.1, len(loaded))
    scores.nbytes[loaded] = rng.integers(0, 10**6, len(loaded))

    def of_mean(values):
        values = values.astype(np.float32)
        parts = [part[part >= 0] for part in (values[:65_536], values[65_536:])]
        total = sum(float(part.sum(dtype=np.float64)) for part in parts)
        mean = total / max(sum(map(len, parts)), 1)
        return (
            np.where(values >= 0, values / np.float32(mean), np.float32(1)) if mean else np.ones_like(values)
        )

    cost = alpha * of_mean(scores.load_seconds) + (1 - alpha) * of_mean(scores.nbytes)
    right = np.clip(scores.probability, np.float32(1e-30), np.float32(1))
    apart = 1 - (scores.probability - scores.rival)
    found = 0.25 * percentiles(np.where(scores.known, -(np.log(right) * np.float32(1 / np.log(2))), np.inf))
    found += 0.25 * percentiles(np.where(np.isnan(apart), np.inf, apart))
    found += 0.5 * percentiles(1 / np.maximum(cost, np.float32(1e-9)))
    found[~scores.known] = np.inf
    criteria = ("cross_entropy", "margin", "io")
    assert np.array_equal(importance(scores, criteria, alpha).rounded, found.astype(np.float32))

    method.criteria = criteria
    method.plan(1, scores)
    able = scores.known & (scores.probability >= 0.5)
    ties = scores.uniforms(1, draw=1)
    first = [i for i in np.lexsort((ties, found)) if able[i]][: share_of(66_000, 0.05)]
    assert np.array_equal(np.flatnonzero(method.waiting), np.sort(first).astype(np.int64))


# Parameters are checked at construction.


@pytest.mark.parametrize(
    "make",
    [
        lambda: rk.RandomSubset(keep=0),
        lambda: rk.RandomSubset(keep=1.1),
        lambda: rk.InfoBatch(epochs=0),
        lambda: rk.InfoBatch(epochs=5, ratio=-0.1),
        lambda: rk.Kakurenbo(epochs=2.5),
        lambda: rk.SelectiveBackprop(beta=-1),
        lambda: rk.OnlineBatchSelection(epochs=3, pressure=0.5),
        lambda: rk.ActiveBias(smoothness=-1),
        lambda: rk.Buckets(most_waiting=1),
        lambda: rk.Buckets(recall="best"),
        lambda: rk.Buckets(criteria=("entropy",)),
        lambda: rk.Buckets(criteria=()),
        lambda: rk.Buckets(copies="remove"),
        lambda: rk.Buckets.preset("BS-fast"),
        lambda: rk.Buckets.preset("BS-random-RRemove"),
    ],
)
def test_parameters_that_cannot_work_are_refused(make):
    with pytest.raises(rk.ArgumentError):
        make()


@pytest.mark.parametrize(
    "planned",
    [
        [0, 1],
        (np.array([0, 10]), None),
        (np.array([-1]), None),
        (np.array([0.5]), None),
        (np.array([], dtype=int), None),
        (np.array([[1]]), None),
        (np.array([1, 2]), np.ones(3)),
        (np.array([1, 2]), np.array([1, np.nan])),
        (np.array([1, 2]), np.array([1, -1])),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused_with_its_methods_name(planned):
    with pytest.raises(rk.ArgumentError, match=r"Mine\.plan"):
        validated(planned, 10, "Mine")


# What is kept of every sample.


class ReadsMore(rk.InfoBatch):
    """A method derived from one that declares what it reads."""

    def plan(self, epoch, scores):
        return np.flatnonzero(scores.correct != 1), None


@pytest.mark.parametrize(
    ("method", "most"),
    [
        (rk.InfoBatch(epochs=5), 8),
        (rk.SelectiveBackprop(), 8),
        (rk.OnlineBatchSelection(epochs=5), 8),
        (rk.RandomSubset(), 8),
        (rk.Kakurenbo(epochs=5), 13),
        (rk.ActiveBias(), 18),
        (rk.Buckets(), 23),  # and one for what waits
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_method_keeps_only_what_it_reads(method, most):
    size, reads = 1000, arrays_read_by(method)
    scores, everything = Scores.unknown(size, 3, reads), Scores.unknown(size, 3)
    rng = np.random.default_rng(0)
    for epoch in range(3):
        p = rng.random(size).astype(np.float32)
        correct, age = (p > 0.5).astype(np.int8), np.zeros(size, np.int32)
        found = Measured(np.arange(size), -np.log(p), p, 1 - p, correct, age)
        scores.note(epoch, found)
        everything.note(epoch, found)
    kept = {name: array for name, array in scores.arrays().items() if array.flags.writeable}
    assert sum(array.nbytes for array in {id(one): one for one in kept.values()}.values()) <= most * size
    for name, array in kept.items():
        np.testing.assert_allclose(array, everything.arrays()[name], rtol=1e-5)
    ids, weights = copy.deepcopy(method).plan(4, scores)
    expected_ids, expected_weights = copy.deepcopy(method).plan(4, everything)
    assert np.array_equal(ids, expected_ids)
    assert (weights is None) == (expected_weights is None)
    assert weights is None or weights == pytest.approx(expected_weights, rel=1e-5)


def test_a_derived_method_has_all_scores():
    assert arrays_read_by(ReadsMore(epochs=5)) is None
    assert arrays_read_by(as_method(rk.InfoBatch(epochs=5))) == frozenset()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_shows_its_arguments_and_nothing_else(name):
    """What it shows makes the same one, also after it was used."""
    method = METHODS[name]()
    shown = repr(method)
    assert eval(shown, vars(rk)) == method
    for epoch in range(3):
        method.plan(epoch, scored(40, epochs=2))
    assert repr(method) == shown
