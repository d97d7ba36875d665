"""What is chosen of many millions of samples, by compiled loops, is what NumPy chooses of fewer."""

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.choose import Scores, sample_ids
from rekindle.choose.importance import (
    buckets,
    compiled_criteria,
    criteria,
    epoch_choice,
    percentiles,
    systematic_sampling,
)
from rekindle.choose.importance.criteria import CRITERIA, importance
from rekindle.choose.importance.epoch_choice import choose_samples
from rekindle.choose.importance.method import arrays_read_by, as_method
from rekindle.choose.sample_ids import ids_where
from rekindle.choose.scores import STRETCH

MODULES = (buckets, criteria, epoch_choice, percentiles, sample_ids, systematic_sampling)
MOST = 2 * STRETCH + 1000


@contextmanager
def many(number):
    """Compiled loops are for this many samples."""
    with ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "MANY", number))
        yield


def scores_of(method, size, seed, epochs=3):
    """Scores of all kinds: nothing known, certain, wrong, never loaded, loaded in no time or in hours."""
    rng = np.random.default_rng(seed)
    scores = Scores.unknown(size, seed, arrays_read_by(method))
    scores.epoch[:] = rng.integers(-1, epochs, size)
    known = scores.epoch >= 0
    probability = rng.choice([0.0, 1e-40, 1.0, *rng.random(3), *rng.random(400)], size)
    scores.loss[known] = -np.log(np.maximum(probability[known], 1e-9))
    scores.probability[known] = probability[known]
    with_logits = known & (rng.random(size) < 0.9)
    scores.rival[with_logits] = ((1 - probability) * rng.random(size))[with_logits]
    loaded = rng.random(size) < 0.9
    scores.loads[loaded] = 1
    seconds = rng.choice([0.0, 1e-7, 2.5, 6e4, *rng.random(50)], size)
    scores.load_seconds[loaded] = seconds[loaded]
    scores.nbytes[loaded] = rng.integers(0, 10**9, size)[loaded]
    return scores


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, STRETCH, STRETCH + 1, MOST]),
    st.lists(st.sampled_from(CRITERIA), min_size=1, max_size=4, unique=True),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)
def test_compiled_criteria_are_those_of_numpy(size, names, alpha, wide, seed):
    """Of scores in few bits, and of those that a method of the user's has in more."""
    method = rk.Buckets()
    scores = scores_of(method, size, seed)
    if wide:
        scores.epoch = scores.epoch.astype(np.int32)
        scores.nbytes, scores.load_seconds = scores.nbytes.astype(np.int64), scores.load_seconds.astype("f4")
    some, found = np.random.default_rng(seed).integers(0, size, 50), []
    for number in (0, 2**62):
        with many(number):
            one = importance(scores, names, alpha)
            found.append((one.rounded, one.levels.levels, one.levels.counts, one.exactly(some)))
    for compiled, wanted in zip(*found, strict=True):
        assert np.array_equal(compiled, wanted, equal_nan=True)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([STRETCH, MOST]),
    st.sampled_from([None, ("margin", "io"), ("cross_entropy_of_iowa", "margin", "io")]),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.integers(0, 2**63 - 1),
)
def test_compiled_buckets_choose_the_same(size, names, confidence, seed):
    chosen = []
    for number in (0, 2**62):
        method = rk.Buckets(warmup=1, rate=0.2, bottleneck="io", criteria=names, confidence=confidence)
        scores = scores_of(method, size, seed)
        with many(number):
            chosen.append([choose_samples(method, epoch, scores, None).ids for epoch in range(4)])
            chosen[-1].append(scores.uses)
    for compiled, wanted in zip(*chosen, strict=True):
        assert compiled.dtype == wanted.dtype
        assert np.array_equal(compiled, wanted)
    assert len(chosen[0][3]) < size


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=0, max_size=40))
def test_compiled_indices_are_those_of_a_mask(mask):
    is_chosen = np.array(mask, dtype=bool)
    with many(0):
        assert np.array_equal(ids_where(is_chosen), np.flatnonzero(is_chosen))


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([1, 1000, MOST]),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)
def test_compiled_draws_choose_the_same(size, keep, correct, seed):
    """Samples that are drawn several times come as often as they are drawn."""
    chosen = []
    for number in (0, 2**62):
        method = rk.OnlineBatchSelection(epochs=9, keep=keep, correct=correct)
        scores = Scores.unknown(size, seed, arrays_read_by(method))
        rng = np.random.default_rng(seed)
        scores.epoch[:] = rng.integers(-1, 2, size)
        scores.loss[:] = rng.exponential(0.5, size)
        with many(number):
            choice = choose_samples(method, 2, scores, None)
        chosen.append((choice.ids, choice.weights, scores.uses))
    for compiled, wanted in zip(*chosen, strict=True):
        assert compiled.dtype == wanted.dtype
        assert np.array_equal(compiled, wanted)


class Fixed:
    """Chooses the samples that it is given."""

    def __init__(self, ids):
        self.ids = ids

    def plan(self, epoch, scores):
        return self.ids, None


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.sampled_from([np.int32, np.int64]),
    st.booleans(),
    st.booleans(),
)
def test_compiled_counts_of_uses_are_one_for_each_sample(ids, dtype, ascending, kept):
    """In any order, and however often it comes."""
    given_ids = np.array(sorted(ids) if ascending else ids, dtype=dtype)
    scores = Scores.unknown(10, 1, frozenset() if kept else None)
    with many(0):
        choose_samples(as_method(Fixed(given_ids)), 0, scores, None)
    assert scores.uses.tolist() == [int(sample in ids) for sample in range(10)]


def test_a_mask_in_pieces_is_looked_at_as_it_is():
    """A bucket from a checkpoint may be a view, and so may an array that is not kept."""
    waiting = np.zeros((100, 2), dtype=bool)[:, 0]
    waiting[::3] = True
    values = np.ones(100, dtype=np.float32)
    probability = np.broadcast_to(np.float32(0.95), 100)
    assert compiled_criteria.keep_the_others(values, probability, waiting, 0.9) == 66
    assert np.array_equal(np.isinf(values), waiting)
