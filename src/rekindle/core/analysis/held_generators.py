"""The generators that a dataset or its transforms hold: Albumentations' own, `self.rng = default_rng(0)`, …

Every worker has a copy of them in the same state, so with torch's loader two workers draw the same numbers,
and every epoch draws them again. Here they are seeded from the sample's key, as the global ones are. They are
looked for without running any code of the user's: in attributes, containers, closures and classes, and among
the globals that functions of the user's read.
"""

from __future__ import annotations

import functools
import random
import types
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.analysis.object_state import (
    attributes_of,
    global_names,
    is_heap_type,
    is_library,
    mro_of,
    vars_of,
)
from rekindle.core.interrupts import is_interrupt
from rekindle.core.public_rng import (
    NumPyGenerator,
    OwnNumPyGenerator,
    OwnTorchGenerator,
    PythonGenerator,
    RandomSource,
    Restore,
    Seeder,
)

MOST_OBJECTS = 500  # Those near the dataset come first, and transforms are near.
MOST_ITEMS = 64  # of a container: a longer one holds data
WITHOUT_PARTS = (
    str, bytes, bytearray, int, float, complex, bool, type(None), np.ndarray, np.generic, np.dtype, range,
    torch.Tensor, torch.dtype, torch.device, types.ModuleType,
)  # fmt: skip
_IDS_OF_PLAIN = frozenset(map(id, (str, bytes, int, float, bool, type(None))))  # of most items of containers
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)  # methods of an object of C code
_WITHOUT_ATTRIBUTES = (list, tuple, dict, types.FunctionType, types.MethodType, functools.partial, *_BOUND)
GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand, torch.default_generator)
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)

_Found = Iterator[tuple[str, object]]


class HeldGenerator:
    """A generator found at `path`; others found elsewhere draw other numbers for the same sample."""

    def __init__(self, path: str, source: RandomSource, generator: object) -> None:
        self.generator = generator
        self._key = zlib.crc32(path.encode())
        self.mark, self._seeder, self._save = source.mark, source.seeder, source.save

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        """A function that seeds the generator with the seed of a row."""
        return self._seeder(counter_rng.split(seeds, self._key))

    def save(self) -> Restore:
        """A function that restores the state as it is now."""
        return self._save()


def held_generators(*roots: object) -> tuple[HeldGenerator, ...]:
    """The generators that these objects hold, apart from the global ones; the same in every copy of them."""
    sources = ((path, _source(value), value) for path, value in near_objects(*roots))
    return tuple(HeldGenerator(path, source, value) for path, source, value in sources if source is not None)


def near_objects(*roots: object, with_global: bool = False, without: object = None) -> _Found:
    """The objects that these hold, the nearest first, with the ways to them.

    The global generators are left out unless asked for, and one object `without` which they are to be found.
    The way to a class of an object is its name.
    """
    waiting = deque((str(number), root) for number, root in enumerate(roots))
    seen = set() if with_global else {*map(id, GLOBAL_GENERATORS)}
    seen.add(id(without))
    alive: list[object] = []  # or an id might come to mean another object
    while waiting and len(alive) < MOST_OBJECTS:
        path, value = waiting.popleft()
        if issubclass(type(value), WITHOUT_PARTS) or id(value) in seen:
            continue
        seen.add(id(value))
        alive.append(value)
        yield path, value
        try:
            if not issubclass(type(value), GENERATORS):
                waiting += _parts(path, value)
        except Exception as error:  # An object like none before: what it holds stays its own business.
            if is_interrupt(error):
                raise


def _source(value: object) -> RandomSource | None:
    """The object as a generator that can be seeded, if it is one."""
    if not issubclass(type(value), GENERATORS):  # `isinstance` would ask the object for its `__class__`.
        return None
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else PythonGenerator(value)
    if isinstance(value, np.random.RandomState):
        return NumPyGenerator(value, lambda: value._bit_generator)
    if isinstance(value, np.random.Generator):
        return OwnNumPyGenerator(value)
    if isinstance(value, torch.Generator):
        return OwnTorchGenerator(value) if value.device.type == "cpu" else None
    return None


def _parts(path: str, value: object) -> _Found:
    """What an object holds, with the way to it."""
    kind = type(value)
    if kind in (list, tuple):
        yield from _items(path, value[:MOST_ITEMS])  # type: ignore[index]
    elif issubclass(kind, dict):
        yield from _items(path, [*islice(dict.values(value), MOST_ITEMS)])  # type: ignore[arg-type]
    elif kind is types.FunctionType:
        yield from _parts_of_function(path, value)  # type: ignore[arg-type]
    elif kind is types.MethodType:
        yield from ((f"{path}.self", value.__self__), (f"{path}.function", value.__func__))  # type: ignore[attr-defined]
    elif kind in _BOUND:
        yield f"{path}.self", value.__self__  # type: ignore[attr-defined]
    elif kind is functools.partial:
        yield from ((f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif type in mro_of(kind):
        yield from _parts_of_class(value)  # type: ignore[arg-type]
        return
    if kind not in _WITHOUT_ATTRIBUTES:
        yield from ((f"{path}.{name}", item) for name, item in attributes_of(value, kind) or ())
        yield from ((base.__qualname__, base) for base in mro_of(kind))


def _items(path: str, items: Sequence[object]) -> _Found:
    if not all(map(_IDS_OF_PLAIN.__contains__, map(id, map(type, items)))):
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(items))


def _parts_of_class(kind: type) -> _Found:
    """The generators of a class and, if it is of the user's, what its methods read."""
    if not is_heap_type(kind):  # Nobody can put one into a class of C code.
        return
    is_own = not is_library(kind.__module__)
    for name, member in [*vars_of(kind).items()]:
        if issubclass(type(member), GENERATORS):
            yield f"{kind.__qualname__}.{name}", member
        elif is_own:
            if type(member) in (staticmethod, classmethod):
                member = member.__func__
            elif type(member) is property:
                member = member.fget
            if type(member) is types.FunctionType:
                yield f"{kind.__qualname__}.{name}", member


def _parts_of_function(path: str, function: types.FunctionType) -> _Found:
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            yield f"{path}.closure[{number}]", cell.cell_contents
        except ValueError:  # It has no value yet.
            continue
    yield f"{path}.defaults", (function.__defaults__, function.__kwdefaults__)
    if is_library(function.__module__):
        return
    read = function.__globals__
    for name in sorted(global_names(function.__code__)):
        if name in read and not _is_library_class(read[name]):
            yield f"{path} reads {name}", read[name]
    if function.__dict__:
        yield f"{path}.attributes", function.__dict__


def _is_library_class(value: object) -> bool:
    return type(value) is type and is_library(vars_of(value).get("__module__"))
