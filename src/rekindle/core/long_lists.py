"""The long lists that a dataset keeps, of which its code is proven only to read items.

All that runs in a worker is looked at as in `look`: the dataset, its transforms, `collate_fn`, and every
function, class and global of the user's that these reach. A list is found if it is reached through attributes
alone, holds plain values, and no function uses an attribute of that name otherwise. Libraries' functions are
taken to know the attributes of their own classes only; of the classes that have the list all are proven.
What C code holds (the function in an `lru_cache`) is found as Python's garbage collector finds it.
"""

from __future__ import annotations

import builtins
import functools
import gc
import operator
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from rekindle.core.analysis.attribute_uses import (
    may_compare_identities,
    may_reach_any_attribute,
    used_otherwise,
)
from rekindle.core.analysis.look import Look
from rekindle.core.analysis.object_state import NotProvenError, mro_of, state_of, vars_of
from rekindle.core.plain_values import Plain, plain_values

LEAST = 50_000  # elements: a shorter list is not worth it
_BUDGET = 0.25  # seconds, about, for all but the lists
_HOLD_CODE = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType)
# With one of these, under whatever name, a function may get at any attribute.
_GETTERS = (operator.attrgetter, operator.methodcaller)
_REACH_ANYTHING = frozenset(
    {getattr, vars, globals, locals, eval, exec, builtins.id, operator.is_, operator.is_not}
)
# Of an object that is there already, nobody calls these.
_NOT_CALLED = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__"})


class LongList(NamedTuple):
    """A list, the objects that have it and under which name, and whether elements can be changed."""

    values: list[object]
    owners: list[tuple[object, str]]
    mutable: bool


class LongLists(NamedTuple):
    """The lists whose uses are proven, and a line about each of the others."""

    proven: list[LongList]
    unproven: list[str]


def long_lists(*roots: object, least: int = LEAST) -> LongLists:
    """The lists of at least so many plain values that are reached from these objects."""
    reach = _Reach(*roots, least=least)
    found = LongLists([], [])
    for entry in reach.lists.values():
        why = reach.why_incomplete or _why_unproven(entry, reach)
        if why:
            names = sorted({f"{type(owner).__qualname__}.{name}" for owner, name in entry.owners})
            shown = ", ".join(names) or "a list"
            found.unproven.append(f"{shown} ({len(entry.values):,} entries): {why}")
        else:
            found.proven.append(entry)
    return found


class _Reach(Look):
    """A look that notes all long lists and all functions of the user's."""

    def __init__(self, *roots: object, least: int) -> None:
        self._least = least
        self._known: dict[int, Plain | None] = {}
        self.lists: dict[int, LongList] = {}
        self.met: Counter[int] = Counter()  # how often a list was found, through an attribute or otherwise
        self.functions: list[types.FunctionType] = []
        self._is_hidden = False  # whether the object that is looked at cannot be looked into
        super().__init__(*roots, budget=_BUDGET)

    def by_identity(self, value: object) -> None:
        self._is_long_list(value)
        super().by_identity(value)

    def one(self, value: object) -> None:
        kind = type(value)
        if kind in (torch.Tensor, torch.nn.Parameter) or self._is_long_list(value):
            return
        if kind is np.ndarray and not np.ndarray.dtype.__get__(value).hasobject:
            return
        if kind in _GETTERS or (kind is types.BuiltinFunctionType and value in _REACH_ANYTHING):
            raise NotProvenError(f"{value!r} may be used for any attribute")
        if isinstance(value, types.FunctionType):
            self.functions.append(value)
        elif "__code__" in vars_of(kind):  # a function of Cython, say
            raise NotProvenError(f"{value!r} is compiled code, whose uses of attributes cannot be seen")
        outer, self._is_hidden = self._is_hidden, False
        super().one(value)
        is_hidden, self._is_hidden = self._is_hidden, outer
        if is_hidden:
            self.many(gc.get_referents(value))

    def many(self, values: Sequence[object], level: int = 0) -> None:
        if len(values) < self._least:
            values = [None if self._is_long_list(value) else value for value in values]
        super().many(values, level)

    def _instance(self, value: object, kind: type) -> None:
        if isinstance(value, _HOLD_CODE):
            raise NotProvenError("a generator is at work")
        if any(name == "__dict__" for name, _ in state_of(kind).attributes or ()):
            for name, attribute in instance_dict(value).items():
                if type(name) is str and self._is_long_list(attribute, count=False):
                    self.lists[id(attribute)].owners.append((value, name))
        super()._instance(value, kind)

    def leave_out(self, why: str) -> None:
        if why.endswith("cannot be looked into"):
            self._is_hidden = True  # C code knows nothing of a dataset's attributes; what it calls may.
        else:
            super().leave_out(why)

    def _is_long_list(self, value: object, count: bool = True) -> bool:
        if type(value) is not list or len(value) < self._least:
            return False
        key = id(value)
        if key not in self._known:
            self.keep(value)
            found = self._known[key] = plain_values(value)
            if found is not None:
                self.lists[key] = LongList(value, [], found.mutable)
        self.met[key] += count
        return self._known[key] is not None


def _why_unproven(entry: LongList, reach: _Reach) -> str:
    if reach.met[id(entry.values)] != len(entry.owners):
        return "it is also reached otherwise than through attributes"
    names = {name for _, name in entry.owners}
    functions = [*reach.functions]
    for owner, name in entry.owners:
        if name not in instance_dict(owner):
            return "it is in a slot"
        for base in mro_of(type(owner))[:-1]:
            if "__getattribute__" in vars_of(base):
                return f"{base.__qualname__} has a __getattribute__"
            if "__setstate__" in vars_of(base):  # It gets the list from a dictionary.
                return f"{base.__qualname__} has a __setstate__"
            functions += _methods(base)
    for function in functions:
        if may_reach_any_attribute(function.__code__):
            return f"{function.__qualname__} may use any attribute"
        if may_compare_identities(function.__code__):
            return f"{function.__qualname__} may ask which object an element is"
        if used_otherwise(function, names):
            return f"{function.__qualname__} uses it otherwise than to read items"
    return ""


def instance_dict(value: object) -> dict[str, object]:
    """The dictionary of an object's attributes; none of its class's code runs."""
    found: dict[str, object] = object.__getattribute__(value, "__dict__")
    return found


def _methods(kind: type) -> Iterator[types.FunctionType]:
    """All functions that a class defines, but those that make an object."""
    for name, entry in vars_of(kind).items():
        if name in _NOT_CALLED:
            continue
        parts = [entry]
        if isinstance(entry, property):
            parts = [entry.fget, entry.fset, entry.fdel]
        elif isinstance(entry, staticmethod | classmethod):
            parts = [entry.__func__]
        elif isinstance(entry, functools.cached_property):
            parts = [entry.func]
        yield from (part for part in parts if isinstance(part, types.FunctionType))
