"""However code reaches a setting that a script changes between two epochs, it holds for all samples."""

from __future__ import annotations

import functools
import json
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
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


class Made:
    only: Made | None = None

    def __init__(self) -> None:
        self.size = 1

    @classmethod
    def instance(cls) -> Made:
        if cls.only is None:
            cls.only = cls()
        return cls.only


class OfOneObject(type):
    objects: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in cls.objects:
            cls.objects[cls] = super().__call__(*args)
        return cls.objects[cls]


class InTable(metaclass=OfOneObject):
    def __init__(self) -> None:
        self.size = 1


@functools.cache
def kept() -> Holder:
    return Holder()


@functools.lru_cache
def kept_table() -> dict[str, int]:
    return {"size": 1}


def void(_: object) -> None:
    """Where a function is to give nothing."""


CONTEXT = ContextVar("CONTEXT", default=1)
DESCRIBED.size = 1  # type: ignore[attr-defined]
WEAK: Any = weakref.ref(DESCRIBED)
TABLE = {"size": 1}
VIEW = types.MappingProxyType(TABLE)
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
    "an object that is made at its first use": (
        lambda one: settings.made_at_first_use().size,
        lambda size: setattr(settings.made_at_first_use(), "size", size),
    ),
    "an object that its class makes": (
        lambda one: Made.instance().size,
        lambda size: setattr(Made.instance(), "size", size),
    ),
    "one in a table of such": (
        lambda one: InTable().size,
        lambda size: setattr(InTable(), "size", size),
    ),
    "a result that is kept": (lambda one: kept().size, lambda size: setattr(kept(), "size", size)),
    "a table that is kept": (
        lambda one: kept_table()["size"],
        lambda size: kept_table().update(size=size),
    ),
    "a variable of the context": (lambda one: CONTEXT.get(), lambda size: void(CONTEXT.set(size))),
    "a weak reference": (lambda one: WEAK().size, lambda size: setattr(DESCRIBED, "size", size)),
    "a read-only view": (lambda one: VIEW["size"], lambda size: TABLE.update(size=size)),
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
