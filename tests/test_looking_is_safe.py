"""Looking at what a dataset consists of runs no code of the user's, never raises and finds the same twice."""

from __future__ import annotations

import types
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import rekindle as rk
from changing_samples import Samples
from rekindle.core.analysis.changes import Watched
from rekindle.core.analysis.look import Look


class LazyList(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("not now")

    __iter__ = __len__ = __getitem__  # type: ignore[assignment]


class LazyDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError("too large to list")

    keys = values = __iter__ = items


class Odd:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class Hostile:
    def __init__(self) -> None:
        object.__setattr__(self, "value", 1)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    __setattr__ = __eq__ = __hash__ = __repr__ = __bool__ = __len__ = __getattribute__  # type: ignore[assignment]

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)

    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = __getattribute__  # type: ignore[assignment]


def odd_objects() -> dict[str, Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    with torch.inference_mode():
        inference = torch.ones(3)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return {
        "lazy list": LazyList("ab"),
        "lazy dict": LazyDict(a=1),
        "odd": Odd(),
        "hostile": Hostile(),
        "hostile list": [Hostile(), Hostile()],
        "metaclass": type.__call__(Meta, "M", (), {}),
        "cycle": cycle,
        "deep": deep,
        "mock": Mock(),
        "inference": inference,
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "objects": np.array([object(), [1]], dtype=object),
        "records": np.zeros(3, dtype=[("a", "i4"), ("b", "O")]),
        "strings": np.array(["a", "bb"]),
        "masked": np.ma.masked_array([1, 2], [0, 1]),
        "view": memoryview(b"abc"),
        "layer": torch.nn.Linear(2, 2),
        "generator": torch.Generator(),
        "namespace": types.SimpleNamespace(a=1),
        "proxy": types.MappingProxyType({"a": 1}),
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(3.0),
        "complex": torch.ones(2, dtype=torch.complex64).conj(),
        "nan": float("nan"),
        "iterator": iter([1]),
        "strided": torch.arange(12).reshape(3, 4).t(),
        "bits": np.float32(3),
        "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
        "wide": np.broadcast_to(np.zeros(1), (1000,)),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", odd_objects())
def test_looking_never_raises_and_finds_the_same_twice(name: str) -> None:
    value = odd_objects()[name]
    holder = Samples(value=value, unseen=1)
    first = Look(holder)
    assert Look(holder, earlier=first).finds_same(first)
    holder.unseen = 2  # type: ignore[attr-defined]
    again = Look(holder, earlier=first)
    assert not (again.is_complete and again.finds_same(first))


def test_looking_at_plain_objects_is_complete() -> None:
    for name in (
        "mock",
        "inference",
        "layer",
        "namespace",
        "bfloat16",
        "strided",
        "bits",
        "complex",
        "strings",
    ):
        assert Look(odd_objects()[name]).is_complete, name


def test_what_is_declared_immutable_is_compared_by_identity() -> None:
    class Declared(Samples):
        immutable_attributes = ("table",)

    dataset = Declared(table=np.zeros(300 << 20, dtype=np.uint8))
    first = Look(dataset)
    assert first.is_complete
    assert Look(dataset, earlier=first).finds_same(first)
    dataset.table = np.zeros(3)  # type: ignore[attr-defined]
    assert not Look(dataset, earlier=first).finds_same(first)


def test_an_array_that_nobody_can_write_to_needs_no_hash() -> None:
    table = np.frombuffer(bytes(300 << 20), dtype=np.uint8)
    assert Look(table).is_complete
    assert Look(table[5:]).is_complete
    writeable = np.zeros(300 << 20, dtype=np.uint8)
    assert not Look(writeable).is_complete
    view = writeable[:]
    view.flags.writeable = False
    assert not Look(view).is_complete


@pytest.mark.parametrize("kind", ["array", "view", "objects"])
def test_a_read_only_array_that_was_made_writeable_and_changed_meanwhile_is_another_one(kind: str) -> None:
    owner = np.zeros(8, dtype=object if kind == "objects" else np.int64)
    table = owner[2:] if kind == "view" else owner
    owner.flags.writeable = table.flags.writeable = False
    dataset = Samples(table=table)
    watched = Watched(dataset)
    assert watched.is_unchanged()
    owner.flags.writeable = True
    owner[5] = 7
    owner.flags.writeable = False
    assert not watched.is_unchanged()


def test_a_tensor_data_set_made_in_inference_mode_is_loaded() -> None:
    with torch.inference_mode():
        data = TensorDataset(torch.arange(8.0))
    for workers in (0, 1):
        assert len(list(rk.DataLoader(data, batch_size=4, num_workers=workers))) == 2
