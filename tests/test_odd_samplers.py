"""Samplers that hold odd or many things are iterated and resumed as others are; nothing of theirs is run."""

import random
import weakref
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler

import rekindle as rk
from rekindle.choose import sampler_memory
from resumable import through_a_file

SIZE = 12


class Holding(Sampler):
    """Counts its passes, and holds something besides."""

    def __init__(self, held):
        self.held, self.passes = held, 0

    def __len__(self):
        return SIZE

    def __iter__(self):
        self.passes += 1
        return iter(random.Random(self.passes).sample(range(SIZE), SIZE))


class Refusing:
    """Refuses to be looked at."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __len__(self):
        raise RuntimeError

    def __next__(self):
        raise RuntimeError


class RefusingArray(np.ndarray):
    @property
    def nbytes(self):
        raise RuntimeError


class RefusingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_, **__):
        raise RuntimeError


class RefusingRandom(random.Random):
    def getstate(self):
        raise RuntimeError


class _Target:
    pass


def of_a_dead_object():
    return weakref.proxy(_Target())


def of_itself():
    held = []
    held.append(held)
    return held


def nested():
    held = []
    for _ in range(3_000):
        held = [held]
    return held


HELD = {
    "weak proxy of a dead object": of_a_dead_object,
    "list of itself": of_itself,
    "nested": nested,
    "refusing": Refusing,
    "refusing array": lambda: np.zeros(3).view(RefusingArray),
    "refusing tensor": lambda: torch.zeros(3).as_subclass(RefusingTensor),
    "refusing generator": RefusingRandom,
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "tensor on meta": lambda: torch.zeros(3, device="meta"),
}


def epochs(loader, number):
    return [[batch.tolist() for batch in loader] for _ in range(number)]


@pytest.mark.filterwarnings("ignore:.*which has begun and is not over")
@pytest.mark.parametrize("kind", HELD)
def test_whatever_a_sampler_holds_its_run_goes_on(kind):
    def make():
        held = HELD[kind]()
        return held, rk.DataLoader(range(SIZE), batch_size=3, sampler=Holding(held), seed=3)

    _, loader = make()
    whole = epochs(loader, 3)
    _, loader = make()
    epochs(loader, 1)
    between = through_a_file(loader.state_dict())
    next(iter(loader))
    within = through_a_file(loader.state_dict())
    held, resumed = make()
    resumed.load_state_dict(between)
    assert epochs(resumed, 2) == whole[1:]
    resumed.load_state_dict(within)
    assert epochs(resumed, 2) == [whole[1][1:], whole[2]]
    assert resumed.sampler.held is held


def test_a_tensor_with_a_gradient_is_the_models():
    class OfAModel(Holding):
        def __iter__(self):
            with torch.no_grad():
                self.held += 1
            return super().__iter__()

    def make():
        return rk.DataLoader(range(SIZE), sampler=OfAModel(torch.zeros(3, requires_grad=True)), seed=3)

    loader = make()
    epochs(loader, 2)
    state, resumed = loader.state_dict(), make()
    held = resumed.sampler.held
    resumed.load_state_dict(state)
    assert resumed.sampler.held is held
    assert held.requires_grad
    assert resumed.sampler.passes == 2


def test_what_is_kept_behind_a_property_is_put_back():
    class WithProperty(Holding):
        @property
        def passes(self):
            return vars(self)["passes"]

        def __init__(self):
            vars(self).update(held=None, passes=0)

        def __iter__(self):
            vars(self)["passes"] += 1
            return iter(random.Random(self.passes).sample(range(SIZE), SIZE))

    def make():
        return rk.DataLoader(range(SIZE), batch_size=3, sampler=WithProperty(), seed=3)

    whole, loader, resumed = epochs(make(), 3), make(), make()
    epochs(loader, 1)
    resumed.load_state_dict(through_a_file(loader.state_dict()))
    assert epochs(resumed, 2) == whole[1:]


class Rows(Sampler):
    """Shuffles rows in place, and the items of rows that are lists."""

    def __init__(self, rows):
        self.rows, self.rng = rows, random.Random(3)

    def __len__(self):
        return SIZE

    def __iter__(self):
        self.rng.shuffle(self.rows)
        for row in self.rows:
            if isinstance(row, list):
                self.rng.shuffle(row)
        return iter([index for row in self.rows for index in row][:SIZE])


@pytest.mark.parametrize("kind", [list, tuple])
def test_rows_of_numbers_are_kept(kind):
    def make():
        rows = [kind(range(start, start + 3)) for start in range(0, SIZE, 3)]
        return rk.DataLoader(range(SIZE), batch_size=3, sampler=Rows(rows), seed=3)

    whole, loader = epochs(make(), 3), make()
    epochs(loader, 1)
    between = through_a_file(loader.state_dict())
    left = islice(loader, 2)
    next(left)
    within, resumed = through_a_file(loader.state_dict()), make()
    rows = resumed.sampler.rows
    resumed.load_state_dict(between)
    assert epochs(resumed, 2) == whole[1:]
    resumed.load_state_dict(within)
    assert epochs(resumed, 2) == [whole[1][1:], whole[2]]
    assert resumed.sampler.rows is rows
    assert {*map(type, rows)} == {kind}


@pytest.mark.parametrize(
    "make",
    [
        lambda: [[*range(100)] for _ in range(1_000)],
        lambda: {key: {key: [*range(300)]} for key in range(300)},
    ],
    ids=["rows", "dicts of dicts"],
)
def test_a_state_within_an_epoch_is_made_without_a_look_at_all_entries(make, monkeypatch):
    loader = rk.DataLoader(range(SIZE), sampler=Holding(make()), seed=3)
    epochs(loader, 2)
    iterator = iter(loader)
    next(iterator)
    seen = []
    encoded = sampler_memory.encoded
    monkeypatch.setattr(sampler_memory, "encoded", lambda value: seen.append(value) or encoded(value))
    loader.state_dict()
    assert loader.sampler.passes in seen
    assert not any(value is loader.sampler.held for value in seen)
