"""Generators that a dataset or its transforms hold are seeded for each sample, as the global ones are."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import rekindle as rk
from rekindle.core.analysis.held_generators import held_generators

SAMPLES = 12
MODULE_RNG = np.random.default_rng(5)


class Held(Dataset[Any]):
    """Draws from a generator of its own."""

    def __init__(self, rng: Any, draw: Callable[[Any], float]) -> None:
        self.rng, self.draw = rng, draw

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.draw(self.rng)


class InTheClass(Held):
    """As MONAI's `Randomizable.R`."""

    shared = np.random.RandomState(3)

    def __init__(self) -> None:
        pass

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.shared.rand()


class InTheModule(InTheClass):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, MODULE_RNG.random()


class InATransform:
    """Two generators, of which one is used now and then."""

    def __init__(self) -> None:
        self.often, self.seldom = random.Random(1), np.random.default_rng(2)

    def __call__(self, _: Any) -> float:
        drawn = self.often.random()
        return drawn + self.seldom.random() if drawn < 0.5 else drawn


def with_transform() -> Dataset[Any]:
    step = InATransform()
    return Subset(ConcatDataset([Held({"steps": [step]}, lambda held: held["steps"][0](0))]), range(SAMPLES))


def in_a_closure() -> Dataset[Any]:
    rng = np.random.default_rng(0)
    return Held(None, lambda _: rng.random())


def with_partial() -> Dataset[Any]:
    return Held(None, partial(lambda rng, _: rng.random(), random.Random(0)))


DATASETS: dict[str, Callable[[], Dataset[Any]]] = {
    "default_rng": lambda: Held(np.random.default_rng(0), lambda rng: rng.random()),
    "philox": lambda: Held(np.random.Generator(np.random.Philox(0)), lambda rng: rng.normal()),
    "RandomState": lambda: Held(np.random.RandomState(0), lambda rng: rng.rand()),
    "Random": lambda: Held(random.Random(0), lambda rng: rng.random()),
    "torch": lambda: Held(torch.Generator().manual_seed(0), lambda rng: float(torch.rand((), generator=rng))),
    "transform": with_transform,
    "closure": in_a_closure,
    "partial": with_partial,
    "class": InTheClass,
    "module": InTheModule,
}


def views(dataset: Any, epochs: int = 2, **options: Any) -> list[tuple[int, float]]:
    with rk.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, **options) as loader:
        return [
            pair
            for _ in range(epochs)
            for indices, drawn in loader
            for pair in zip(indices.tolist(), drawn.tolist(), strict=True)
        ]


@pytest.mark.parametrize("kind", DATASETS)
def test_the_same_views_for_any_number_of_workers_and_no_two_alike(kind: str) -> None:
    alone = views(DATASETS[kind]())
    assert len({drawn for _, drawn in alone}) == len(alone) == 2 * SAMPLES
    assert views(DATASETS[kind](), num_workers=2) == alone
    assert views(DATASETS[kind](), num_workers=2, executor="threads") == alone


def test_workers_that_persist_draw_the_same_views() -> None:
    make = DATASETS["default_rng"]
    assert views(make(), 3, num_workers=2, persistent_workers=True) == views(make(), 3, num_workers=1)


def test_a_resumed_epoch_has_the_same_views() -> None:
    whole = views(DATASETS["Random"](), 1)
    first = rk.DataLoader(DATASETS["Random"](), batch_size=5, shuffle=True, seed=3)
    next(iter(first))
    second = rk.DataLoader(DATASETS["Random"](), batch_size=5, shuffle=True, seed=3, num_workers=1)
    second.load_state_dict(first.state_dict())
    with second:
        assert [drawn for _, values in second for drawn in values.tolist()] == [one for _, one in whole[5:]]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "executor": "threads"}])
def test_the_scripts_own_generator_stays_as_it_is(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    views(Held(rng, lambda held: held.random()), **options)
    assert rng.random() == np.random.default_rng(0).random()


def test_two_generators_do_not_draw_alike() -> None:
    pair = [np.random.default_rng(0), np.random.default_rng(0)]
    drawn = views(Held(pair, lambda rngs: rngs[0].random() - rngs[1].random()))
    assert all(difference for _, difference in drawn)


def test_a_collate_function_draws_for_each_batch() -> None:
    class Mixes:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __call__(self, samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor(samples), torch.full((len(samples),), self.rng.random())

    alone = views(range(SAMPLES), collate_fn=Mixes())
    assert len({drawn for _, drawn in alone}) == 2 * 3  # batches
    assert views(range(SAMPLES), collate_fn=Mixes(), num_workers=2) == alone


def test_a_generator_that_a_worker_init_fn_puts_in_is_seeded_as_well() -> None:
    def renew(worker: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        info.dataset.rng = np.random.default_rng(worker)

    make = DATASETS["default_rng"]
    assert views(make(), num_workers=2, worker_init_fn=renew) == views(make())


def test_what_a_generator_decides_once_is_the_same_in_all_workers() -> None:
    class Lazy(Held):
        order: Any = None

        def __getitem__(self, index: int) -> tuple[int, float]:
            if self.order is None:
                self.order = self.rng.permutation(SAMPLES)
            return index, float(self.order[index])

    make = partial(Lazy, np.random.default_rng(0), float)
    expected = {index: float(one) for index, one in enumerate(np.random.default_rng(0).permutation(SAMPLES))}
    for options in ({}, {"num_workers": 2}):
        assert dict(views(make(), 1, **options)) == expected


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "executor": "threads"}], ids=str)
def test_a_dataset_that_reads_on_draws_new_numbers_in_each_epoch(options: dict[str, Any]) -> None:
    class Counting(Held):
        """Cannot be asked twice for a sample, and keeps things: its generator may have decided something."""

        calls = 0

        def __getitem__(self, index: int) -> tuple[int, float]:
            self.calls += 1
            return super().__getitem__(index)

    dataset = Counting(random.Random(0), lambda rng: rng.random())
    drawn = [value for _, value in views(dataset, 4, **options)]
    assert drawn[0] == random.Random(0).random()  # As with torch: it might be a permutation.
    assert len(set(drawn)) == len(drawn) == 4 * SAMPLES


def test_looking_for_generators_runs_no_code_and_ends() -> None:
    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("code of the user's was run")

        def __len__(self) -> int:
            raise AssertionError("code of the user's was run")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("code of the user's was run")

        __hash__ = None  # type: ignore[assignment]

    itself: list[Any] = [Odd(), random.SystemRandom(), random._inst, np.random.mtrand._rand]
    itself += [itself, [[object() for _ in range(100)] for _ in range(100)], torch.default_generator]
    assert held_generators(itself) == ()
    assert len(held_generators(itself, {"here": [random.Random(1)]})) == 1


def albumentations() -> Any:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or it asks the network for its latest version
    A = pytest.importorskip("albumentations")  # noqa: N806 - the name that its users give it
    return A.Compose([A.RandomResizedCrop((16, 16)), A.OneOf([A.GaussNoise(p=1), A.CoarseDropout(p=1)], p=1)])


class Pictures(Dataset[Any]):
    """The usual dataset with Albumentations: one picture, so that samples differ by their views alone."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        self.image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        image = self.transform(image=self.image)["image"]
        return index, float((image.astype(np.float64).ravel() * np.arange(image.size)).sum())


def test_albumentations_in_an_unchanged_dataset_has_a_view_for_each_sample_and_epoch() -> None:
    alone = views(Pictures(albumentations()))
    assert len({drawn for _, drawn in alone}) == 2 * SAMPLES
    for options in ({"num_workers": 2}, {"num_workers": 2, "executor": "threads"}):
        assert views(Pictures(albumentations()), **options) == alone
