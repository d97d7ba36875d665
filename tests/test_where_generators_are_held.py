"""Wherever a dataset holds a generator, its samples are the same for any number of workers."""

from __future__ import annotations

import functools
import logging
import random
import threading
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch.utils.data import Dataset

import generators_elsewhere
import rekindle as rk
from generators_elsewhere import rng as imported_rng

SAMPLES = 12


class Draws(Dataset[Any]):
    """Draws by a function of what it holds and of the index."""

    def __init__(self, held: Any, draw: Callable[[Any, int], float]) -> None:
        self.held, self.draw = held, draw

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.draw(self.held, index)


class OfOthers(Dataset[Any]):
    """Draws in its own code, from what that names."""

    def __len__(self) -> int:
        return SAMPLES


class InAnotherModule(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, generators_elsewhere.rng.random()


class InAnObjectOfAnotherModule(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, generators_elsewhere.holder.rng.rand()


class FromAnotherModule(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, imported_rng.random()


class ByAFunctionOfAnotherModule(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, generators_elsewhere.jitter()


class ImportedWithin(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        from generators_elsewhere import rng

        return index, rng.random()


class ModuleImportedWithin(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        import generators_elsewhere as elsewhere

        return index, elsewhere.rng.random()


class Meta(type):
    rng = random.Random(3)


class OfAMetaclass(OfOthers, metaclass=Meta):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, type(self).rng.random()


class ListOfAClass(OfOthers):
    rngs = (random.Random(4), [random.Random(5)])

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.rngs[1][0].random()  # type: ignore[index]


class OfAnObjectOfAClass(OfOthers):
    helper = generators_elsewhere.Holder()

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.helper.rng.rand()


class BehindAProperty(OfOthers):
    _rngs = types.MappingProxyType({"a": random.Random(6)})

    @property
    def rng(self) -> random.Random:
        return self._rngs["a"]

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.rng.random()


class InACachedFunction(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, remembered().random()


@functools.lru_cache
def remembered() -> random.Random:
    return random.Random(11)


remembered()


def shift(value: float) -> float:
    return value + 1.0


@functools.wraps(np.sqrt)
def wrapped_like_a_librarys() -> float:
    return imported_rng.random()


class InAFunctionThatNamesItselfALibrarys(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, wrapped_like_a_librarys()


CONTEXT: ContextVar[Any] = ContextVar("CONTEXT", default=random.Random(12))  # noqa: B039


class InAContextVariable(OfOthers):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, CONTEXT.get().random()


class ByDefault(OfOthers):
    def __getitem__(self, index: int, rng: random.Random = random.Random(13)) -> tuple[int, float]:  # noqa: B008
        return index, rng.random()


class ByKeyword(OfOthers):
    def __getitem__(self, index: int, *, rng: Any = (random.Random(14),)) -> tuple[int, float]:  # noqa: B008
        return index, rng[0].random()


Pair = namedtuple("Pair", "name rng")


class TypedPair(NamedTuple):
    name: str
    rng: random.Random


@dataclass(slots=True)
class Slots:
    rng: random.Random = field(default_factory=lambda: random.Random(0))


@dataclass
class Plain:
    rng: random.Random = field(default_factory=lambda: random.Random(0))


class OwnList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("code of the user's was run")

    __len__ = __iter__  # type: ignore[assignment]


class OwnDict(dict[Any, Any]):
    def values(self) -> Any:
        raise AssertionError("code of the user's was run")

    __iter__ = keys = items = __len__ = values  # type: ignore[assignment]


class OwnSet(set[Any]):
    pass


class OwnPartial(functools.partial[float]):
    pass


class Augmenter:
    """A transform with a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.strength = 0.5

    def __call__(self) -> float:
        return self.rng.random() * self.strength


def rng() -> random.Random:
    return random.Random(0)


def objects(*values: Any) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _only(held: Any, _: int) -> float:
    return sum(one.random() for one in held)


def _only_call(held: Any, _: int) -> float:
    return sum(one() for one in held)


def _local(rng: random.Random) -> threading.local:
    local = threading.local()
    local.rng = rng
    return local


KEPT_ALIVE = Augmenter(15)  # by the script, where the dataset has only a weak reference

HELD: dict[str, tuple[Any, Callable[[Any, int], float]]] = {
    "namedtuple": (Pair("a", rng()), lambda held, _: held.rng.random()),
    "NamedTuple": ([TypedPair("a", rng())], lambda held, _: held[0].rng.random()),
    "deque": (deque([0, rng()]), lambda held, _: held[1].random()),
    "subclass of list": (OwnList([rng()]), lambda held, _: held[0].random()),
    "subclass of dict": (OwnDict(a=rng()), lambda held, _: held["a"].random()),
    "subclass of set": (OwnSet([rng()]), _only),
    "OrderedDict": (OrderedDict(a=rng()), lambda held, _: held["a"].random()),
    "defaultdict": (defaultdict(Augmenter(0).rng.random), lambda held, _: held.default_factory()),
    "UserDict": (UserDict(a=rng()), lambda held, _: held["a"].random()),
    "UserList": (UserList([rng()]), lambda held, _: held[0].random()),
    "ChainMap": (ChainMap({}, {"a": rng()}), lambda held, _: held["a"].random()),
    "set": ({rng()}, _only),
    "frozenset": (frozenset({rng()}), _only),
    "set of objects": ({Augmenter(0)}, _only_call),
    "keys": ({rng(): 1}, _only),
    "array of objects": (objects(1, rng()), lambda held, _: held[1].random()),
    "array of objects in two dimensions": (
        objects(1, 2, 3, rng()).reshape(2, 2),
        lambda held, _: held[1, 1].random(),
    ),
    "mapping proxy": (types.MappingProxyType({"a": rng()}), lambda held, _: held["a"].random()),
    "namespace": (types.SimpleNamespace(a=rng()), lambda held, _: held.a.random()),
    "slots": (Slots(), lambda held, _: held.rng.random()),
    "dataclass": (Plain(), lambda held, _: held.rng.random()),
    "weak reference": (weakref.ref(KEPT_ALIVE), lambda held, _: held()()),
    "weak values": (weakref.WeakValueDictionary(a=KEPT_ALIVE), lambda held, _: held["a"]()),
    "weak keys": (weakref.WeakKeyDictionary({KEPT_ALIVE: 1}), _only_call),
    "weak set": (weakref.WeakSet([KEPT_ALIVE]), _only_call),
    "weak method": (weakref.WeakMethod(KEPT_ALIVE.__call__), lambda held, _: held()()),
    "partial": (functools.partial(random.Random.random, rng()), lambda held, _: held()),
    "subclass of partial": (OwnPartial(random.Random.random, rng()), lambda held, _: held()),
    "bound method": (Augmenter(0).__call__, lambda held, _: held()),
    "method of C code": (rng().random, lambda held, _: held()),
    "local to the thread": (_local(rng()), lambda held, _: held.rng.random()),
    "item 65 of a list": ([0] * 65 + [rng()], lambda held, _: held[65].random()),
    "item 900 of a list": ([0] * 900 + [rng()], lambda held, _: held[900].random()),
    "item 900 of a dict": (dict(enumerate([0] * 900 + [rng()])), lambda held, _: held[900].random()),
    "200 transforms": ([Augmenter(one) for one in range(200)], lambda held, index: held[199 - index % 3]()),
    "200 generators": (
        tuple(np.random.default_rng(one) for one in range(200)),
        lambda held, index: held[100 + index % 3].random(),
    ),
    "each 100th of 2000 classes": (
        [Augmenter(one) if one % 100 == 0 else one for one in range(64)] + [Augmenter(1)] * 2000,
        lambda held, index: held[1800 + index % 3](),
    ),
}


@dataclass
class Settings:
    scale: float = 2.0
    names: list[str] = field(default_factory=list)


LOG = logging.getLogger(__name__)


class KeepsThings(OfOthers):
    """Has a table from the first sample on, so that what it draws then may have decided something."""

    lock = threading.Lock()
    settings = Settings()
    log = LOG

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.table: np.ndarray[Any, Any] | None = None

    def drawn(self) -> float:
        if self.table is None:
            self.table = np.zeros(3)
        return self.rng.random()


class WithALogger(KeepsThings):
    def __getitem__(self, index: int) -> tuple[int, float]:
        LOG.debug("sample %s", index)
        self.log.debug("sample %s", index)
        return index, self.drawn()


class WithALock(KeepsThings):
    def __getitem__(self, index: int) -> tuple[int, float]:
        with self.lock:
            return index, self.drawn()


class WithSettings(KeepsThings):
    def __init__(self) -> None:
        super().__init__()
        self.own_settings = Settings()

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.drawn() * self.settings.scale * self.own_settings.scale


class WithAnotherModule(KeepsThings):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, generators_elsewhere.scaled(self.drawn())


class WithAMemory(KeepsThings):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.drawn() + generators_elsewhere.class_of(index)


KEEPING = [WithALogger, WithALock, WithSettings, WithAnotherModule, WithAMemory]
OTHERS: list[Callable[[], OfOthers]] = [
    InAnotherModule, InAnObjectOfAnotherModule, FromAnotherModule, ByAFunctionOfAnotherModule,
    ImportedWithin, ModuleImportedWithin, OfAMetaclass, ListOfAClass, OfAnObjectOfAClass, BehindAProperty,
    InACachedFunction, InAFunctionThatNamesItselfALibrarys, InAContextVariable, ByDefault, ByKeyword,
]  # fmt: skip


def views(dataset: Any, workers: int) -> list[tuple[int, float]]:
    with rk.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=workers) as loader:
        return [
            pair
            for _ in range(2)
            for indices, drawn in loader
            for pair in zip(indices.tolist(), drawn.tolist(), strict=True)
        ]


def _same_for_any_number_of_workers(dataset: Any) -> None:
    alone = views(dataset, 0)
    assert len({drawn for _, drawn in alone}) == len(alone) == 2 * SAMPLES
    for workers in (1, 2):
        assert views(dataset, workers) == alone


@pytest.mark.parametrize("held", HELD)
def test_samples_do_not_depend_on_workers_wherever_a_generator_is_held(held: str) -> None:
    _same_for_any_number_of_workers(Draws(*HELD[held]))


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_samples_do_not_depend_on_workers_whatever_the_code_reads_a_generator_by(
    kind: Callable[[], OfOthers],
) -> None:
    _same_for_any_number_of_workers(kind())


@pytest.mark.parametrize("kind", KEEPING)
def test_samples_of_a_dataset_that_keeps_things_do_not_depend_on_workers_either(
    kind: Callable[[], KeepsThings],
) -> None:
    drawn = [views(kind(), workers) for workers in (0, 1, 2)]
    assert len({one for _, one in drawn[0]}) == 2 * SAMPLES
    assert drawn[0] == drawn[1] == drawn[2]
