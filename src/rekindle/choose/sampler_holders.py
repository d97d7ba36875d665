"""Where a sampler keeps things: in its attributes and its class, in objects of its own, and in globals."""

from __future__ import annotations

import io
import weakref
from collections import deque
from itertools import islice
from operator import length_hint
from sys import getrefcount
from types import FunctionType, GeneratorType
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from rekindle.choose.kept_values import PLAIN, Value
from rekindle.choose.partition import layers
from rekindle.choose.sampler_epochs import epoch_sampler
from rekindle.choose.sampler_generators import generator_within
from rekindle.core.analysis.bytecode import global_names, steps_of
from rekindle.core.analysis.object_state import (
    GENERATORS,
    GLOBAL_GENERATORS,
    attributes_of,
    contents_of,
    is_of_script,
    mro_of,
    state_of,
    vars_of,
)

_MOST, _MOST_LEVELS = 2_000, 4
_LOOKED_AT = 64  # of a container: if none of these is an object, it holds data
_NO_PARTS = (Dataset, DataLoader, torch.nn.Module, type)
_CONTAINERS = (list, tuple, dict, deque)
_OF_CLASSES = (*PLAIN, list, dict, set, deque, np.ndarray, torch.Tensor, *GENERATORS)
_NOT_ITS_OWN = frozenset({"data_source", "dataset"})  # by torch's names


class Holder(NamedTuple):
    """An object, a class, the globals of a module or a variable of a closure, and what it keeps by names."""

    owner: Value
    values: dict[str, object]

    def takes(self, name: str) -> bool:
        """Whether something may be kept under a name: where nothing is yet, only in an object."""
        if name in self.values:
            return True
        if isinstance(self.owner, type) or _namespace_of(self.owner) is None:
            return False
        return name.isidentifier() and not name.startswith("__")

    def put(self, name: str, value: object) -> None:
        """Keep a value under a name."""
        if isinstance(self.owner, dict):
            self.owner[name] = value
        elif isinstance(self.owner, type):
            setattr(self.owner, name, value)
        elif name in (namespace := _namespace_of(self.owner) or {}):
            namespace[name] = value  # It may stand behind a property.
        else:
            object.__setattr__(self.owner, name, value)  # A class of theirs may refuse it.

    def remove(self, name: str) -> None:
        """Keep nothing under a name."""
        if name in self.values and not isinstance(self.owner, dict | type):
            object.__delattr__(self.owner, name)


class Holders:
    """Finds what holds a sampler's things.

    Objects of a script's classes are the sampler's where nothing else refers to them when they are first met:
    a part that it made for itself, and not a trainer. So are dictionaries of settings.
    """

    def __init__(self) -> None:
        self._is_its_own: dict[str, bool] = {}

    def of(self, sampler: object, generator: object) -> dict[str, Holder]:
        """What a sampler keeps, by the way to it: the same in another process.

        Left out are generators and the epoch of which states know already, `generator` being the loader's.
        """
        found: dict[str, Holder] = {}
        others = (*GLOBAL_GENERATORS, generator, generator_within(sampler))
        known = {id(one) for one in others if one is not None}
        with_epoch = epoch_sampler(sampler)
        waiting: deque[tuple[str, object]] = deque()
        for layer in layers(sampler):
            name = type(layer).__qualname__
            waiting.append((f"{name}[{len(waiting)}]" if name in dict(waiting) else name, layer))
        seen: set[int] = set()
        while waiting and len(found) < _MOST:
            path, one = waiting.popleft()
            if id(one) in seen:
                continue
            seen.add(id(one))
            values = {name: value for name, value in attributes_of(one, type(one)) or () if _is_name(name)}
            for name, value in values.items():
                waiting += self._objects(f"{path}.{name}", value)
            kept = {
                name: value
                for name, value in values.items()
                if id(value) not in known and self._is_its_own.get(f"{path}.{name}", True)
            }
            if one is with_epoch:
                kept.pop("epoch", None)
            if not is_of_script(type(one)):
                kept = {name: value for name, value in kept.items() if _is_generator(value)}
            found[path] = Holder(one, kept)
            for base in filter(is_of_script, mro_of(type(one))):
                if id(base) not in seen:
                    seen.add(id(base))
                    found |= _of_class(base, known)
        return found

    def _objects(self, path: str, value: Value, level: int = 0) -> list[tuple[str, object]]:
        """The samplers and objects of a script's classes that a value is or contains, but for datasets."""
        kind, references = type(value), getrefcount(value)
        if kind is dict and value and path not in self._is_its_own:
            kinds = {*map(type, islice(value.values(), _LOOKED_AT))}
            self._is_its_own[path] = references <= _ALONE or not (
                kinds <= PLAIN and all(type(key) is str for key in islice(value, _LOOKED_AT))
            )
        if kind in _CONTAINERS and level < _MOST_LEVELS:
            found: list[tuple[str, object]] = []
            for number, item in enumerate(value.values() if isinstance(value, dict) else value):
                if type(item) not in PLAIN:
                    found += self._objects(f"{path}[{number}]", item, level + 1)
                if number >= _LOOKED_AT and not found:
                    break
            return found
        if issubclass(kind, Sampler):
            return [(path, value)]
        if not _is_part(kind):
            return []
        is_its_own = self._is_its_own.setdefault(path, references <= _ALONE)
        return [(path, value)] if is_its_own else []


def _namespace_of(owner: object) -> dict[str, object] | None:
    """The dictionary of an object's attributes, if it has one."""
    getters = [get for name, get in state_of(type(owner)).attributes or () if name == "__dict__"]
    return getters[0](owner) if getters else None


def _is_name(name: object) -> bool:
    return type(name) is str and name not in _NOT_ITS_OWN


def _is_part(kind: type) -> bool:
    if not is_of_script(kind) or issubclass(kind, _NO_PARTS):
        return False
    return not any("__getitem__" in vars_of(base) for base in mro_of(kind))


def _is_generator(value: object) -> bool:
    return issubclass(type(value), GENERATORS)


def _of_class(kind: type, known: set[int]) -> dict[str, Holder]:
    """What a class keeps itself, and what of its module and of closures its methods use."""
    found: dict[str, Holder] = {}
    values: dict[str, object] = {}
    for name, value in vars_of(kind).items():
        if isinstance(value, FunctionType):
            found |= _of_function(value, known)
        elif not name.startswith("__") and issubclass(type(value), _OF_CLASSES):
            values[name] = value
    values = {name: value for name, value in values.items() if id(value) not in known}
    if values:
        found[f"class {kind.__qualname__}"] = Holder(kind, values)
    return found


def _of_function(function: FunctionType, known: set[int]) -> dict[str, Holder]:
    found: dict[str, Holder] = {}
    names, code = function.__globals__, function.__code__
    stored = {step.argval for step in steps_of(code) if step.opname == "STORE_GLOBAL"}
    for name in {*global_names(code), *stored}:
        if name not in names or id(names[name]) in known:
            continue
        if name in stored or _is_generator(names[name]):
            found[f"{function.__module__}.{name}"] = Holder(names, {name: names[name]})
    for number, cell in enumerate(function.__closure__ or ()):
        for value in contents_of(cell):
            if _is_generator(value) and id(value) not in known:
                place = f"{function.__qualname__}.closure[{number}]"
                found[place] = Holder(cell, {"cell_contents": value})
    return found


def is_alive(value: Value, levels: int = 2) -> bool:
    """Whether this is, or contains, an iterator that may go on."""
    kind = type(value)
    if kind in _CONTAINERS:
        items = islice(value.values() if kind is dict else value, _LOOKED_AT)
        return levels > 0 and any(is_alive(item, levels - 1) for item in items)
    if issubclass(kind, (io.IOBase, *weakref.ProxyTypes)):
        return False
    if not any("__next__" in vars_of(base) for base in mro_of(kind)):
        return False
    if kind is GeneratorType:
        return value.gi_frame is not None
    try:
        return length_hint(value, 1) > 0
    except Exception:  # of a class of the script's
        return True


class _Probe(Sampler[int]):
    """Has parts that nothing else refers to."""

    def __init__(self) -> None:
        self.one, self.many = _Probe.__new__(_Probe), [_Probe.__new__(_Probe)]


class _Counting(Holders):
    """Notes how many references there are to such parts, as they are counted here."""

    most = 0

    def _objects(self, path: str, value: Value, level: int = 0) -> list[tuple[str, object]]:
        if type(value) is _Probe:
            self.most = max(self.most, getrefcount(value))
        return super()._objects(path, value, level)


_counting = _Counting()
_counting.of(_Probe(), None)
_ALONE = _counting.most
