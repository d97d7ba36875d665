"""Whether anything that workers have copies of was changed.

With `persistent_workers=False`, torch starts new workers for every epoch, and scripts rely on that: between
two epochs they exchange a transform, relabel samples, change a global. Workers are kept only where two looks
prove that nothing was changed. A look is complete: it follows every attribute, item, closure, class and
global that the dataset's code reads, and hashes the bytes of arrays. What it cannot follow (a file, an object
of C code), or not within its budget, leaves it incomplete, and then nothing is proven.

No code of the user's runs while looking, and nothing is raised.

What is taken not to change: the modules and classes of installed libraries (`object_state.LIBRARIES`), apart
from the settings in `look_at_switches`; and attributes that a class names in `immutable_attributes`, which
are compared by identity.
"""

from __future__ import annotations

import datetime
import logging
import operator
import re
import threading
import types
import typing
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from rekindle.core.look_at_code import CODE, OBJECT, look_at_class, look_at_switches
from rekindle.core.look_at_values import ITEM, PATHS, STORED, VALUES, look_at_scalar
from rekindle.core.object_state import NotProvenError, attributes_of, mro_of, storage_class, vars_of

# Seconds, about: counted from the costs below, so that a look ends at the same point every time. The first
# look at something is taken once; the others, before every epoch, know what is constant.
FIRST_BUDGET, BUDGET = 20e-3, 5e-3
_KNOWN_ITEM = 20e-9  # to find that an item among many is the one known; the others: ITEM, BYTE, OBJECT
_MOST_LEVELS = 64

_PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})
_CONSTANT = _PLAIN | set(PATHS)  # of which an object never changes
# Objects that never change, or that no sample depends on.
_BY_IDENTITY: frozenset[type] = frozenset(
    {
        types.CodeType, types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
        types.MethodDescriptorType, types.ClassMethodDescriptorType, type(Ellipsis), type(NotImplemented),
        range, slice, re.Pattern, torch.dtype, torch.device, torch.layout, torch.memory_format, np.ufunc,
        datetime.date, datetime.datetime, datetime.timedelta, datetime.time, operator.itemgetter,
        operator.attrgetter, type(threading.Lock()), type(threading.RLock()), types.GenericAlias,
        types.UnionType, typing.TypeVar, typing.ParamSpec,
    }
)  # fmt: skip


class Look:
    """All that some objects consist of, at one time.

    `earlier` is a look at the same objects: what it has found to be constant is not looked into again.
    Without `code`, functions and classes are told apart, and what they read is not looked at.
    """

    def __init__(
        self,
        *roots: object,
        earlier: Look | None = None,
        budget: float | None = None,
        code: bool = True,
    ) -> None:
        self.follows_code = code
        self.reads_files = False  # whether code that was looked at may read files
        self._tokens: list[object] = []  # what was found: plain values, to be compared with ==
        self._constants: list[Sequence[object]] = []  # long runs of objects that never change
        self._kept: list[object] = []  # what is meant by an id among the tokens must not be freed
        self._alive: list[object] = []  # nor must anything seen, as long as the look lasts
        self._seen: dict[int, int] = {}
        self._earlier = None if earlier is None else earlier._constants
        default = FIRST_BUDGET if earlier is None else BUDGET
        self._left = default if budget is None else budget
        self.why_incomplete = ""
        try:
            look_at_switches(self)
            self.many(roots)
        except Exception as error:  # Over budget; an object changed meanwhile; a class like none before.
            self.leave_out(str(error) or type(error).__name__)
        self._seen.clear()
        self._alive.clear()
        self._earlier = None

    def __reduce__(self) -> tuple[type[Look], tuple[object, ...]]:
        return Look, ()  # What was found has a meaning in this process alone.

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left out, so that the same look again means: nothing was changed."""
        return not self.why_incomplete

    def note(self, found: object) -> None:
        """Note something that was found: a plain value, which == compares without code of the user's."""
        self._tokens.append(found)

    def finds_same(self, earlier: Look) -> bool:
        """Whether all that this look found is as it was; it proves something if both are complete."""
        mine, others = self._constants, earlier._constants
        return (
            self._tokens == earlier._tokens
            and len(mine) == len(others)
            and all(a is b or _identical(a, b) for a, b in zip(mine, others, strict=True))
        )

    def leave_out(self, why: str) -> None:
        """Note that not all was looked at."""
        self.why_incomplete = self.why_incomplete or why

    def spend(self, seconds: float) -> None:
        """Count what a part of the look costs; NotProvenError if it is too much."""
        self._left -= seconds
        if self._left < 0:
            raise NotProvenError("there is too much to look at")

    def by_identity(self, value: object) -> None:
        """Note which object this is, and nothing of what it holds."""
        self.note(id(value))
        self.keep(value)

    def keep(self, value: object) -> None:
        """Let an object live as long as this look, which has noted its address."""
        self._kept.append(value)

    # Many values at once, without a Python loop where they are plain.

    def many(self, values: Sequence[object], level: int = 0) -> None:
        """Look at all of these."""
        count = len(values)
        self.note(count)
        if not count:
            return
        position = len(self._constants)
        if self._earlier is not None and position < len(self._earlier):
            before = self._earlier[position]
            if len(before) == count:
                self.spend(_KNOWN_ITEM * count)
                if _identical(before, values):
                    self._constants.append(before)
                    return
        self.spend(ITEM * count)
        kinds = set(map(type, values))
        if self._are_constant(values, kinds):
            self._constants.append([*values])
        elif level > _MOST_LEVELS:
            raise NotProvenError("containers are nested too deeply")
        elif kinds <= {list, tuple} and count > 1:
            self.note([*map(type, values)])
            self.note([*map(len, values)])  # type: ignore[arg-type]
            self.many([*chain.from_iterable(values)], level + 1)  # type: ignore[arg-type]
        elif kinds == {dict} and count > 1:
            self.note([*map(len, values)])  # type: ignore[arg-type]
            self.many([*chain.from_iterable(values)], level + 1)  # type: ignore[arg-type]
            self.many([*chain.from_iterable(map(dict.values, values))], level + 1)  # type: ignore[arg-type]
        else:
            for value in values:
                self.one(value)

    def _are_constant(self, values: Iterable[object], kinds: set[type]) -> bool:
        """Whether all of these are plain, or tuples of what is."""
        while tuple in kinds and kinds <= _CONSTANT | {tuple}:  # Tuples cannot be nested without end.
            tuples: Any = values if len(kinds) == 1 else [value for value in values if type(value) is tuple]
            self.spend(ITEM * sum(map(len, tuples)))
            values = chain.from_iterable(tuples)
            kinds = set(map(type, values))
            if tuple in kinds:
                values = [*chain.from_iterable(tuples)]
        return kinds <= _CONSTANT

    # One value.

    def one(self, value: object) -> None:
        """Look at an object, and at all that it consists of."""
        kind = type(value)
        if kind in _PLAIN:
            self._plain(kind, value)
            return
        if self.was_seen(id(value)):
            return
        self.spend(OBJECT)
        if kind in _BY_IDENTITY:
            self.by_identity(value)
            return
        self._alive.append(value)
        look = VALUES.get(kind) or CODE.get(kind)
        if look is not None:
            look(self, value)
        else:
            self._instance(value, kind)

    def was_seen(self, key: int) -> bool:
        """Whether an object was met before in this look; which one is noted."""
        seen = self._seen
        number = seen.get(key)
        self.note(number)
        if number is None:
            seen[key] = len(seen)
        return number is not None

    def _plain(self, kind: type, value: object) -> None:
        self.note(kind)  # 1, 1.0 and True are equal.
        is_inexact = kind is float or kind is complex
        self.note(repr(value) if is_inexact else value)

    def _instance(self, value: object, kind: type) -> None:
        """An object of any other class: what its class stores, its attributes, and the class itself."""
        mro = mro_of(kind)
        if type in mro:
            look_at_class(self, value)  # type: ignore[arg-type]
            return
        if logging.Logger in mro or kind is Look:
            self.by_identity(value)
            return
        if np.generic in mro:
            look_at_scalar(self, value)
            return
        if np.dtype in mro:
            self.note(repr(value))
            return
        storage = storage_class(kind)
        look = None if storage is object else STORED.get(storage)
        if look is not None:
            look(self, value)
        elif storage is not object:
            self._opaque(value, kind)
            return
        attributes = attributes_of(value, kind)
        if attributes is None:
            self._opaque(value, kind)
            return
        look_at_class(self, kind)
        immutable = _immutable_attributes(mro)
        self.note(len(attributes))
        for name, attribute in attributes:
            self.note(name if type(name) is str else repr(type(name)))
            if name in immutable:
                self.by_identity(attribute)
            else:
                self.one(attribute)

    def _opaque(self, value: object, kind: type) -> None:
        self.by_identity(value)
        self.leave_out(f"{kind.__module__}.{kind.__qualname__} cannot be looked into")


def _identical(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _immutable_attributes(mro: tuple[type, ...]) -> frozenset[str]:
    """What the classes of an object declare to change by assignment only."""
    named: set[str] = set()
    for kind in mro:
        declared = vars_of(kind).get("immutable_attributes")
        if type(declared) is tuple:
            named.update(name for name in declared if type(name) is str)
    return frozenset(named)


class Watched:
    """Objects that workers get copies of, and how they were when they did.

    A forked worker inherits this; one that is spawned takes its own first look at its copies.
    """

    def __init__(self, *roots: object) -> None:
        self._roots, self._look = roots, Look(*roots)

    def __reduce__(self) -> tuple[type[Watched], tuple[object, ...]]:
        return Watched, self._roots

    @property
    def why_unproven(self) -> str:
        """Why it could never be proven that nothing was changed; empty if it can."""
        return self._look.why_incomplete

    @property
    def reads_files(self) -> bool:
        """Whether the objects' code may read files, whose content no look proves."""
        return self._look.reads_files

    def is_unchanged(self, *roots: object) -> bool:
        """Whether it is proven that nothing was changed: of the objects, or of those now in their place."""
        if self.why_unproven:
            return False
        again = Look(*(roots or self._roots), earlier=self._look)
        return again.is_complete and again.finds_same(self._look)
