"""Distinct views: the paper's numbers, the limits, and a simulation."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import rekindle as rk
from rekindle.choose import Refresh
from rekindle.errors import ArgumentError
from rekindle.prepare.steps.outcomes import (
    CONTINUOUS,
    ONE,
    Outcomes,
    chance,
    of_counts,
    of_probabilities,
    uniform,
)
from rekindle.reuse.diversity import estimated, left_by_reuse, refurbished, view_hash

T = rk.transforms


@pytest.mark.parametrize(
    ("final", "factor", "share"), [(1, 2, 0.50), (1, 3, 0.33), (14, 2, 0.96), (14, 3, 0.93), (14, 5, 0.87)]
)
def test_the_papers_numbers(final, factor, share):
    assert round(float(refurbished(196_000, final, factor, 300)), 2) == share


@given(st.floats(1, 1e9), st.floats(1, 1e6), st.floats(1, 5), st.integers(1, 1000))
def test_a_share_is_a_share(outcomes, final, factor, epochs):
    final = min(final, outcomes)
    share = refurbished(outcomes, final, factor, max(epochs, factor))
    assert 0 < share <= 1 + 1e-9
    assert share.expected <= share.standard + 1e-6


def test_limits():
    assert refurbished(math.inf, math.inf, 3, 90) == 1
    assert refurbished(math.inf, 1, 3, 90) == pytest.approx(1 / 3)
    assert refurbished(196_000, 14, 1, 300) == pytest.approx(1)
    assert refurbished(10**15, 14, 3, 300) == pytest.approx(refurbished(math.inf, 14, 3, 300), rel=1e-6)
    assert uniform(1).distinct(50) == 1
    assert uniform(2).distinct(2) == 1.5
    assert CONTINUOUS.distinct(300) == 300


@pytest.mark.parametrize(
    ("outcomes", "final", "factor"), [(196, 14, 3), (60, 6, 2), (1000, 2, 4), (40, 40, 3)]
)
def test_a_simulation_agrees(outcomes, final, factor):
    """Draws as the loader makes them: the first part once a generation, the last part every epoch."""
    epochs, samples = 60, 9000
    rng = np.random.default_rng(0)
    refresh = Refresh(samples, factor, seed=0)
    first = rng.integers(0, outcomes // final, (samples, 2 * epochs))
    # Those whose parts are made in the first epoch that counts, so that whole rounds are counted.
    whole = np.flatnonzero(refresh.generations(np.arange(samples), factor) == factor)
    views = np.empty((epochs, len(whole)), dtype=np.int64)
    for epoch in range(epochs):
        generations = refresh.generations(whole, epoch + factor)
        views[epoch] = first[whole, generations] * final + rng.integers(0, final, len(whole))
    counted = np.mean([len(set(column.tolist())) for column in views.T])
    assert refurbished(outcomes, final, factor, epochs).expected == pytest.approx(counted, rel=0.02)


def test_of_a_pipeline():
    steps = [T.RandomResizedCrop(224), T.RandAugment(2, 9), T.RandomHorizontalFlip(), T.ToTensor()]
    between = rk.diversity(steps, split=2, factor=3, epochs=90)
    assert between == pytest.approx(refurbished(math.inf, 28, 3, 90))
    assert rk.diversity(steps, split="RandAugment[1]", factor=3, epochs=90) == between
    assert rk.diversity(T.Compose(steps), split="RandAugment", factor=3, epochs=90) > between
    assert rk.diversity(steps, split="ToTensor", factor=3, epochs=90) == pytest.approx(1 / 3)
    assert between.expected < between.standard == 90


@pytest.mark.parametrize("split", [-1, 9, "Blur", "RandAugment[2]", 1.5])
def test_a_step_that_does_not_exist_is_an_error(split):
    with pytest.raises(
        ArgumentError, match=r"the steps are 0: RandAugment, 1: RandAugment\[1\], 2: ToTensor"
    ):
        rk.diversity([T.RandAugment(2), T.ToTensor()], split=split, factor=3, epochs=90)


@pytest.mark.parametrize("outcomes", [1, 2, 14, 50])
def test_an_estimate_by_drawing(outcomes):
    random.seed(0)
    for draws in (1, 3, 30, 1000):
        expected = uniform(outcomes).distinct(draws)
        assert estimated(lambda: random.randrange(outcomes)).distinct(draws) == pytest.approx(
            expected, rel=0.25
        )


def test_outcomes_that_never_repeat_count_as_infinitely_many():
    assert estimated(random.random) == CONTINUOUS


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5])
def test_rare_outcomes_are_estimated_as_rare(p):
    random.seed(0)
    rare = estimated(lambda: random.random() if random.random() < p else 0)
    for draws in (3, 100):
        expected = CONTINUOUS.with_probability(p).distinct(draws)
        assert rare.distinct(draws) == pytest.approx(expected, rel=0.4)


OUTCOMES = st.lists(st.floats(1e-4, 1), min_size=1, max_size=6).map(
    lambda weights: of_probabilities(weight / sum(weights) for weight in weights)
)


@given(OUTCOMES, OUTCOMES, st.floats(0, 1))
def test_probabilities_add_up_to_one(first, second, p):
    for outcomes in (first, first.then(second), first.with_probability(p), first.then(CONTINUOUS), chance(p)):
        assert sum(q * count for q, count in outcomes.groups) + outcomes.continuum == pytest.approx(1)
        assert outcomes.distinct(1) == pytest.approx(1)
        assert 1 - 1e-9 <= outcomes.distinct(3) <= 3 + 1e-9


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_estimated_probabilities_add_up_to_one(counts):
    outcomes = of_counts(counts)
    assert sum(q * count for q, count in outcomes.groups) + outcomes.continuum == pytest.approx(1)


@given(OUTCOMES, OUTCOMES, st.integers(1, 5), st.integers(1, 50))
def test_reuse_of_unequal_outcomes_leaves_a_share(first, last, factor, rounds):
    share = left_by_reuse(first, last, factor, factor * rounds)
    assert 0 < share <= 1 + 1e-6
    assert left_by_reuse(ONE, last, factor, factor * rounds) == pytest.approx(1)
    assert left_by_reuse(first, last, 1, rounds) == pytest.approx(1)


def test_a_step_that_changes_few_images_leaves_little():
    erasing = T.RandomErasing(p=0.1)
    steps = [T.RandomResizedCrop(8), T.ToTensor(), erasing]
    assert rk.diversity(steps, split="RandomErasing", factor=3, epochs=90) == pytest.approx(0.43, abs=0.01)
    assert erasing.outcomes().distinct(3) == pytest.approx(0.3 + 0.999)
    assert T.RandomHorizontalFlip(0.1).outcomes().distinct(3) == pytest.approx(1.27)
    jitter = T.RandomApply([T.ColorJitter(0.4)], p=0.2)
    assert jitter.outcomes().distinct(3) == pytest.approx(0.6 + 1 - 0.2**3)


def test_crops_have_as_many_outcomes_as_the_image_has_room_for():
    assert T.RandomCrop(32, padding=4).outcomes((32, 32)).distinct(10_000) == pytest.approx(81, abs=0.1)
    assert T.RandomCrop(32).outcomes((32, 32)) == ONE
    assert T.RandomCrop(32).outcomes() == CONTINUOUS
    assert T.RandomResizedCrop(32, (1, 1), (1, 1)).outcomes((40, 40)) == ONE
    assert 5 < T.RandomResizedCrop(32, (0.9, 1)).outcomes((32, 32)).distinct(10_000) < 100
    assert T.RandomResizedCrop(224).outcomes((375, 500)).distinct(100) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    "step", [T.TrivialAugmentWide(), T.AutoAugment(), T.AutoAugment("cifar10")], ids=repr
)
def test_policies_draw_as_their_outcomes_say(step):
    rng = np.random.default_rng(0)
    for draws in (3, 30):
        counted = []
        for _ in range(200):
            chosen = [step.choice(32, 32, uniforms) for uniforms in rng.random((draws, step.uniforms))]
            unsigned = [one if isinstance(one, list) else [one] for one in chosen]
            counted.append(len({tuple((name, abs(amount)) for name, amount in one) for one in unsigned}))
        assert step.outcomes().distinct(draws) == pytest.approx(np.mean(counted), rel=0.04)


def test_many_unequal_outcomes_stay_few_groups():
    together: Outcomes = ONE
    for number in range(1, 30):
        together = together.then(chance(number / 31))
    assert len(together.groups) <= 256
    assert together.distinct(1) == pytest.approx(1)


def test_distinct_views_have_distinct_hashes():
    image = np.zeros((4, 4, 3), dtype=np.uint8)
    other = image.copy()
    other[3, 3, 2] = 1
    assert view_hash(image) == view_hash(image.copy()) != view_hash(other)
    assert view_hash((image, 1)) != view_hash((image, 2))
    assert view_hash({"a": image}) == view_hash({"a": image.copy()})
    assert view_hash(image) != view_hash(image.astype(np.int8))
    images = [Image.fromarray(pixels) for pixels in (image, image.copy(), other)]
    assert view_hash(images[0]) == view_hash(images[1]) != view_hash(images[2])
