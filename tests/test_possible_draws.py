"""Which generators a dataset may draw from is never fewer than it does draw from, and none for plain data."""

import functools
import math
import mmap
import operator
import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

import rekindle as rk
from light_torchvision import torchvision
from rekindle.core.analysis.possible_draws import ALL, possible_draws
from rekindle.core.list_stand_in import ListStandIn, MutableStandIn
from rekindle.core.shared_list import SharedRows

VALUES, LABELS = np.zeros((100, 3)), list(range(100))
rand = np.random.rand
chance = random.random


class Data:
    """What the functions below are the `__getitem__` of."""

    held: Any = None

    def __init__(self) -> None:
        self.values, self.labels, self.scale = np.random.random((9, 3)), [(1, "a")] * 100, 2.0
        self.tensor = torch.rand(9, 3)
        random.random()

    def __len__(self) -> int:
        return len(self.values)

    def helper(self, index: int) -> Any:
        return self.values[index] * self.scale


class Jitters(Data):
    def jitter(self) -> float:
        return random.random()


class Drawer:
    def __add__(self, other: int) -> float:
        return other + random.random()


def _of(getitem: Callable[..., Any], **held: Any) -> frozenset[str]:
    base = Jitters if "jitter" in getitem.__code__.co_names else Data
    dataset = type("Own", (base,), {"__getitem__": getitem, "__module__": __name__})()
    vars(dataset).update(held)
    found = possible_draws(dataset)
    assert possible_draws(Subset(dataset, [0])) == found
    assert possible_draws(ConcatDataset([range(3), dataset])) == found
    return found


def plain(self: Any, index: int) -> Any:
    return torch.from_numpy(self.values[index]).float() / 255, self.labels[index][0]


def helped(self: Any, index: int) -> Any:
    return np.ascontiguousarray(self.helper(index)[::-1]), math.sqrt(index), len(LABELS), VALUES[index]


def draws_numpy(self: Any, index: int) -> Any:
    return self.values[index] + np.random.random()


def draws_python(self: Any, index: int) -> Any:
    return random.random() + self.helper(index)


def draws_torch(self: Any, index: int) -> Any:
    return self.tensor[index] + torch.randn(3)


def draws_in_place(self: Any, index: int) -> Any:
    return self.tensor[index].clone().uniform_()


def draws_by_name(self: Any, index: int) -> Any:
    return rand(3) + chance()


def draws_in_a_method(self: Any, index: int) -> Any:
    return self.jitter()


def draws_by_text(self: Any, index: int) -> Any:
    return getattr(np, "ran" + "dom").random()


def draws_by_import(self: Any, index: int) -> Any:
    import numpy.random as anything

    return anything.random()


def makes_an_object(self: Any, index: int) -> Any:
    return Data()


def adds_what_is_held(self: Any, index: int) -> Any:
    return self.held + 1


CASES = [
    (plain, ""), (helped, ""), (draws_numpy, "numpy"), (draws_python, "python"), (draws_torch, "torch"),
    (draws_in_place, "torch"),  (draws_in_a_method, "python"),
]  # fmt: skip


@pytest.mark.parametrize(("getitem", "names"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_the_code_of_a_script_names_what_it_draws_from(getitem: Callable[..., Any], names: str) -> None:
    assert _of(getitem) == frozenset(names.split())


@pytest.mark.parametrize("getitem", [draws_by_text, draws_by_name, draws_by_import, makes_an_object])
def test_code_that_may_reach_anything_may_draw_from_more(getitem: Callable[..., Any]) -> None:
    assert _of(getitem) >= {"python", "numpy"}


HELD: dict[str, tuple[Any, set[str]]] = {
    "an operator": (Drawer(), {"python"}),
    "a method of C code": (random.random, {"python"}),
    "one of a list": ([[], ["x", np.random.rand]], set(ALL)),
    "a module": (np.random, set(ALL)),
    "modules": ([random], set(ALL)),
    "a closure": ((lambda anything: lambda: anything.random())(np), set(ALL)),
    "a partial": (functools.partial(torch.rand, 3), {"torch"}),
    "late in a long list": ([*range(1000), Drawer()], set(ALL)),
    "a deque": (deque([Drawer()]), set(ALL)),
    "a generator function": ((random.random() for _ in range(3)), set(ALL)),
    "what a function is mapped to": (map(Drawer().__add__, range(3)), set(ALL)),
    "a cache": (functools.lru_cache(Drawer().__add__), set(ALL)),
    "a default": (defaultdict(random.random), set(ALL)),
    "a reference": (weakref.ref(Drawer), set(ALL)),
    "a method by name": (operator.methodcaller("random"), set(ALL)),
    "a module of torch": (torch.nn.Dropout(), {"torch"}),
    "an own module of torch": (type("Own", (torch.nn.Module,), {})(), {"torch"}),
    "torchvision": (torchvision.transforms.ToTensor(), {"python", "torch"}),
    "a function of torch": (torch.flip, set()),
    "data": ({"a": [1, 2.0, "x", None], "b": (np.zeros(3), torch.zeros(3))}, set()),
    "many": ({index: (index, [str(index)]) for index in range(1000)}, set()),
    "a generator of its own": (np.random.default_rng(0), set()),
    "what a library of C code made": (np.nditer(np.zeros(3)), set()),
}


@pytest.mark.parametrize("name", HELD)
def test_what_a_dataset_holds_may_draw_as_well(name: str) -> None:
    held, expected = HELD[name]
    assert _of(adds_what_is_held, held=held) == expected


def test_data_of_torch_and_python_draws_from_none() -> None:
    tensors = TensorDataset(torch.zeros(3, 2), torch.zeros(3))
    for data in (
        tensors,
        Subset(tensors, [0, 1]),
        StackDataset(tensors, [1, 2, 3]),
        [1, 2],
        range(3),
        {0: "x"},
        VALUES,
    ):
        assert possible_draws(data) == frozenset()


def test_a_property_a_method_by_another_name_and_a_lambda_count() -> None:
    class Named(Data):
        def other(self, index: int) -> float:
            return random.random()

        __getitem__ = other

    class Written(Data):
        __getitem__ = lambda self, index: np.random.random()  # noqa: E731

    class Derived(Data):
        @property
        def noise(self) -> float:
            return random.random()

        def __getitem__(self, index: int) -> float:
            return self.noise

    class Cached(Data):
        @functools.cached_property
        def noise(self) -> float:
            return random.random()

        def __getitem__(self, index: int) -> float:
            return self.noise

    assert possible_draws(Named()) >= {"python"}
    assert possible_draws(Written()) >= {"numpy"}
    assert possible_draws(Derived()) >= {"python"}
    assert possible_draws(Cached()) >= {"python"}


def test_lists_in_shared_memory_draw_from_none() -> None:
    rows = SharedRows.of(["a", "b"], 2)
    for items in (rk.SharedList(["a", "b"]), ListStandIn(rows), MutableStandIn(rows), mmap.mmap(-1, 8)):
        assert _of(plain, items=items, view=memoryview(b"ab")) == frozenset()


class NoisyMemory(mmap.mmap):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) + random.random()


class Lazy:
    """A proxy that must not be started by being looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


def test_nothing_is_asked_for_its_attributes() -> None:
    assert possible_draws([Lazy()]) == frozenset()
    assert possible_draws(Lazy()) == frozenset()


class Noise:
    """Draws in methods that nobody names where they are called."""

    def __init__(self, train: bool = True) -> None:
        self.chosen = self.augment if train else self.keep

    def augment(self, index: int) -> float:
        return index + random.random()

    def keep(self, index: int) -> float:
        return index

    @staticmethod
    def shift(index: int) -> float:
        return index + random.random()


class NoiseModule(torch.nn.Module):
    def forward(self, index: int) -> float:
        return index + random.random()


class Draws:
    """A class that draws only when an object of it is made."""

    def __init__(self) -> None:
        self.value = random.random()


class OtherModule(ModuleType):
    """As lazy imports make them."""


def _member(value: Any) -> Any:
    return type("Own", (), {"member": value, "__module__": __name__})()


UNSEEN = {
    "a method chosen before": Noise(),
    "methods in a dict": {"noise": Noise().augment},
    "a static method": [Noise.shift],
    "a partial of a method": functools.partial(Noise().augment, 3),
    "forward of a module": NoiseModule(),
    "a class that is held": [Draws],
    "the global generator": [random._inst],
    "a module as a member": _member(random),
    "a function of C code as a static method": _member(staticmethod(random.random)),
    "a partial as a static method": _member(staticmethod(functools.partial(random.uniform, 0, 1))),
    "a partial as a property": _member(property(functools.partial(random.uniform, 0))),
    "a module of another type": [OtherModule("lazy")],
    "an array of functions": [np.array([chance, chance], dtype=object)],
    "a function made one of NumPy's": [np.frompyfunc(lambda index: index + random.random(), 1, 1)],
    "a thread's own": [threading.local()],
    "keys of a dict": [{chance: 0.5}],
    "mapped memory of another type": NoisyMemory(-1, 8),
    "what a view is of": memoryview(NoisyMemory(-1, 8)),
    "what a view of an array is of": memoryview(np.array([chance, chance], dtype=object)),
}


@pytest.mark.parametrize("held", UNSEEN.values(), ids=UNSEEN)
def test_code_that_is_reached_without_its_name_counts(held):
    assert "python" in possible_draws(held)
    assert "python" in _of(adds_what_is_held, held=held)


def noisy(value: float) -> float:
    return value + noisy.source.random()  # type: ignore[attr-defined]


def calls_noisy(self: Any, index: int) -> float:
    return noisy(index)


@pytest.mark.parametrize("source", [random, np.random])
def test_what_a_function_has_as_its_attribute_may_draw(
    source: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noisy, "source", source, raising=False)
    assert _of(calls_noisy) == ALL
