"""A generator that a worker makes at its first sample draws what it would in torch's worker."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng as new_generator
from torch.utils.data import Dataset, Subset, get_worker_info

import rekindle as rk
from rekindle.core.analysis.self_changes import may_read_on
from same import same
from torch_datasets import Torch

BATCH = 2


class Slow(Dataset[Any]):
    """Every other batch takes longer: whoever gives work to idle workers gives more of it to one."""

    rng: Any = None

    def __len__(self) -> int:
        return 24

    def draw(self) -> Any:
        return 0

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01 if index // BATCH % 2 == 0 else 0.0)
        return index, self.draw()


class FromWorkersNumber(Slow):
    def draw(self) -> float:
        if self.rng is None:
            self.rng = np.random.default_rng(get_worker_info().id)
        return float(self.rng.random())


class FromAConstant(Slow):
    def draw(self) -> float:
        if self.rng is None:
            self.rng = random.Random(5)
        return float(self.rng.random())


def make(seed: int) -> np.random.Generator:
    return new_generator(seed)


class ByFunctions(Slow):
    def __init__(self) -> None:
        self.made = dict[int, np.random.Generator]()

    def generator(self) -> np.random.Generator:
        number = get_worker_info().id
        if number not in self.made:
            self.made[number] = make(number)
        return self.made[number]

    def draw(self) -> float:
        return float(self.generator().random())


class Flip:
    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(1)

    def __call__(self) -> float:
        return float(torch.rand((), generator=self.rng))


class ByAClass(Slow):
    def draw(self) -> float:
        if self.rng is None:
            self.rng = Flip()
        return float(self.rng())


class ByACachedProperty(Slow):
    @functools.cached_property
    def generator(self) -> np.random.RandomState:
        return np.random.RandomState(3)

    def draw(self) -> float:
        return float(self.generator.rand())


class AsksWhichWorker(Slow):
    def draw(self) -> int:
        return int(get_worker_info().id)


class FromWorkersSeed(Slow):
    def draw(self) -> float:
        if self.rng is None:
            self.rng = np.random.default_rng(get_worker_info().seed)
        return float(self.rng.random())


class Masks:
    """A collate function that draws."""

    rng: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        if self.rng is None:
            self.rng = random.Random(7)
        return samples, [self.rng.random() for _ in samples]


def as_list(samples: list[Any]) -> list[Any]:
    return samples


MAKE = [FromWorkersNumber, FromAConstant, ByFunctions, ByAClass, ByACachedProperty]


@pytest.mark.parametrize("collate_fn", [None, as_list], ids=["default", "own"])
@pytest.mark.parametrize("dataset", [*MAKE, AsksWhichWorker], ids=lambda one: one.__name__)
def test_draws_are_those_of_torchs_workers(dataset: Callable[[], Any], collate_fn: Any) -> None:
    ours, theirs = (
        [*loader(dataset(), BATCH, num_workers=2, collate_fn=collate_fn)] for loader in (rk.DataLoader, Torch)
    )
    assert same(ours, theirs)


@functools.cache
def remembered() -> random.Random:
    return random.Random(3)


class Remembers(Slow):
    def draw(self) -> float:
        return remembered().random()


def test_what_a_function_remembers_is_made_again_in_workers_that_are_not_forked() -> None:
    remembered()  # In this process, it is there.
    options = {"num_workers": 2, "multiprocessing_context": "spawn"}
    ours, theirs = ([*loader(Remembers(), BATCH, **options)] for loader in (rk.DataLoader, Torch))
    assert same(ours, theirs)


def test_so_are_those_of_a_collate_function() -> None:
    ours, theirs = (
        [*loader(Slow(), BATCH, num_workers=2, collate_fn=Masks())] for loader in (rk.DataLoader, Torch)
    )
    assert same(ours, theirs)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_run_is_repeated_by_its_seed(persistent: bool) -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        loader = rk.DataLoader(
            FromWorkersSeed(), BATCH, shuffle=True, num_workers=2, persistent_workers=persistent
        )
        runs.append([*loader, *loader])
    assert same(*runs)


class Opens(Slow):
    """Keeps a file, and makes a generator that it does not keep."""

    file: Any = None

    def open(self) -> None:
        if self.file is None:
            self.file = object()

    def __getitem__(self, index: int) -> float:
        self.open()
        sample = {}
        sample["view"] = new_generator(index).random()
        return sample["view"]


class Holds(Slow):
    """Has made its generators before any worker starts: those are seeded for each sample."""

    file: Any = None

    def __init__(self) -> None:
        self.rng, self.flip = np.random.default_rng(0), Flip()

    def draw(self) -> float:
        if self.file is None:
            self.file = object()
        return float(self.rng.random()) + self.flip()


def test_who_keeps_a_generator_is_told_from_who_keeps_something_else() -> None:
    assert all(may_read_on(one()) and may_read_on(Subset(one(), [0])) for one in MAKE)
    assert may_read_on(Masks())
    assert not any(may_read_on(one()) for one in (Slow, Opens, Holds, AsksWhichWorker))
