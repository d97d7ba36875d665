"""Bucket sampling: three stages, and no sample is ever in neither bucket."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.choose import Measured, Scores
from scored import scored


def feedback(scores, epoch, ids, probability):
    """The model's answers on these samples, as logits would report them."""
    p = np.asarray(probability, np.float32)
    age, correct = np.zeros(len(ids), np.int32), (p > 0.5).astype(np.int8)
    scores.note(epoch, Measured(ids, -np.log(p), p, (1 - p).astype(np.float32), correct, age))


@given(
    size=st.integers(1, 200),
    seed=st.integers(0, 1000),
    rate=st.floats(0, 1),
    most=st.floats(0, 0.99),
    recall=st.sampled_from(["random", None]),
    recall_rate=st.floats(0, 1),
)
@settings(max_examples=60)
def test_every_sample_is_in_exactly_one_bucket_and_moves_are_exact(
    size, seed, rate, most, recall, recall_rate
):
    buckets = rk.Buckets(
        warmup=2,
        rate=rate,
        most_waiting=most,
        confidence=0,
        recall=recall,
        recall_rate=recall_rate,
        patience=2,
    )
    scores, rng = Scores.unknown(size, seed), np.random.default_rng(seed)
    waiting_before = 0
    for epoch in range(12):
        ids, weights = buckets.plan(epoch, scores)
        assert weights is None
        waiting = np.flatnonzero(buckets.waiting)
        assert sorted([*ids.tolist(), *waiting.tolist()]) == list(range(size))
        moved = len(waiting) - waiting_before
        if epoch < 2:
            assert moved == 0
        elif buckets.stage == 2:
            assert moved == max(0, min(int(rate * size + 0.5), int(most * size) - waiting_before))
        else:
            assert recall == "random"
            assert moved == -min(int(recall_rate * size + 0.5), waiting_before)
        waiting_before = len(waiting)
        feedback(scores, epoch, ids, rng.uniform(0.01, 0.99, len(ids)))


def test_the_easiest_wait():
    buckets, scores = rk.Buckets(warmup=1, rate=0.2, confidence=0), scored(100, 1)
    buckets.plan(0, scores)
    buckets.plan(1, scores)
    assert set(np.flatnonzero(buckets.waiting)) == set(np.argsort(scores.loss)[:20])


def test_what_the_model_is_not_sure_of_never_waits():
    buckets, scores = rk.Buckets(warmup=1, rate=0.5), scored(1000, 1)
    for epoch in range(3):
        buckets.plan(epoch, scores)
    assert np.array_equal(buckets.waiting, scores.probability >= 0.9)
    assert 50 < buckets.waiting.sum() < 150


def test_what_iowa_published_lets_the_hardest_wait_as_well():
    buckets = rk.Buckets(warmup=1, rate=0.5, confidence=0, criteria=("cross_entropy_of_iowa",))
    scores = scored(1000, 1)
    scores.probability[:10] = 0.0001
    buckets.plan(0, scores)
    buckets.plan(1, scores)
    assert buckets.waiting[:10].all()


def test_samples_come_back_when_training_stagnates_and_only_then():
    scores = Scores.unknown(100, 0)
    buckets = rk.Buckets(warmup=1, rate=0.1, confidence=0, patience=3, recall_rate=0.05)
    stages = []
    for epoch in range(12):
        ids, _ = buckets.plan(epoch, scores)
        stages.append(buckets.stage)
        # Two more samples are right each epoch until epoch 5; then nothing changes any more.
        right = np.arange(100) < 10 + 2 * min(epoch, 5)
        feedback(scores, epoch, ids, np.where(right[ids], 0.9, 0.1))
    # The gain of epoch 5 is seen in the plan of epoch 6; the third plan after it finds three without.
    assert stages == [1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 2]


def test_without_recall_nothing_comes_back():
    scores, before = Scores.unknown(100, 0), set()
    buckets = rk.Buckets.preset("BS-norecall", warmup=1, rate=0.1, confidence=0)
    for epoch in range(20):
        ids, _ = buckets.plan(epoch, scores)
        waiting = set(np.flatnonzero(buckets.waiting))
        assert before <= waiting
        before = waiting
        feedback(scores, epoch, ids, np.full(len(ids), 0.5))
    assert len(before) == 50


def test_stagnation_is_found_by_the_loss_where_accuracy_is_not_known():
    scores, buckets, stages = scored(100, 3, logits=False), rk.Buckets(warmup=1, patience=2), []
    for epoch in range(6):
        buckets.plan(epoch, scores)
        stages.append(buckets.stage)
    assert stages == [1, 2, 2, 3, 2, 3]


@pytest.mark.parametrize(("waited", "found"), [(0.1, "cpu"), (0.2, "cpu"), (0.3, "io"), (0.9, "io")])
def test_the_bottleneck_is_found_by_how_long_the_loop_waited(waited, found):
    scores, buckets = scored(100, 3), rk.Buckets(warmup=3)
    scores.wait_seconds, scores.work_seconds = waited, 1 - waited
    timed = []
    for epoch in range(5):
        buckets.plan(epoch, scores)
        timed.append(buckets.wants_load_times(epoch))
    assert buckets.decided == found
    assert timed == [False, False, *[found == "io"] * 3]
    scores.wait_seconds = 1 - scores.wait_seconds
    buckets.plan(5, scores)
    assert buckets.decided == found, "decided once"


def test_slow_samples_wait_where_loading_is_the_bottleneck():
    scores = scored(1000, 3)
    scores.load_seconds[:] = 0.001
    scores.load_seconds[::2] = 0.01
    scores.nbytes[:] = 100
    slow = {}
    for bottleneck in ("cpu", "io"):
        buckets = rk.Buckets(warmup=1, rate=0.3, confidence=0, bottleneck=bottleneck)
        buckets.plan(0, scores)
        buckets.plan(1, scores)
        slow[bottleneck] = buckets.waiting[::2].sum() / buckets.waiting.sum()
    assert 0.4 < slow["cpu"] < 0.6
    assert slow["io"] > 0.8


def test_presets_are_those_of_iowa():
    groups = np.array([0, 0, -1, 1, 1, 1])
    chosen = {}
    for name in ("BS-random-RRemove", "BS-random-RRepeat"):
        buckets = rk.Buckets.preset(name, groups=groups, warmup=1, rate=0)
        assert len(buckets.plan(0, scored(6))[0]) == 6
        chosen[name] = buckets.plan(1, scored(6))[0]
    assert len(chosen["BS-random-RRemove"]) == 3
    assert len(chosen["BS-random-RRepeat"]) == 6
    assert len(set(chosen["BS-random-RRepeat"].tolist())) == 3
    assert rk.Buckets.preset("BS-norecall").recall is None


@pytest.mark.parametrize("name", ["BS-norecall", "BS-random", "BS-random-RRemove", "BS-random-RRepeat"])
@pytest.mark.parametrize("bottleneck", ["cpu", "io"])
def test_presets_score_as_published_and_let_the_unsure_wait_too(name, bottleneck):
    scores = scored(1000, 1)
    scores.probability[:] = np.linspace(0.001, 0.5, 1000)  # The model is sure of none.
    scores.load_seconds[:], scores.nbytes[:] = 0.01, 100
    groups = {"groups": np.full(1000, -1)} if "RR" in name else {}
    buckets = rk.Buckets.preset(name, warmup=1, rate=0.1, bottleneck=bottleneck, **groups)
    buckets.plan(0, scores)
    buckets.plan(1, scores)
    assert buckets.waiting.sum() == 100
    published = -scores.probability * np.log2(scores.probability)
    if bottleneck == "cpu":
        assert set(np.flatnonzero(buckets.waiting)) == set(np.argsort(published)[:100])
    assert buckets._criteria(scores)[0] == "cross_entropy_of_iowa"
    ours = rk.Buckets(warmup=1, rate=0.1)
    ours.plan(0, scores)
    ours.plan(1, scores)
    assert not ours.waiting.any()


def test_groups_must_be_of_this_dataset():
    buckets = rk.Buckets(groups=np.zeros(5, int), copies="remove")
    with pytest.raises(rk.ArgumentError, match="groups"):
        buckets.plan(0, scored(6))


def test_the_margin_needs_logits():
    buckets, scores = rk.Buckets(warmup=1, criteria=("margin",)), scored(50, logits=False)
    buckets.plan(0, scores)
    with pytest.raises(rk.FeedbackError, match=r"Buckets.*logits"):
        buckets.plan(1, scores)
    kakurenbo = rk.Kakurenbo(epochs=5)
    with pytest.raises(rk.FeedbackError, match=r"Kakurenbo.*logits"):
        kakurenbo.plan(1, scores)


@pytest.mark.parametrize("make", [rk.Buckets, lambda **given: rk.Kakurenbo(epochs=5, **given)])
@pytest.mark.parametrize("wrong", [-0.1, 1.1, "0.5"])
def test_confidence_is_a_probability(make, wrong):
    with pytest.raises(
        rk.ArgumentError, match=f"confidence is a probability, from 0 to 1, but got {wrong!r}"
    ):
        make(confidence=wrong)
    assert make(confidence=0).confidence == 0
    assert make(confidence=1).confidence == 1
