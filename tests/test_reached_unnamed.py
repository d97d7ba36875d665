"""Code that reaches a setting without naming it: nothing is proven of it, so workers start afresh."""

from __future__ import annotations

import gc
import importlib
import inspect
import pickle
import pkgutil
import pydoc
import sys
from collections.abc import Callable, Iterator
from pkgutil import resolve_name as found_by_name
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import rekindle as rk
import settings_of_scripts as settings
from rekindle.core.analysis.changes import Watched
from rekindle.core.analysis.possible_draws import ALL, possible_draws

SIZE = 1
NAME = "settings_of_scripts"


class Base:
    """Its subclasses are found by asking it."""


class Derived(Base):
    size = 1


class Pickled:
    size = 1


PICKLED = pickle.dumps(Pickled())
evaluate = eval


def by_evaluation(index: int) -> Any:
    return evaluate("SIZE", by_evaluation.__globals__)


def by_its_globals(index: int) -> Any:
    return by_its_globals.__globals__["SIZE"]


def by_its_globals_by_text(index: int) -> Any:
    return getattr(by_its_globals_by_text, "__globals__")["SIZE"]  # noqa: B009


def by_a_frame(index: int) -> Any:
    return sys._getframe(0).f_globals["SIZE"]


def by_the_current_frame(index: int) -> Any:
    frame = inspect.currentframe()
    assert frame is not None
    return frame.f_globals["SIZE"]


def by_all_modules(index: int) -> Any:
    return sys.modules[NAME].SIZE


def by_import(index: int) -> Any:
    return importlib.import_module(NAME).SIZE


def by_resolving(index: int) -> Any:
    return pkgutil.resolve_name(f"{NAME}:SIZE")


def by_resolving_under_another_name(index: int) -> Any:
    return found_by_name(f"{NAME}:SIZE")


def by_locating(index: int) -> Any:
    return pydoc.locate(f"{NAME}.SIZE")


def by_subclasses(index: int) -> Any:
    return Base.__subclasses__()[0].size  # type: ignore[attr-defined]


def by_unpickling(index: int) -> Any:
    return pickle.loads(PICKLED).size


WAYS: list[Callable[[int], Any]] = [
    by_evaluation, by_its_globals, by_its_globals_by_text, by_a_frame, by_the_current_frame, by_all_modules,
    by_import, by_resolving, by_resolving_under_another_name, by_locating, by_subclasses,
    by_unpickling,
]  # fmt: skip


class Reads(Dataset[Any]):
    def __init__(self, read: Callable[[int], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def set_all(size: int) -> None:
    global SIZE
    SIZE = settings.SIZE = Derived.size = Pickled.size = size


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    set_all(1)
    settings.reset()


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_sees_what_code_reads_without_naming_it(way: Callable[[int], Any]) -> None:
    found = []
    for load in (DataLoader, rk.DataLoader):
        loader: Any = load(Reads(way), batch_size=4, num_workers=1)
        for size in (1, 2, 3):
            set_all(size)
            found += [batch.tolist() for batch in loader]
    assert found == [[1] * 4, [2] * 4, [3] * 4] * 2


HELD: list[Callable[..., Any]] = [
    *WAYS, eval, globals, sys._getframe, importlib.import_module, found_by_name, pydoc.locate, gc.get_objects,
    pickle.loads,
]  # fmt: skip


@pytest.mark.parametrize("held", HELD)
def test_nothing_is_proven_of_what_may_reach_anything(held: Callable[..., Any]) -> None:
    assert Watched(Reads(held)).why_unproven
    assert possible_draws(Reads(held)) == ALL


def by_name(index: int) -> Any:
    return settings.SIZE + getattr(settings.SETTINGS, "size", 0)


def test_what_is_named_is_proven() -> None:
    watched = Watched(Reads(by_name))
    assert not watched.why_unproven
    assert watched.is_unchanged()
    settings.SIZE = 2
    assert not watched.is_unchanged()
