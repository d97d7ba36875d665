"""However code reaches a setting that a script changes between two epochs, it holds for all samples."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from torch.utils.data import Dataset

import rekindle as rk
import settings_of_scripts as settings
from pictures import as_it_is

SIZE = 6


class Holder:
    size = 1


class Described:
    """A descriptor, whose own attribute is not named where it is read."""

    def __init__(self) -> None:
        self.values = {"size": 1}

    def __get__(self, instance: object, owner: object = None) -> int:
        return self.values["size"]


DESCRIBED = Described()


class HasDescriptor:
    size = DESCRIBED


class Computes:
    """Is asked by operators and conversions alone."""

    def __init__(self) -> None:
        self.inner = 1

    def __mul__(self, other: int) -> int:
        return self.inner * other

    def __int__(self) -> int:
        return self.inner

    def __str__(self) -> str:
        return str(self.inner)


COMPUTES = Computes()


class Encoder(json.JSONEncoder):
    """Its method is called by the library."""

    def default(self, value: Any) -> Any:
        return value.inner


class Once:
    made: Once | None = None
    size: int

    def __new__(cls) -> Once:
        if cls.made is None:
            cls.made = super().__new__(cls)
            cls.made.size = 1
        return cls.made


class Alike:
    """All objects have the same attributes."""

    shared: ClassVar = {"size": 1}
    size: int

    def __init__(self) -> None:
        self.__dict__ = self.shared


class Steps:
    @staticmethod
    def scale(value: int) -> int:
        return value * Holder.size


size_of, ask = operator.attrgetter("size"), getattr

# How code reads a setting, and how a script changes it.
WAYS: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "a descriptor": (lambda one: HasDescriptor().size, lambda size: DESCRIBED.values.update(size=size)),
    "an operator": (lambda one: COMPUTES * one, lambda size: setattr(COMPUTES, "inner", size)),
    "a conversion": (lambda one: int(COMPUTES), lambda size: setattr(COMPUTES, "inner", size)),
    "a text": (lambda one: int(f"{COMPUTES}"), lambda size: setattr(COMPUTES, "inner", size)),
    "a method that a library calls": (
        lambda one: int(json.dumps(COMPUTES, cls=Encoder)),
        lambda size: setattr(COMPUTES, "inner", size),
    ),
    "a singleton": (lambda one: Once().size, lambda size: setattr(Once(), "size", size)),
    "shared attributes": (lambda one: Alike().size, lambda size: Alike.shared.update(size=size)),
    "a function of a class": (Steps.scale, lambda size: setattr(Holder, "size", size)),
    "an attrgetter": (lambda one: size_of(Holder), lambda size: setattr(Holder, "size", size)),
    "getattr under another name": (
        lambda one: ask(Holder, "size"),
        lambda size: setattr(Holder, "size", size),
    ),
    "an attribute that a module computes": (
        lambda one: settings.size,
        lambda size: setattr(settings.SETTINGS, "size", size),
    ),
}


class Reads(Dataset[Any]):
    def __init__(self, read: Callable[[int], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.read(1)


def reading(way: str, workers: int) -> Any:
    more: Any = {"num_workers": workers, "reuse": rk.Refurbish(3), "final_transform": as_it_is}
    return rk.DataLoader(Reads(WAYS[way][0]), 3, shuffle=True, **more)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    for _, change in WAYS.values():
        change(1)
    settings.reset()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_a_setting_that_is_changed_holds_for_all_samples(way: str, workers: int) -> None:
    loader = reading(way, workers)
    for size in (1, 2, 3):
        WAYS[way][1](size)
        assert {value for batch in loader for value in batch.tolist()} == {size}
    loader.close()


@pytest.mark.parametrize("way", WAYS)
def test_one_that_is_not_changed_keeps_what_was_cached(way: str) -> None:
    loader = reading(way, 0)
    fresh = [sum(int(loader.batch.fresh.sum()) for _ in loader) for _ in range(4)]
    assert fresh[0] == SIZE
    assert max(fresh[2:]) < SIZE
