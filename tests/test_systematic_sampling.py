"""Draws by chance that are never off by a whole one, and percentiles without a sort."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.choose import scores as scores_module
from rekindle.choose.importance import percentiles as percentiles_module
from rekindle.choose.importance import systematic_sampling
from rekindle.choose.importance.percentiles import LevelCounts, levels_of, percentiles
from rekindle.choose.importance.systematic_sampling import (
    SystematicDraw,
    are_lowest,
    capped,
    lowest,
)
from rekindle.choose.scores import STRETCH, Scores, stretches
from scored import METHODS, scored

# Draws.


@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=60), st.floats(0, 1, exclude_max=True), st.integers(0, 99)
)
def test_systematic_draws_are_never_off_by_a_whole_one(expected, offset, seed):
    expected = np.array(expected)
    order = np.random.default_rng(seed).permutation(len(expected))
    drawing = SystematicDraw(order, offset, float(expected.sum()))
    counts = drawing.next(expected)
    assert (np.abs(counts - expected) < 1 + 1e-6).all()
    assert abs(counts.sum() - expected.sum()) < 1 + 1e-6


@given(st.lists(st.floats(1e-3, 100), min_size=1, max_size=60), st.data())
def test_capped_chances_add_up_and_keep_their_order(wanted, data):
    wanted = np.array(wanted)
    total = data.draw(st.integers(1, len(wanted)))
    chances = capped(wanted, total)
    assert chances.sum() == pytest.approx(total)
    assert ((chances >= 0) & (chances <= 1)).all()
    order = np.argsort(wanted, kind="stable")
    assert (np.diff(chances[order]) >= -1e-9).all()
    free = chances < 1 - 1e-9
    assert np.ptp(chances[free] / wanted[free]) < 1e-6 if free.any() else True


@given(st.lists(st.floats(0.01, 3), min_size=1, max_size=60), st.integers(1, 20), st.integers(0, 99))
def test_systematic_draws_go_on_from_stretch_to_stretch(expected, length, seed):
    expected, order = np.array(expected), np.random.default_rng(seed).permutation(length)
    drawing = SystematicDraw(order, seed / 100, float(expected.sum()))
    parts = [expected[start : start + length] for start in range(0, len(expected), length)]
    drawn = [drawing.next(part) for part in parts]
    assert (np.abs(np.concatenate(drawn) - expected) < 1 + 1e-6).all()
    before = np.cumsum([part.sum() for part in parts]), np.cumsum([one.sum() for one in drawn])
    assert (np.abs(before[0] - before[1]) < 1 + 1e-4).all()


@given(st.lists(st.floats(-10, 10, width=32) | st.sampled_from([np.inf, 0.5]), min_size=1, max_size=80))
def test_percentiles_are_those_of_a_sort_but_for_equal_levels(values):
    values = np.array(values, dtype=np.float32)
    levels = levels_of(values)
    below = (levels[None, :] < levels[:, None]).sum(1)
    equal = (levels[None, :] == levels[:, None]).sum(1)
    assert percentiles(values) == pytest.approx((below + equal / 2) / len(values))
    higher = values[:, None] > values[None, :] + 2.0**-11 * np.abs(values[None, :])
    assert (levels[:, None] > levels[None, :])[higher & (np.abs(values[None, :]) > 1e-30)].all()


@pytest.mark.parametrize(
    "name", ["SelectiveBackprop", "OnlineBatchSelection", "InfoBatch", "RandomSubset", "Buckets"]
)
def test_more_samples_than_a_stretch_are_chosen_by_the_same_rule(name, monkeypatch):
    scores, method = scored(3000, 5), METHODS[name]()
    whole = len(method.plan(1, scores)[0])
    for module in (scores_module, systematic_sampling, percentiles_module):
        monkeypatch.setattr(module, "STRETCH", 500)
    ids, _ = METHODS[name]().plan(1, scored(3000, 5))
    assert abs(len(ids) - whole) <= 1
    assert (np.diff(ids) >= 0).all()


def test_equal_values_are_drawn_by_the_tie_breaker():
    ties = np.array([0.0, 0.9, 0.1, 0.5])
    assert lowest(np.array([1, 0, 0, 0]), 2, lambda rows: ties[rows]).tolist() == [2, 3]


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, np.inf, np.nan]), max_size=12),
    st.integers(0, 13),
    st.integers(0, 99),
)
def test_the_lowest_are_those_that_a_sort_puts_first(values, count, seed):
    values, ties = np.array(values), np.random.default_rng(seed).integers(0, 3, len(values)) / 3
    sorted_first = np.lexsort((ties, values))[:count]
    assert lowest(values, count, lambda rows: ties[rows]).tolist() == sorted(sorted_first)
    first = np.argsort(values, kind="stable")[:count]
    assert lowest(values, count).tolist() == sorted(first)


@settings(max_examples=20)
@given(
    st.integers(STRETCH - 1, STRETCH + 2),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([3.0, 1e-30, 1e39]),  # few values, many that differ little, some beyond float32
    st.integers(0, 2**63 - 1),
    st.data(),
)
def test_the_lowest_of_many_are_exact(size, dtype, scale, seed, data):
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        values = (scale * np.round(rng.standard_normal(size), 2 if scale == 3 else 9)).astype(dtype)
    values[rng.random(size) < 0.01] = np.nan
    count = data.draw(st.integers(1, size))
    expected = np.sort(np.argsort(values, kind="stable")[:count])
    assert np.array_equal(lowest(values, count), expected)
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    found = are_lowest(lambda part: rounded[part], size, count, None, lambda places: values[places])
    assert np.array_equal(np.flatnonzero(found), expected)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3 * STRETCH), st.integers(0, 2**63 - 1), st.sampled_from([np.float32, np.float64]))
def test_compiled_loops_give_what_numpy_gives(size, seed, dtype):
    rng = np.random.default_rng(seed)
    values = (rng.uniform(-3, 3, size) * 10.0 ** rng.integers(-40, 39, size)).astype(dtype)
    values[rng.random(size) < 0.1] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])
    chances = rng.random(size) * rng.choice([0.01, 1, 3])
    results = []
    for many in (0, 2**62):
        with (
            mock.patch.object(percentiles_module, "MANY", many),
            mock.patch.object(systematic_sampling, "MANY", many),
            mock.patch.object(percentiles_module, "STRETCH", 0),
        ):
            counts, sums = LevelCounts.of(lambda part: values[part], size), np.ones(size)
            counts.adder(counts.percentiles())(values, sums)
            draw = SystematicDraw.of(Scores.unknown(size, seed, frozenset()), 2, float(chances.sum()))
            drawn = [draw.next(chances[part]) for part in stretches(size)]
        results.append((counts.levels, counts.counts, sums, np.concatenate(drawn)))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)
