"""That a look still holds is found out by identity: never if anything was changed, always if nothing was."""

from __future__ import annotations

import collections
import functools
import os
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rekindle.core.analysis.changes import Watched
from rekindle.core.analysis.look import Look
from rekindle.run.worker_info import stack_without_shared_memory

_LIMIT = 3


class Base:
    """A class of the user's."""

    scale = 2

    def __init__(self) -> None:
        self.x = 1


class Slotted:
    """One with slots."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = [1]


class Dataset(Base):
    """All kinds of things that can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = [f"{number}.jpg" for number in range(50)]
        self.pairs = [["a", 1], ["b", 2]]
        self.rows = [{"a": 1}, {"a": 2}]
        self.samples = [("a", 1), ("b", 2)]
        self.table = np.arange(12).reshape(3, 4)
        self.objects = np.array([[1], "b"], dtype=object)
        self.tensor = torch.arange(6.0)
        self.buffer = bytearray(b"abc")
        self.names = {"a", "b"}
        self.deque = collections.deque([1, 2])
        self.ordered = collections.OrderedDict(a=1, b=2)
        self.default = collections.defaultdict(list, a=[1])
        self.partial = functools.partial(min, 3, key=abs)
        self.slotted = Slotted()
        self.namespace = types.SimpleNamespace(a=1)
        self.other = Base()
        counter = 0
        self.step: Any = lambda: (counter, _LIMIT)

        def count() -> None:
            nonlocal counter
            counter += 1

        self.count = count

    def method(self, extra: list[int] = [1]) -> Any:  # noqa: B006
        """Read a default and a global."""
        return extra, _LIMIT


class Later(Base):
    """A class that an object can be made one of."""


def _swap_attributes(data: Any) -> None:
    attributes = data.other.__dict__
    data.other.__dict__ = {**attributes, "y": 2}


def _rename(data: Any) -> None:
    data.__dict__["renamed"] = data.__dict__.pop("count")


def _change_global(_: Any) -> None:
    globals()["_LIMIT"] = 4


def _move_item(data: Any) -> None:
    data.pairs[0].append(data.pairs[1].pop(0))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda data: setattr(data, "x", 2),
    "kind of a number": lambda data: setattr(data, "x", 1.0),
    "new attribute": lambda data: setattr(data, "z", 2),
    "renamed attribute": _rename,
    "other dictionary": _swap_attributes,
    "path": lambda data: data.paths.__setitem__(49, "other.jpg"),
    "longer list": lambda data: data.paths.append("x"),
    "inner list": lambda data: data.pairs[1].__setitem__(1, 3),
    "moved between lists": _move_item,
    "inner dictionary": lambda data: data.rows[1].__setitem__("a", 3),
    "renamed key": lambda data: data.rows[1].__setitem__("b", data.rows[1].pop("a")),
    "tuple": lambda data: data.samples.__setitem__(0, ("a", 2)),
    "array": lambda data: data.table.__setitem__((0, 0), 9),
    "shape": lambda data: setattr(data.table, "shape", (4, 3)),
    "dtype": lambda data: setattr(data.table, "dtype", np.uint64),
    "object in an array": lambda data: data.objects[0].append(2),
    "item of an array": lambda data: data.objects.__setitem__(1, "c"),
    "tensor": lambda data: data.tensor.__setitem__(0, 9.0),
    "tensor through NumPy": lambda data: data.tensor.numpy().__setitem__(0, 9.0),
    "tensor's memory": lambda data: setattr(data.tensor, "data", torch.zeros(6)),
    "gradient": lambda data: data.tensor.requires_grad_(),
    "bytes": lambda data: data.buffer.__setitem__(0, 0),
    "set": lambda data: data.names.add("c"),
    "deque": lambda data: data.deque.rotate(1),
    "order": lambda data: data.ordered.move_to_end("a"),
    "default factory": lambda data: setattr(data.default, "default_factory", dict),
    "default": lambda data: data.default["a"].append(2),
    "partial": lambda data: data.partial.keywords.clear(),
    "partial's state": lambda data: data.partial.__setstate__((max, (3,), {}, {})),
    "slot": lambda data: setattr(data.slotted, "value", [1, 2]),
    "in a slot": lambda data: data.slotted.value.append(2),
    "emptied slot": lambda data: delattr(data.slotted, "value"),
    "namespace": lambda data: setattr(data.namespace, "a", 2),
    "class": lambda data: setattr(data.other, "__class__", Later),
    "closure": lambda data: data.count(),
    "code": lambda data: setattr(type(data).method, "__code__", (lambda: 0).__code__),
    "default of a function": lambda data: type(data).method.__defaults__[0].append(2),
    "defaults": lambda data: setattr(type(data).method, "__defaults__", ([3],)),
    "keyword defaults": lambda data: setattr(type(data).method, "__kwdefaults__", {"extra": 1}),
    "attribute of a function": lambda data: setattr(type(data).method, "mark", 1),
    "attribute of a class": lambda data: setattr(type(data), "scale", 3),
    "attribute of a base": lambda data: setattr(type(data).__mro__[1], "scale", 3),
    "bases": lambda data: setattr(type(data), "__bases__", (Later,)),
    "global": _change_global,
    "environment": lambda _: os.environ.__setitem__("REKINDLE_TEST", "1"),
    "default dtype": lambda _: torch.set_default_dtype(torch.float64),
    "folder": lambda _: os.chdir("/"),
}


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(globals(), "_LIMIT", 3)
    monkeypatch.setenv("REKINDLE_TEST", "0")
    folder = os.getcwd()
    yield
    os.chdir(folder)
    torch.set_default_dtype(torch.float32)


def make() -> Any:
    """A dataset of a class of its own, with functions of its own."""
    base = type("Base", (Base,), {"scale": 2})
    function = Dataset.method
    own = types.FunctionType(
        function.__code__, globals(), "method", ([1],), None
    )  # whose defaults are not those of the others
    kind = type("Data", (base, Dataset), {"method": own})
    return kind()


@pytest.mark.parametrize("change", CHANGES)
def test_a_look_holds_until_something_is_changed(change: str) -> None:
    data = make()
    look = Look(data)
    assert look.is_complete, look.why_incomplete
    watched = Watched(data)
    assert look.still_holds(data)
    CHANGES[change](data)
    assert not look.still_holds(data)
    assert not watched.is_unchanged()


def test_a_look_does_not_hold_for_another_object() -> None:
    data = make()
    look = Look((1, "auto"), data)
    assert look.still_holds((1, "auto"), data)
    assert not look.still_holds((2, "auto"), data)
    assert not look.still_holds((1, "auto"), make())
    assert not look.still_holds((1, "auto"))
    assert not look.still_holds((1, "auto"), data, data)


def test_an_equal_object_in_the_place_of_another_changes_nothing() -> None:
    data = make()
    watched = Watched(data)
    data.table, data.tensor = data.table.copy(), data.tensor.clone()
    data.names = set(data.names)
    assert watched.is_unchanged()
    assert watched.is_unchanged()
    data.paths[3] = "other"
    assert not watched.is_unchanged()


_VALUES = st.recursive(
    st.integers(0, 3) | st.sampled_from(["a", "b", 1.0, True, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@given(before=_VALUES, after=_VALUES)
def test_a_look_holds_only_if_another_finds_the_same(before: Any, after: Any) -> None:
    data = make()
    data.value = before
    look = Look(data)
    assert look.still_holds(data)
    data.value = after
    assert not look.still_holds(data) or Look(data).finds_same(look)
    data.value = before
    assert look.still_holds(data)


def test_a_look_holds_in_a_worker_which_collates_tensors_in_a_way_of_ours() -> None:
    table = torch.utils.data._utils.collate.default_collate_fn_map
    before, look = {**table}, Look([1, 2])
    try:
        stack_without_shared_memory()
        assert table != before
        assert look.still_holds(*look._roots)
        table[torch.Tensor] = lambda batch, *, collate_fn_map=None: batch[0]
        assert not look.still_holds(*look._roots)
    finally:
        table.clear()
        table.update(before)
