"""Samples of any types, which may change from one to the next: batches and errors are torch's, whoever loads.

torch's loader without workers is the measure. With workers, torch casts the tensors of a batch to the dtype
of the first, which depends on their order; we promote, as torch does without.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

import rekindle as rk
from same import same
from torch_datasets import Torch

Make: TypeAlias = Callable[[int], Any]
Pair = namedtuple("Pair", "a b")
MOST_BATCHES = 40
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and NumPy, about odd types


class Text(str):
    """A string that the collate function leaves as it is."""


class Number(int):
    """A number by its base class only."""


LEAVES: dict[str, Make] = {
    "int": lambda i: i,
    "float": lambda i: i + 0.5,
    "nan": lambda i: float("nan"),
    "bool": lambda i: i % 2 == 0,
    "str": str,
    "bytes": lambda i: str(i).encode(),
    "None": lambda i: None,
    "complex": lambda i: complex(i, 1),
    "int of more than 64 bits": lambda i: 2**70 + i,
    "least int": lambda i: -(2**63),
    "subclass of str": Text,
    "subclass of int": Number,
    "range": lambda i: range(i % 3),
    "bytearray": lambda i: bytearray(b"ab"),
    "memoryview": lambda i: memoryview(b"ab"),
    "set": lambda i: {i},
    "slice": slice,
    "dtype": lambda i: torch.float32,
    "numpy.float16": np.float16,
    "numpy.float32": np.float32,
    "numpy.float64": np.float64,
    "numpy.uint8": np.uint8,
    "numpy.int32": np.int32,
    "numpy.bool": lambda i: np.bool_(i % 2),
    "numpy.str": lambda i: np.str_(i),
    "numpy.complex64": np.complex64,
    "numpy.datetime64": lambda i: np.datetime64(i, "D"),
    "numpy.void": lambda i: np.void(b"ab"),
    "float32 array": lambda i: np.full(2, i, np.float32),
    "float64 array": lambda i: np.full(2, i + 0.5),
    "uint8 array": lambda i: np.full(2, i, np.uint8),
    "uint16 array": lambda i: np.full(2, i, np.uint16),
    "big-endian array": lambda i: np.full(2, i, ">i4"),
    "longer array": lambda i: np.full(3, i, np.float32),
    "array without dimensions": lambda i: np.full((), i),
    "array of strings": lambda i: np.array(["a", str(i)]),
    "array of objects": lambda i: np.array([None, i]),
    "int64 scalar tensor": torch.tensor,
    "float32 scalar tensor": lambda i: torch.tensor(float(i)),
    "int64 tensor": lambda i: torch.tensor([i, i]),
    "uint8 tensor": lambda i: torch.full((2,), i, dtype=torch.uint8),
    "bool tensor": lambda i: torch.full((2,), i % 2 == 1),
    "bfloat16 tensor": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "float32 tensor": lambda i: torch.full((2,), float(i)),
    "float64 tensor": lambda i: torch.full((2,), i + 0.5, dtype=torch.float64),
    "longer tensor": lambda i: torch.full((3,), float(i)),
    "matrix": lambda i: torch.full((2, 2), float(i)),
    "transposed matrix": lambda i: torch.arange(4.0).view(2, 2).t(),
    "empty tensor": lambda i: torch.zeros(0),
    "complex tensor": lambda i: torch.tensor(1j * i).conj(),
    "empty list": lambda i: [],
    "empty dict": lambda i: {},
}


def in_list(parts: list[Make]) -> Make:
    return lambda i: [part(i) for part in parts]


def in_tuple(parts: list[Make]) -> Make:
    return lambda i: tuple(part(i) for part in parts)


def in_named_tuple(parts: list[Make]) -> Make:
    return lambda i: Pair(parts[0](i), parts[-1](i))


def in_ordered_dict(parts: list[Make]) -> Make:
    return lambda i: OrderedDict(("xyz"[number], part(i)) for number, part in enumerate(parts))


def in_dict(parts: list[Make]) -> Make:
    return lambda i: dict(zip(("a", 1, None), [part(i) for part in parts], strict=False))


def in_dict_of_any_order(parts: list[Make]) -> Make:
    keys = ["a", "b", "c"][: len(parts)]
    return lambda i: {key: parts[keys.index(key)](i) for key in (keys if i % 2 else keys[::-1])}


BRANCHES = [in_list, in_tuple, in_named_tuple, in_ordered_dict, in_dict, in_dict_of_any_order]


def converted(make: Make) -> Make:
    """The same of another type, as a step makes of some samples that leaves others alone."""

    def convert(index: int) -> Any:
        value = make(index)
        if isinstance(value, dict):
            return {**value, "more": 1}
        if type(value) in (list, tuple):
            return (*value, 1)
        if isinstance(value, torch.Tensor):
            return value.double() if value.dtype is not torch.float64 else value.float()
        return float(value) if type(value) is int else value

    return convert


leaves = st.sampled_from([*LEAVES]).map(LEAVES.__getitem__)
trees = st.recursive(
    leaves,
    lambda parts: st.tuples(st.sampled_from(BRANCHES), st.lists(parts, min_size=1, max_size=3)).map(
        lambda branch: branch[0](branch[1])
    ),
    max_leaves=4,
)


@st.composite
def makes_in_turn(draw: st.DrawFn) -> list[Make]:
    """What makes each sample: mostly the same, sometimes another."""
    usual = draw(trees)
    odd = draw(st.one_of(trees, leaves, st.just(converted(usual)), st.just(usual)))
    pattern = draw(st.sampled_from(["late", "in turn", "in stretches", "one"]))
    size = draw(st.integers(1, 12))
    one = draw(st.integers(0, size - 1))
    is_odd: dict[str, Callable[[int], bool]] = {
        "late": lambda i: i >= size // 2,
        "in turn": lambda i: i % 2 == 1,
        "in stretches": lambda i: i // 4 % 2 == 1,
        "one": lambda i: i == one,
    }
    return [odd if is_odd[pattern](index) else usual for index in range(size)]


class Makes(Dataset[Any]):
    def __init__(self, makes: list[Make]) -> None:
        self.makes = makes

    def __len__(self) -> int:
        return len(self.makes)

    def __getitem__(self, index: int) -> Any:
        return self.makes[index](index)


def outcomes(loader: Any) -> list[Any]:
    """Each batch, or the exception in its place."""
    found: list[Any] = []
    iterator = iter(loader)
    while len(found) < MOST_BATCHES:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)
    raise AssertionError(found)


def agree(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, Exception):
        return isinstance(ours, type(theirs))
    return not isinstance(ours, Exception) and same(_comparable(ours), _comparable(theirs))


def _comparable(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {key: _comparable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_comparable, value)]
    return value


def check(makes: list[Make], batch_size: int | None, options: dict[str, Any]) -> None:
    data = Makes(makes)
    theirs = outcomes(Torch(data, batch_size))
    with rk.DataLoader(data, batch_size, **options) as loader:
        ours = outcomes(loader)
    assert len(ours) == len(theirs)
    assert all(map(agree, ours, theirs)), (ours, theirs)


sizes = st.sampled_from([1, 2, 3, 4, None])


@settings(max_examples=300, deadline=None)
@given(makes_in_turn(), sizes)
def test_batches_and_errors_are_torchs(makes: list[Make], batch_size: int | None) -> None:
    check(makes, batch_size, {})


@settings(max_examples=30, deadline=None)
@given(makes_in_turn(), sizes)
def test_so_they_are_with_threads(makes: list[Make], batch_size: int | None) -> None:
    check(makes, batch_size, {"num_workers": 2, "executor": "threads"})


@settings(max_examples=10, deadline=None)
@given(makes_in_turn(), sizes)
def test_so_they_are_with_processes(makes: list[Make], batch_size: int | None) -> None:
    check(makes, batch_size, {"num_workers": 2})


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(makes_in_turn(), sizes, st.sampled_from(["threads", "processes"]), st.sampled_from([1, 2, 3]))
def test_so_they_are_with_many(
    makes: list[Make], batch_size: int | None, executor: str, workers: int
) -> None:
    check(makes, batch_size, {"num_workers": workers, "executor": executor})


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_later_samples_that_cannot_be_pickled_are_collated_where_they_are_loaded(
    executor: str, batch_size: int
) -> None:
    makes = [LEAVES["uint8 array"]] * 4 + [LEAVES["memoryview"]] * 24
    check(makes, batch_size, {"num_workers": 2, "executor": executor})
