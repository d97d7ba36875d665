"""The objects that a dataset, its transforms or a collate function hold, and what their code reads.

They are found without running any code of theirs: in attributes, slots, containers, closures, defaults and
classes, among the globals that functions of a script read, and in modules of the script by the names in the
code; in objects of C code by what Python's garbage collector is told of them.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from types import FunctionType, ModuleType
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import torch

from rekindle.core.analysis.bytecode import all_names, global_names, imported_names
from rekindle.core.analysis.object_state import (
    GENERATORS,
    GLOBAL_GENERATORS,
    HEAP_TYPE,
    IN_LIBRARY,
    KNOWN_STATES,
    WITHOUT_PARTS,
    ClassState,
    Getter,
    contents_of,
    is_installed,
    mro_of,
    slot,
    state_of,
    vars_of,
)
from rekindle.core.interrupts import is_interrupt

FoundAt: TypeAlias = Iterator[tuple[str, object]]  # objects, each with the way to it
_Items: TypeAlias = Callable[..., list[object]]  # of a container and a slice

ARRAYS = (np.ndarray, torch.Tensor)
MOST_OBJECTS = 500  # Those near the dataset come first, and transforms are near.
MOST_ITEMS = 64  # of a container: a longer one holds data
# Who looks for generators goes on, with containers that are longer.
_MOST_HELD = 10_000  # objects: 20 ms
_MOST_IN_FULL = 1_000  # items of a container; of a longer one, some, unless those hold a generator
_SOME = 128
# Entries of classes that Python has put there.
PYTHONS_MEMBERS = frozenset(
    {
        "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__orig_bases__",
        "__parameters__", "__weakref__", "_abc_impl",
    }
)  # fmt: skip
_IDS_OF_PLAIN = frozenset(map(id, (str, bytes, int, float, bool, type(None))))  # of most items of containers
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)  # methods of an object of C code
_DESCRIPTORS = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_OF_RUNNING_CODE = (types.CodeType, types.FrameType, types.TracebackType)
_WITHOUT_ATTRIBUTES = frozenset(
    map(id, (list, tuple, dict, set, frozenset, FunctionType, types.MethodType, functools.partial, *_BOUND))
)
_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
_qualname_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_namespace_of: Callable[[ModuleType], dict[str, object]] = vars_of(ModuleType)["__dict__"].__get__
_factory_of: Getter = vars_of(defaultdict)["default_factory"].__get__
_dtype_of: Getter = vars_of(np.ndarray)["dtype"].__get__
_size_of: Getter = vars_of(np.ndarray)["size"].__get__
_flat_of: Getter = vars_of(np.ndarray)["flat"].__get__


class _Kind(NamedTuple):
    """What is to be known of a class to find the parts of its objects."""

    kind: type  # kept alive: this is found by its id
    may_have_parts: bool
    is_generator: bool
    is_logger: bool  # which leads to all others, and to the streams that they write to
    is_class: bool
    container: int  # the id of the container that it derives from; 0 if none


class _Container(NamedTuple):
    """How the items of a kind of container are read, without a method of a subclass."""

    length: Callable[..., int]
    items: _Items


def _in_turn(items: Callable[..., Iterator[object]]) -> _Items:
    return lambda value, part: [*islice(items(value), part.start, part.stop, part.step)]


_CONTAINERS = {
    id(list): _Container(list.__len__, list.__getitem__),
    id(tuple): _Container(tuple.__len__, lambda value, part: [*tuple.__getitem__(value, part)]),
    id(dict): _Container(dict.__len__, _in_turn(dict.values)),  # type: ignore[arg-type]
    id(set): _Container(set.__len__, _in_turn(set.__iter__)),
    id(frozenset): _Container(frozenset.__len__, _in_turn(frozenset.__iter__)),
    id(deque): _Container(deque.__len__, _in_turn(deque.__iter__)),
    id(np.ndarray): _Container(_size_of, lambda value, part: _flat_of(value)[part].tolist()),
}
_keys = _in_turn(dict.keys)  # type: ignore[arg-type]
_UNORDERED = frozenset(map(id, (set, frozenset)))
_SLICED = frozenset(map(id, (list, tuple, np.ndarray)))


def near_objects(
    *roots: object, with_global: bool = False, with_arrays: bool = False, without: object = None
) -> FoundAt:
    """The objects that these hold, the nearest first, with the ways to them; of containers the first items.

    The global generators are left out unless asked for, so are arrays and tensors of numbers, and one object
    `without` which they are to be found. The way to a class of an object is its name.
    """
    walk = _Walk(roots, () if with_global else GLOBAL_GENERATORS, with_arrays)
    walk.seen[id(without)] = without
    yield from islice(walk.near(), MOST_OBJECTS)


def held_objects(*roots: object) -> FoundAt:
    """The same, and then those in longer containers.

    A container of more than a thousand items is taken for data if no generator is found in some of them.
    """
    yield from islice(_Walk(roots, GLOBAL_GENERATORS).all(), _MOST_HELD)


def own_classes(objects: Iterable[object]) -> tuple[type, ...]:
    """The classes of a script among some objects."""
    classes = [cast(type, one) for one in objects if issubclass(type(one), type)]
    return tuple(
        one
        for one in classes
        if _flags_of(one) & HEAP_TYPE and not _is_library(vars_of(one).get("__module__"))
    )


class _Walk:
    """Objects that wait to be looked at, and what was met already."""

    def __init__(
        self, roots: tuple[object, ...], without: tuple[object, ...], with_arrays: bool = False
    ) -> None:
        self._with_arrays = with_arrays
        self._waiting = deque((str(number), root) for number, root in enumerate(roots))
        # By id, and so kept alive: or the id might come to mean another object.
        self.seen: dict[int, object] = {id(one): one for one in without}
        self._kinds: dict[int, _Kind] = {}
        self._states: dict[int, ClassState] = {}
        self._long: deque[tuple[str, object, int]] = deque()  # containers, with what they derive from
        self._generators: list[str] = []

    def near(self) -> FoundAt:
        while self._waiting:
            path, value = self._waiting.popleft()
            if id(value) in self.seen:
                continue
            kind = self._kinds.get(id(type(value))) or self._kind(type(value))
            if not (kind.may_have_parts or _holds_objects(value, kind)):
                if self._with_arrays and issubclass(kind.kind, ARRAYS):
                    self.seen[id(value)] = value
                    yield path, value
                continue
            self.seen[id(value)] = value
            yield path, value
            try:
                if kind.is_generator:
                    self._generators.append(path)
                elif not kind.is_logger:
                    self._waiting += self._parts(path, value, kind)
            except Exception as error:  # An object like none before: what it holds stays its own business.
                if is_interrupt(error):
                    raise

    def all(self) -> FoundAt:
        yield from self.near()
        while self._long:
            path, value, base = self._long.popleft()
            length = _CONTAINERS[base].length(value)
            if length <= _MOST_IN_FULL:
                self._wait(path, value, base, slice(MOST_ITEMS, None))
                yield from self.near()
                continue
            step = (length - MOST_ITEMS) // _SOME if base in _SLICED else 1
            self._wait(path, value, base, slice(MOST_ITEMS, MOST_ITEMS + _SOME * step, step))
            yield from self.near()
            if any(one.startswith(f"{path}[") for one in self._generators):
                self._wait(path, value, base, slice(MOST_ITEMS, _MOST_HELD))
                yield from self.near()

    def _wait(self, path: str, value: object, base: int, part: slice) -> None:
        try:
            items = _CONTAINERS[base].items(value, part)
        except RuntimeError:  # A thread changes it meanwhile.
            return
        self._waiting += _numbered(path, items, part, base)

    def _kind(self, kind: type) -> _Kind:
        bases = [*map(id, mro_of(kind))]
        found = self._kinds[id(kind)] = _Kind(
            kind,
            not issubclass(kind, WITHOUT_PARTS),
            issubclass(kind, GENERATORS),
            kind is logging.Logger or kind is logging.RootLogger,
            id(type) in bases,
            next((base for base in bases if base in _CONTAINERS), 0),
        )
        return found

    def _parts(self, path: str, value: object, known: _Kind) -> FoundAt:
        """What an object holds, with the way to it."""
        kind, base = known.kind, known.container
        if base:
            yield from self._items(path, value, base)
        elif kind is FunctionType:
            yield from _parts_of_function(path, value)  # type: ignore[arg-type]
        elif kind is types.MethodType:
            yield from ((f"{path}.self", value.__self__), (f"{path}.function", value.__func__))  # type: ignore[attr-defined]
        elif kind in _BOUND:
            yield f"{path}.self", value.__self__  # type: ignore[attr-defined]
        elif kind is functools.partial:
            yield from ((f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
        elif known.is_class:
            yield from _parts_of_class(value)  # type: ignore[arg-type]
            return
        if id(kind) not in _WITHOUT_ATTRIBUTES:
            yield from self._attributes(path, value, known)

    def _items(self, path: str, value: object, base: int) -> FoundAt:
        if base == id(dict) and issubclass(type(value), defaultdict):
            yield f"{path}.default_factory", _factory_of(value)
        container = _CONTAINERS[base]
        length, first = container.length(value), slice(0, MOST_ITEMS)
        if not length:
            return
        yield from _numbered(path, container.items(value, first), first, base)
        if base == id(dict):
            yield from _numbered(f"{path}.keys", _keys(value, first), first, base)
        if length > MOST_ITEMS:
            self._long.append((path, value, base))

    def _attributes(self, path: str, value: object, known: _Kind) -> FoundAt:
        kind, own = known.kind, None
        state = self._states.get(id(kind))
        if state is None:
            state = self._states[id(kind)] = KNOWN_STATES.get(id(kind)) or state_of(kind)
            classes = [(_qualname_of(base), base) for base in mro_of(kind)]
        else:
            classes = []
        for name, get in state.attributes or ():
            if name == "__dict__":
                own = get(value)
                yield from (
                    (f"{path}.{one}", item)
                    for one, item in dict.items(own)
                    if id(type(item)) not in _IDS_OF_PLAIN
                )
            else:
                yield f"{path}.{name}", slot(get, value)
        yield from classes
        if not known.container and state.storage is not object:
            parts = _parts_of_c_code(path, value, kind)
            yield from (one for one in parts if one[1] is not own)


def _holds_objects(value: object, kind: _Kind) -> bool:
    return kind.container == id(np.ndarray) and bool(_dtype_of(value).hasobject)


def _numbered(path: str, items: list[object], part: slice, base: int) -> FoundAt:
    if _IDS_OF_PLAIN.issuperset(map(id, map(type, items))):
        return
    step = part.step or 1
    for number, item in enumerate(items):
        if not _is_plain(item):  # In a set, nothing but chance decides which is which.
            yield f"{path}[{'' if base in _UNORDERED else part.start + number * step}]", item


def _is_plain(item: object) -> bool:
    """Whether this is a number, a text or a short tuple of such."""
    if type(item) is tuple and len(item) <= MOST_ITEMS:
        return _IDS_OF_PLAIN.issuperset(map(id, map(type, item)))
    return id(type(item)) in _IDS_OF_PLAIN


def _parts_of_c_code(path: str, value: object, kind: type) -> FoundAt:
    """What an object holds where Python cannot see it."""
    reference = weakref.ReferenceType
    if issubclass(kind, reference):
        yield f"{path}()", reference.__call__(value)  # type: ignore[arg-type]
    elif kind is ContextVar:
        yield f"{path}.get", value.get(None)  # type: ignore[attr-defined]
    elif kind is threading.local:
        yield f"{path}.local", kind.__getattribute__(value, "__dict__")  # type: ignore[arg-type]
    for part in gc.get_referents(value):
        if part is not kind and not issubclass(type(part), _OF_RUNNING_CODE):
            yield f"{path}<>", part  # Without a number: the order may be that of their use.


def _parts_of_class(kind: type) -> FoundAt:
    """The generators of a class and, if it is of the user's, all that it has and what its methods read."""
    if not _flags_of(kind) & HEAP_TYPE:  # Nobody can put one into a class of C code.
        return
    is_own = not _is_library(vars_of(kind).get("__module__"))
    for name, member in [*vars_of(kind).items()]:
        path, member_kind = f"{_qualname_of(kind)}.{name}", type(member)
        if issubclass(member_kind, GENERATORS):
            yield path, member
        elif is_own and name not in PYTHONS_MEMBERS and id(member_kind) not in _IDS_OF_PLAIN:
            if member_kind in (staticmethod, classmethod):
                yield path, member.__func__
            elif member_kind is property:
                yield from ((path, one) for one in (member.fget, member.fset, member.fdel))
            elif not issubclass(member_kind, _DESCRIPTORS):
                yield path, member
    if is_own and type(kind) is not type and not _is_library(vars_of(type(kind)).get("__module__")):
        yield _qualname_of(type(kind)), type(kind)


def _parts_of_function(path: str, function: FunctionType) -> FoundAt:
    for number, cell in enumerate(function.__closure__ or ()):
        yield from ((f"{path}.closure[{number}]", value) for value in contents_of(cell))
    yield f"{path}.defaults", (function.__defaults__, function.__kwdefaults__)
    # Not by its own `__module__`: `functools.wraps` gives a function that of another.
    if _is_library(function.__globals__.get("__name__")):
        return
    read = function.__globals__
    for name in sorted(global_names(function.__code__)):
        if name in read and not _is_library_class(read[name]):
            yield f"{path} reads {name}", read[name]
    yield from _read_of_modules(path, function)
    if function.__dict__:
        yield f"{path}.attributes", function.__dict__


def _is_library(module: object) -> bool:
    # Not that of `object_state`: this is asked often, and of each class.
    return type(module) is str and IN_LIBRARY[module]


def _is_library_class(value: object) -> bool:
    return type(value) is type and _is_library(vars_of(value).get("__module__"))


def _read_of_modules(path: str, function: FunctionType) -> FoundAt:
    for module, read in read_of_modules(function):
        # Of another package, what it has; not all of its code.
        without = (FunctionType, type) if is_installed(module) else ()
        yield from (
            (f"{path} reads {_namespace_of(module).get('__name__')}.{name}", value)
            for name, value in read
            if not (issubclass(type(value), without) or _is_library_class(value))
        )


def read_of_modules(function: FunctionType) -> Iterator[tuple[ModuleType, list[tuple[str, object]]]]:
    """The modules of a script that a function uses, with what it reads of each, by the names in its code."""
    code, read = function.__code__, function.__globals__
    modules = [read.get(name) for name in sorted(global_names(code))]
    for name in sorted(imported_names(code)):
        modules += map(sys.modules.get, _possible_names(name, read.get("__package__")))
    names: list[str] = []
    met: set[int] = set()
    for module in modules:
        if not issubclass(type(module), ModuleType) or id(module) in met:
            continue
        met.add(id(module))
        entries = _namespace_of(module)  # type: ignore[arg-type]
        if _is_library(entries.get("__name__")):
            continue
        names = names or sorted(all_names(code))
        found = [(name, entries[name]) for name in names if name in entries]
        modules += [value for _, value in found]
        yield module, found  # type: ignore[misc]


def _possible_names(name: str, package: object) -> list[str]:
    """The full names of a module that is imported by this one, which may be relative to a package."""
    found = [name] if name else []
    while type(package) is str and package:
        found.append(f"{package}.{name}".rstrip("."))
        package = package.rpartition(".")[0]
    return found
