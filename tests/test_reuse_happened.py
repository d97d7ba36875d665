"""What `batch.fresh`, the report and load times state of reuse is what happened, not what was planned."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
from clock import Clock
from scored import Recorded

SIZE, BATCH = 50, 10
CLOCK = Clock()
COMPUTED: Counter[int] = Counter()


class Counted(Dataset[Any]):
    """Counts how often a sample is computed, which takes a quarter of a second by the clock."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        COMPUTED[index] += 1
        CLOCK.advance(0.25)
        return torch.full((100,), float(index))


class Timed(Recorded):
    def wants_load_times(self, epoch: int) -> bool:
        return True


def same(sample: Any) -> Any:
    return sample


def load(**settings: Any) -> Any:
    return rk.DataLoader(
        Counted(),
        BATCH,
        shuffle=True,
        seed=2,
        reuse=rk.Refurbish(3),
        final_transform=same,
        **settings,
    )


def fresh_in(loader: Any, epochs: int) -> int:
    return sum(int(loader.batch.fresh.sum()) for _ in range(epochs) for _ in loader)


@pytest.mark.filterwarnings("ignore:the cache has room")
def test_a_cache_that_is_too_small_is_seen_in_fresh_and_in_the_report() -> None:
    loader = load(memory=14 * 512)
    COMPUTED.clear()
    fresh = fresh_in(loader, 6)
    probed = 8  # to measure their size
    drawn = 1  # again: the first sample of all shows whether the dataset draws numbers
    assert COMPUTED.total() - probed - drawn <= fresh <= COMPUTED.total() - probed
    assert fresh > 0.75 * 6 * SIZE
    reuse = loader.report().reuse
    assert reuse.fresh_share == fresh / (6 * SIZE)
    assert reuse.planned_share == pytest.approx((1 + 5 / 3) / 6, abs=0.02)
    assert reuse.held_share == reuse.store.entries / SIZE < 0.35
    shown = f"planned 45%, recomputed {reuse.fresh_share:.0%}: the cache holds {reuse.held_share:.0%} of"
    assert shown in reuse.lines()[0]


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"num_workers": 2, "executor": "threads"}])
def test_whoever_loads_reports_what_was_recomputed(settings: dict[str, Any]) -> None:
    assert fresh_in(load(memory=0, **settings), 4) == 4 * SIZE
    planned = (1 + 3 / 3) * SIZE
    # Workers that run ahead may compute what another one is about to cache.
    most = planned + (4 * BATCH if settings else 0)
    loader = load(**settings)
    assert planned - 3 <= fresh_in(loader, 4) <= most + 3
    assert settings or "cache holds" not in loader.report().reuse.lines()[0]


def test_samples_that_a_resumed_run_has_to_compute_again_are_fresh() -> None:
    loader = load()
    fresh_in(loader, 2)
    resumed = load()
    resumed.load_state_dict(loader.state_dict())
    assert fresh_in(resumed, 1) == SIZE
    reuse = resumed.report().reuse
    assert reuse.was_empty
    assert "recomputed 100%: the cache was empty after the resume; now it holds 100% of" in reuse.lines()[0]
    assert "resume" not in loader.report().reuse.lines()[0]
    loader.load_state_dict(loader.state_dict())
    assert fresh_in(loader, 6) < 3 * SIZE
    assert loader.report().reuse.to_dict()["cache_was_empty_after_resume"]


def test_only_what_is_loaded_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK.replace(monkeypatch)
    loader = load(importance=Timed())
    for _ in range(7):
        for _ in loader:
            pass
    scores = loader._parts.importance.scores
    np.testing.assert_array_equal(scores.load_seconds, np.float32(0.25))
    assert scores.loads.min() >= 2
    assert scores.loads.max() <= 3
