"""Samples of several types in one batch: what torch's `default_collate` makes of them, with any workers.

How samples lie in a batch is learnt from the first one, so each case has an odd sample in a later batch, as
well as batches that are all alike. With workers, torch's own loader takes the dtype of a batch's first tensor
and casts the others to it, or raises; its `default_collate` promotes, and so do we.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import rekindle as rk
from rekindle.run import batch_pickle
from same import same

SIZE, SAMPLES = 4, 16
KINDS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "float": lambda i: i + 0.5,
    "bool": lambda i: i % 2 == 0,
    "str": str,
    "None": lambda i: None,
    "numpy.float32": lambda i: np.float32(i),
    "numpy.float64": lambda i: np.float64(i),
    "numpy.int32": lambda i: np.int32(i),
    "tensor of an int": lambda i: torch.tensor(i),
    "tensor of a double": lambda i: torch.tensor(i + 0.5, dtype=torch.float64),
    "float32 array": lambda i: np.full(2, i, np.float32),
    "float64 array": lambda i: np.full(2, i + 0.1),
    "float32 tensor": lambda i: torch.full((2,), float(i)),
    "bool tensor": lambda i: torch.full((2,), i % 2 == 0),
    "tuple": lambda i: (i, i),
    "list": lambda i: [i, 0.5],
    "dict": lambda i: {"a": i, "b": 0.5},
    "dict in another order": lambda i: {"b": 0.5, "a": i},
    "dict with more": lambda i: {"a": i, "b": 0.5, "c": 1},
}


class Mixed(Dataset[Any]):
    """Samples of one kind, but for some of another."""

    def __init__(self, usual: str, odd: str, places: tuple[int, ...]) -> None:
        self.usual, self.odd, self.places = usual, odd, places

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return KINDS[self.odd if index in self.places else self.usual](index), index


def expected(dataset: Mixed) -> list[Any]:
    """Batches up to the first that torch cannot make, then the type of its exception."""
    found: list[Any] = []
    for first in range(0, SAMPLES, SIZE):
        try:
            found.append(default_collate([dataset[index] for index in range(first, first + SIZE)]))
        except Exception as error:
            return [*found, _kind(error)]
    return found


def _kind(error: Exception) -> type:
    return RuntimeError if isinstance(error, RuntimeError) else type(error)


def batches(loader: rk.DataLoader[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        found.extend(loader)
    except Exception as error:
        found.append(_kind(error))
    return found


def order_of_keys(batch: Any) -> list[str]:
    return list(batch[0]) if isinstance(batch, list) and isinstance(batch[0], dict) else []


PLACES = [(5,), (4,), (0, 10), (4, 5, 6, 7)]  # within a batch, first of one, of the first one, all of one
CASES = [
    (usual, odd, PLACES[number % len(PLACES)]) for number, (usual, odd) in enumerate(permutations(KINDS, 2))
]


def check(usual: str, odd: str, places: tuple[int, ...], options: dict[str, Any]) -> None:
    dataset = Mixed(usual, odd, places)
    with rk.DataLoader(dataset, batch_size=SIZE, **options) as loader:
        got, wanted = batches(loader), expected(dataset)
    assert same(got, wanted), (usual, odd, places)
    assert [*map(order_of_keys, got)] == [*map(order_of_keys, wanted)], (usual, odd, places)


def test_a_batch_of_several_types_is_that_of_default_collate() -> None:
    for usual, odd, places in CASES:
        check(usual, odd, places, {})


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_so_it_is_with_workers(executor: str) -> None:
    step = 3 if executor == "threads" else 29
    for usual, odd, places in CASES[::step]:
        check(usual, odd, places, {"num_workers": 2, "executor": executor})


@pytest.mark.slow
@pytest.mark.parametrize("places", PLACES)
def test_so_it_is_for_every_pair_with_worker_processes(places: tuple[int, ...]) -> None:
    for usual, odd in permutations(KINDS, 2):
        check(usual, odd, places, {"num_workers": 2})


@pytest.mark.parametrize("places", PLACES)
def test_keys_come_in_the_order_of_the_batchs_own_first_sample(places: tuple[int, ...]) -> None:
    check("dict", "dict in another order", places, {"num_workers": 2})


class Scaled(NamedTuple("_Scaled", [("value", Any), ("other", Any)])):
    """Its numbers are scaled when it is made."""

    def __new__(cls, value: Any, other: Any) -> Scaled:
        return super().__new__(cls, value if isinstance(value, torch.Tensor) else 10 * value, other)


class MostlyIntegers(Dataset[Scaled]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Scaled:
        return Scaled(index, 0.5 if index in (5, 8) else index)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_named_tuples_are_made_once(executor: str) -> None:
    with rk.DataLoader(MostlyIntegers(), SIZE, num_workers=2, executor=executor) as loader:
        found = torch.cat([batch.value for batch in loader])
    assert found.tolist() == [10 * index for index in range(SAMPLES)]


def test_named_tuples_keep_what_they_have_beside_their_parts() -> None:
    sample = Scaled(1, 2)
    sample.note = "seen"  # type: ignore[attr-defined]
    encoded = batch_pickle.encode_samples([sample])
    memory = np.zeros(encoded.nbytes, dtype=np.uint8)
    (again,) = batch_pickle.decode(memory, encoded.pack(memory))
    assert (type(again), again, vars(again)) == (Scaled, sample, {"note": "seen"})


def test_a_batch_of_odd_samples_is_counted_once():
    mixed = Mixed("float64 array", "float32 array", (5,))
    loader = rk.DataLoader(mixed, batch_size=SIZE, num_workers=2)
    batches = list(loader)
    assert loader.report().stages["ship"].calls == len(batches)
