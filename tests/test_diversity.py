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
from rekindle.reuse.diversity import distinct, estimated, refurbished, view_hash

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
    assert distinct(1, 50) == 1


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
def test_a_step_that_is_not_there(split):
    with pytest.raises(
        ArgumentError, match=r"the steps are 0: RandAugment, 1: RandAugment\[1\], 2: ToTensor"
    ):
        rk.diversity([T.RandAugment(2), T.ToTensor()], split=split, factor=3, epochs=90)


@pytest.mark.parametrize("outcomes", [1, 2, 14, 50])
def test_an_estimate_by_drawing(outcomes):
    random.seed(0)
    assert estimated(lambda: random.randrange(outcomes)) == pytest.approx(outcomes, rel=0.4)


def test_what_never_comes_twice_counts_as_infinite():
    assert estimated(random.random) == math.inf


def test_hashes_tell_views_apart():
    image = np.zeros((4, 4, 3), dtype=np.uint8)
    other = image.copy()
    other[3, 3, 2] = 1
    assert view_hash(image) == view_hash(image.copy()) != view_hash(other)
    assert view_hash((image, 1)) != view_hash((image, 2))
    assert view_hash({"a": image}) == view_hash({"a": image.copy()})
    assert view_hash(image) != view_hash(image.astype(np.int8))
    pictures = [Image.fromarray(pixels) for pixels in (image, image.copy(), other)]
    assert view_hash(pictures[0]) == view_hash(pictures[1]) != view_hash(pictures[2])
