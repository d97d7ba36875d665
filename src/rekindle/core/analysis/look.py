"""A look at all that some objects consist of, without running any code of the user's.

A look is complete: it follows every attribute, item, closure, class and global that the objects' code reads,
and hashes the bytes of arrays. What it cannot follow (a file, an object of C code), or not within its budget,
leaves it incomplete, and then nothing is proven. Nothing is raised.

Two looks find the same if all values are equal. That every object *is* the one it was, and holds the ones it
held, proves as much and is found out far sooner (`Look.still_holds`): what was looked at is kept alive, so an
identity means one object, and of those that cannot be changed nothing else is to be compared.

What is taken not to change: the modules and classes of installed libraries (`object_state.LIBRARIES`), apart
from the settings in `look_at_code.switches`; and attributes that a class names in `immutable_attributes`,
which are compared by identity.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rekindle.core.analysis.file_reads import class_reads_files
from rekindle.core.analysis.held_entries import (
    all_values,
    defined_entries,
    entries,
    halves,
    identical,
    lengths,
    same_root,
    slot_value,
)
from rekindle.core.analysis.look_at_code import CODE, COLLATES, scripts_collates, switches
from rekindle.core.analysis.look_at_values import (
    BY_IDENTITY,
    CONSTANT,
    ITEM,
    PLAIN,
    STORED,
    VALUES,
    look_at_scalar,
)
from rekindle.core.analysis.object_state import (
    HEAP_TYPE,
    IN_LIBRARY,
    KNOWN_STATES,
    ClassState,
    NotProvenError,
    mro_of,
    state_of,
    vars_of,
)
from rekindle.core.forked_memory import ForkedArrays
from rekindle.core.interrupts import is_interrupt

# Seconds, about: counted from the costs here and in `look_at_values`, so that a look ends at the same point
# every time. The first look at something is taken once. Before every epoch it is found out whether it holds.
FIRST_BUDGET, BUDGET = 20e-3, 5e-3
_OBJECT = 2e-6  # to look at an object
_HELD_OBJECT, _HELD_ITEM = 0.4e-6, 20e-9  # to find that they are the ones known; a byte of an array: BYTE
_MOST_LEVELS = 64

# Entries of a class that say nothing about what its code does.
_NOT_OF_INTEREST = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__",
        "_abc_impl", "__orig_bases__", "__slotnames__", "__parameters__", "__qualname__",
        "__static_attributes__", "__firstlineno__", "__annotate__", "__annotate_func__",
        "__annotations_cache__",
    }
)  # fmt: skip

_Held = tuple[Callable[[Any], Iterable[object]], object, Sequence[object]]
_Found = tuple[Callable[[Any], object], object, object]


class Look:
    """All that some objects consist of, at one time.

    `earlier` is a look at the same objects: what it has found to be constant is not looked into again.
    Without `code`, functions and classes are told apart, and what they read is not looked at.
    `forks` says that it is taken just before workers are forked.
    """

    def __init__(
        self,
        *roots: object,
        earlier: Look | None = None,
        budget: float | None = None,
        code: bool = True,
        forks: bool = False,
    ) -> None:
        self.follows_code = code
        self.reads_files = False  # whether code that was looked at may read files
        self.addresses: list[int] = []  # of the arrays and tensors that were looked at
        self._roots = roots
        self._tokens: list[object] = []  # what was found: plain values, to be compared with ==
        self._constants: list[Sequence[object]] = []  # long runs of objects that never change
        self._kept: list[object] = []  # what is meant by an id among the tokens must not be freed
        self._objects: list[object] = []  # that were looked into; their ids are among the tokens too
        self._kinds: list[type] = []  # of these, as the class of an object may be exchanged
        self._held: list[_Held] = []  # how to read what an object held
        self._found: list[_Found] = []  # how to find again what is compared with ==
        self._seen: dict[int, int] = {}
        self._states: dict[type, ClassState] = {}
        self._earlier = None if earlier is None else earlier._constants
        self.forked: ForkedArrays = ForkedArrays(forks, None if earlier is None else earlier.forked)
        self._left = budget or (FIRST_BUDGET if earlier is None else BUDGET)
        self._left_again = budget or BUDGET  # to find out whether it holds
        self.why_incomplete = ""
        # Note something that was found: a plain value, which == compares without code of the user's.
        self.note: Callable[[object], None] = self._tokens.append
        # Let an object live as long as this look, which has noted its address.
        self.keep: Callable[[object], None] = self._kept.append
        try:
            self.finding(switches, None)
            self.many(self.holding(scripts_collates, COLLATES))
            self.begin(roots)
        except Exception as error:  # Over budget; an object changed meanwhile; a class like none before.
            if is_interrupt(error):
                raise
            self.leave_out(str(error) or type(error).__name__)
        self._seen.clear()
        self._states.clear()
        self._earlier = None

    def __reduce__(self) -> tuple[type[Look], tuple[object, ...]]:
        return Look, ()  # What was found has a meaning in this process alone.

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left out, so that the same look again means: nothing was changed."""
        return not self.why_incomplete

    def still_holds(self, *roots: object, whatever_values: bool = False) -> bool:
        """Whether it is proven that another look, at these objects or the same, would find the same.

        With `whatever_values`, that they consist of the same objects, whatever bytes arrays hold by now.
        """
        roots = roots or self._roots
        try:
            return (
                self.is_complete
                and all(map(same_root, roots, self._roots))
                and len(roots) == len(self._roots)
                and all(map(operator.is_, map(type, self._objects), self._kinds))
                and all(identical(read(holder), held) for read, holder, held in self._held)
                and (whatever_values or all(find(value) == found for find, value, found in self._found))
            )
        except Exception as error:  # Something changes right now, or is like nothing before.
            if is_interrupt(error):
                raise
            return False

    def finds_same(self, earlier: Look) -> bool:
        """Whether all that this look found is as it was; it proves something if both are complete."""
        mine, others = self._constants, earlier._constants
        return (
            self._tokens == earlier._tokens
            and len(mine) == len(others)
            and all(a is b or identical(a, b) for a, b in zip(mine, others, strict=True))
        )

    # What is looked at: all, unless a class of looks says otherwise (`look_at_reads`).

    def begin(self, roots: tuple[object, ...]) -> None:
        """Look at all that the roots consist of."""
        self.many(roots)

    def wants(self, name: object) -> bool:
        """Whether code is taken to read what a name stands for: in a class, among globals or variables."""
        return True

    def wants_attribute(self, name: object, kind: type) -> bool:
        """Whether this attribute of an object of this class is looked at."""
        return True

    def attribute(self, name: object, value: object) -> None:
        """Look at the value of an attribute."""
        self.one(value)

    def read(self, value: object) -> None:
        """Look at what code reads by a name."""
        self.one(value)

    def looks_at_numbers(self) -> bool:
        """Whether numbers of `ctypes` are looked at, which may be in memory that other processes write to."""
        return True

    def pass_over(self, other: Look) -> None:
        """Take the values that another look was at for known; not code, of which this one may see more."""
        for value, kind in zip(other._objects, other._kinds, strict=True):
            if kind not in CODE and type not in mro_of(kind):
                self._seen[id(value)] = len(self._seen)

    # For those who look at objects of one class or another.

    def leave_out(self, why: str) -> None:
        """Note that not all was looked at."""
        self.why_incomplete = self.why_incomplete or why

    def spend(self, seconds: float, again: float = 0.0) -> None:
        """Count what a part of the look costs, now and `again`; NotProvenError if it is too much."""
        if seconds > self._left or again > self._left_again:
            raise NotProvenError("there is too much to look at")
        self._left -= seconds
        self._left_again -= again

    def by_identity(self, value: object) -> None:
        """Note which object this is, and nothing of what it holds."""
        self.note(id(value))
        self.keep(value)

    def finding(self, find: Callable[[Any], object], value: object) -> None:
        """Note what `find` returns for an object, which is compared with ==."""
        found = find(value)
        self._tokens.append(found)
        self.expecting(find, value, found)

    def expecting(self, find: Callable[[Any], object], value: object, found: object) -> None:
        """Note what `find` is to return for an object when it is found out whether this look holds."""
        self._found.append((find, value, found))

    def holding(self, read: Callable[[Any], Iterable[object]], holder: Any) -> tuple[object, ...]:
        """The objects that a holder has, as `read` returns them, which may be exchanged for others."""
        held = tuple(read(holder))
        self.spend(0.0, _HELD_OBJECT + _HELD_ITEM * len(held))
        self._held.append((read, holder, held))
        return held

    # Many values at once, without a Python loop where they are plain.

    def many(self, values: Sequence[object], level: int = 0) -> None:
        """Look at all of these, which are in nobody else's list."""
        count = len(values)
        self.note(count)
        if not count:
            return
        position = len(self._constants)
        if self._earlier is not None and position < len(self._earlier):
            before = self._earlier[position]
            if len(before) == count:
                self.spend(_HELD_ITEM * count)
                if identical(before, values):
                    self._constants.append(before)
                    return
        self.spend(ITEM * count)
        kinds = set(map(type, values))
        if self._are_constant(values, kinds):
            self._constants.append(values)
        elif level > _MOST_LEVELS:
            raise NotProvenError("containers are nested too deeply")
        elif kinds <= {list, tuple} and count > 1:
            self.note([*map(type, values)])
            self.finding(lengths, values)
            self.many(self.holding(chain.from_iterable, values), level + 1)
        elif kinds == {dict} and count > 1:
            self.finding(lengths, values)
            self.many(self.holding(chain.from_iterable, values), level + 1)
            self.many(self.holding(all_values, values), level + 1)
        else:
            for value in values:
                self.one(value)

    def _are_constant(self, values: Iterable[object], kinds: set[type]) -> bool:
        """Whether all of these are plain, or tuples of what is."""
        while tuple in kinds and kinds <= CONSTANT | {tuple}:  # Tuples cannot be nested without end.
            tuples: Any = values if len(kinds) == 1 else [value for value in values if type(value) is tuple]
            self.spend(ITEM * sum(map(len, tuples)))
            values = chain.from_iterable(tuples)
            kinds = set(map(type, values))
            if tuple in kinds:
                values = [*chain.from_iterable(tuples)]
        return kinds <= CONSTANT

    # One value.

    def one(self, value: object) -> None:
        """Look at an object, and at all that it consists of."""
        kind = type(value)
        if kind in PLAIN:
            self.note(kind)  # 1, 1.0 and True are equal.
            self.note(repr(value) if kind is float or kind is complex else value)
            return
        if self._was_seen(id(value)):
            return
        self.spend(_OBJECT, _HELD_OBJECT)
        if kind in BY_IDENTITY:
            self.by_identity(value)
            return
        self._objects.append(value)
        self._kinds.append(kind)
        if kind is tuple:
            self.many(value)  # type: ignore[arg-type]
        elif kind is list:
            self.many(self.holding(list.copy, value))
        elif kind is dict:
            self.many(self.holding(dict.keys, value))
            self.many(self.holding(dict.values, value))
        elif kind is type:
            self._class(value)  # type: ignore[arg-type]
        elif (look := VALUES.get(kind) or CODE.get(kind)) is not None:
            look(self, value)
        else:
            self._instance(value, kind)

    def _was_seen(self, key: int) -> bool:
        """Whether an object was met before in this look; which one is noted."""
        seen = self._seen
        number = seen.get(key)
        self.note(number)
        if number is None:
            seen[key] = len(seen)
        return number is not None

    def _instance(self, value: object, kind: type) -> None:
        """An object of any other class: what its class stores, its attributes, and the class itself."""
        mro = mro_of(kind)
        if type in mro:
            self._class(value)  # type: ignore[arg-type]
        elif logging.Logger in mro or kind is Look:
            self.by_identity(value)
        elif np.generic in mro:
            look_at_scalar(self, value)
        elif np.dtype in mro:
            self.note(repr(value))
        else:
            self._attributes(value, kind)

    def _attributes(self, value: object, kind: type) -> None:
        state = self._states.get(kind)
        if state is None:
            state = self._states[kind] = KNOWN_STATES.get(id(kind)) or state_of(kind)
        attributes = state.attributes
        if state.storage is str:
            self.note(str.__str__(value))
        elif state.storage in STORED:
            STORED[state.storage](self, value)
        elif state.storage is not object:
            attributes = None
        if attributes is None:
            self.by_identity(value)
            self.leave_out(f"{kind.__module__}.{kind.__qualname__} cannot be looked into")
            return
        self._class(kind)
        immutable = state.immutable
        for name, get in attributes:
            if name == "__dict__":
                names, values = halves(self.holding(entries, (get, value)))
            else:
                names, values = (name,), self.holding(slot_value, (get, value))
            found = zip(names, values, strict=True)
            wanted = [entry for entry in found if self.wants_attribute(entry[0], kind)]
            self.note(len(wanted))
            for key, attribute in wanted:
                self.note(key if type(key) is str else repr(type(key)))
                if key in immutable:
                    self.by_identity(attribute)
                    self.reads_files = self.reads_files or class_reads_files(type(attribute), False)
                else:
                    self.attribute(key, attribute)

    def _class(self, kind: type) -> None:
        """A class and its bases: of libraries which entries there are, of others what these do."""
        if self._was_seen(-id(kind)):  # `id` is for its name (`one`), `~id` for what it alone defines.
            return
        self.by_identity(kind)
        self._objects.append(kind)
        self._kinds.append(type(kind))
        if not self.follows_code:
            return
        self.reads_files = self.reads_files or class_reads_files(kind)
        for base in self.holding(mro_of, kind)[:-1]:
            self.spend(_OBJECT)
            module = vars_of(base).get("__module__")  # type: ignore[arg-type]
            if not type.__getattribute__(base, "__flags__") & HEAP_TYPE:
                pass  # Nobody can change what a class of C code defines.
            elif type(module) is str and IN_LIBRARY[module]:
                self.note([*map(id, self._defined(base))])
            elif not self._was_seen(~id(base)):
                for entry in self._defined(base):
                    self.read(entry)
        if type(kind) is not type:
            self._class(type(kind))

    def _defined(self, kind: object) -> list[object]:
        """The names that a class defines, each followed by what it means."""
        named = zip(*halves(self.holding(defined_entries, kind)), strict=True)
        return [
            part
            for entry in named
            if entry[0] not in _NOT_OF_INTEREST and self.wants(entry[0])
            for part in entry
        ]
