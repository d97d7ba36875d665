"""Counted views: what is counted is true, and the cost of counting is bounded."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rekindle.reuse import view_counter
from rekindle.reuse.view_counter import ViewCounter


def epochs_of(size: int, batch_size: int, epochs: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    orders = (rng.permutation(size) for _ in range(epochs))
    return [order[start : start + batch_size] for order in orders for start in range(0, size, batch_size)]


def views(ids: np.ndarray[Any, Any], outcomes: np.ndarray[Any, Any], shape: tuple[int, ...]) -> torch.Tensor:
    """An image for each sample, the same for the same outcome."""
    content = torch.from_numpy(1000 * ids + outcomes).reshape(-1, *[1] * len(shape))
    return content.expand(-1, *shape).contiguous()


@given(
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**63 - 1)
)
def test_every_view_of_a_counted_sample_is_counted(
    size: int, batch_size: int, epochs: int, outcomes: int, seed: int
) -> None:
    counter, rng = ViewCounter(size, seed), np.random.default_rng(seed)
    seen: dict[int, list[int]] = {}
    for ids in epochs_of(size, batch_size, epochs):
        drawn = rng.integers(0, outcomes, len(ids))
        counter.count(ids, {"image": views(ids, drawn, (2, 3)), "label": 1})
        for id_, outcome in zip(ids.tolist(), drawn.tolist(), strict=True):
            seen.setdefault(id_, []).append(outcome)
    counted = counter.counted()
    assert counted is not None
    watched = [seen[id_] for id_ in counter._hashes]
    assert counted.samples == len(watched) >= min(size, 8)
    assert counted.views == epochs
    assert counted.distinct == pytest.approx(np.mean([len(set(ones)) for ones in watched]))


def test_large_datasets_have_one_watched_sample_a_batch_on_average() -> None:
    counter = ViewCounter(10_000, seed=5)
    for ids in epochs_of(10_000, 1000, epochs=3):
        counter.count(ids, torch.zeros(len(ids), 2))
    counted = counter.counted()
    assert counted is not None
    assert (counted.samples, counted.views, counted.distinct) == (10, 3, 1)


def test_a_batch_is_hashed_up_to_a_limit_and_what_is_beyond_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = []

    def view_hash(view: torch.Tensor) -> bytes:
        hashed.append(view.nbytes)
        return view.numpy().tobytes()

    monkeypatch.setattr(view_counter, "view_hash", view_hash)
    counter = ViewCounter(16, seed=0)
    images = torch.zeros(16, 700_000, dtype=torch.uint8)
    for _ in range(3):
        hashed.clear()
        counter.count(np.arange(16), (images, torch.arange(16)))
        assert sum(hashed) == 2 * 700_000 <= view_counter._MAX_BYTES
        images += 1
    assert counter.counted() == (2, 3, 3)


def test_a_sample_that_fills_a_batch_is_watched_no_more() -> None:
    counter = ViewCounter(100, seed=0)
    images = torch.zeros(10, 1 << 20, dtype=torch.uint8)
    counter.count(np.arange(10), images)
    assert counter.counted() == (1, 1, 1)
    counter.count(np.zeros(10, np.int64), images)
    assert counter.counted() is None


def test_views_too_large_to_hash_are_not_counted() -> None:
    counter = ViewCounter(8, seed=0)
    counter.count(np.arange(8), torch.zeros(8, (2 << 20) + 1, dtype=torch.uint8))
    assert counter.counted() is None


@pytest.mark.parametrize("size", [0, 100])
def test_without_images_or_samples_nothing_is_counted(size: int) -> None:
    counter = ViewCounter(size, seed=0)
    counter.count(np.arange(0), torch.zeros(0))
    counter.count(np.arange(8), ["a", {"b": torch.zeros(3)}])
    assert counter.counted() is None


def test_images_that_are_not_contiguous_are_hashed_without_a_copy() -> None:
    image = torch.rand(1, 3, 4, 5).contiguous(memory_format=torch.channels_last)[0]
    ordered = view_counter._in_memory_order(image)
    assert ordered.is_contiguous()
    assert ordered.data_ptr() == image.data_ptr()
    assert torch.equal(ordered, image.permute(1, 2, 0))


def test_images_that_share_memory_are_told_apart_by_what_they_show() -> None:
    counter = ViewCounter(8, seed=0)
    wide = torch.arange(8 * 12).reshape(8, 12)
    for start in (0, 0, 3):
        counter.count(np.arange(8), wide[:, start : start + 6])
    assert counter.counted() == (8, 3, 2)
