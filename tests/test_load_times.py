"""The time to load single samples is measured where a method asks for it, by every executor."""

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle as rk
from clock import Clock
from scored import Recorded

SIZE = 24
SLOW, QUICK = 0.25, 0.0625  # seconds, as sums of which floats are exact
CLOCK = Clock()


@pytest.fixture
def exact(monkeypatch):
    """Time passes only where `Uneven` says so, whatever the machine is at."""
    CLOCK.replace(monkeypatch)


class Uneven(torch.utils.data.Dataset):
    """A sample takes no time, some or twice as much; sample i has i + 1 numbers."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        CLOCK.advance(SLOW if index % 3 == 0 else QUICK)
        return torch.full((index + 1,), index)


class UnevenTogether(Uneven):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Timed(Recorded):
    def wants_load_times(self, epoch):
        return epoch >= 1


def run(dataset, epochs=2, collate_fn=lambda samples: len(samples), **arguments):
    loader = rk.DataLoader(
        dataset, batch_size=6, shuffle=True, seed=1, importance=Timed(), collate_fn=collate_fn, **arguments
    )
    for _ in range(epochs):
        for _ in loader:
            pass
    scores = loader._parts.importance.scores
    loader.close()
    return scores


WAYS = {
    "inline": {},
    "processes": {"num_workers": 2, "multiprocessing_context": "fork"},
    "threads": {"num_workers": 2, "executor": "threads"},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_samples_time_and_size_are_its_own(way, exact):
    scores = run(Uneven(), epochs=3, **WAYS[way])
    slow = np.arange(SIZE) % 3 == 0
    assert (scores.load_seconds == np.where(slow, SLOW, QUICK)).all()
    assert (scores.nbytes == 8 * (np.arange(SIZE) + 1)).all()
    assert (scores.loads >= 2).all()


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_timed_before_it_is_asked_for(way):
    scores = run(Uneven(), epochs=0, **WAYS[way])
    assert np.isnan(scores.load_seconds).all()


@pytest.mark.parametrize("way", WAYS)
def test_samples_loaded_together_share_the_time(way, exact):
    scores = run(UnevenTogether(), **WAYS[way])
    assert (scores.load_seconds > 0).all()
    assert scores.load_seconds.sum() == pytest.approx(SIZE / 3 * (SLOW + 2 * QUICK))


def test_a_sample_that_fails_has_no_cost():
    class Flaky(Uneven):
        def __getitem__(self, index):
            if index == 5:
                raise OSError("scratch")
            return super().__getitem__(index)

    for arguments in WAYS.values():
        scores = run(Flaky(), on_error="skip", error_budget=0.5, **arguments)
        assert np.flatnonzero(np.isnan(scores.load_seconds)).tolist() == [5]


@pytest.mark.parametrize("way", WAYS)
def test_images_cost_what_is_read_of_their_files(way, tmp_path):
    for number in range(8):
        side = 20 + 20 * number
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{number}.jpg")
    transform = [rk.transforms.Resize((16, 16)), rk.transforms.ToTensor()]
    images = rk.open(tmp_path, transform=transform)
    scores = run(images, collate_fn=None, **WAYS[way])
    assert scores.nbytes.tolist() == [
        (tmp_path / "a" / f"{number}.jpg").stat().st_size for number in range(8)
    ]
    assert (scores.load_seconds > 0).all()


def test_load_times_are_in_the_state(exact):
    def make():
        return rk.DataLoader(
            Uneven(), batch_size=6, shuffle=True, seed=1, collate_fn=len,
            importance=rk.Buckets(warmup=1, rate=0.2, confidence=0, bottleneck="io"),
        )  # fmt: skip

    def step(loader):
        loader.feedback(torch.ones(len(loader.batch.ids)))

    loader = make()
    for _ in loader:
        step(loader)
    iterator = iter(loader)
    next(iterator)
    step(loader)
    state = loader.state_dict()
    assert len(state["importance_state"]["loaded"]["ids"]) >= 6
    resumed = make()
    resumed.load_state_dict(state)
    for one in (loader, resumed):
        for _ in iterator if one is loader else resumed:
            step(one)
    assert np.array_equal(loader._parts.importance.scores.loads, resumed._parts.importance.scores.loads)
    waiting = loader._parts.importance.method.waiting
    assert waiting.sum() == 10
    # All losses are the same: what is slow to load goes first.
    assert waiting[::3].sum() >= 6
