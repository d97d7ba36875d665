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
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rekindle.core.analysis.code_reads import CodeReads
from rekindle.core.analysis.file_reads import class_reads_files
from rekindle.core.analysis.list_items import all_values, identical, lengths
from rekindle.core.analysis.look_at_code import CODE, COLLATES, NOT_OF_INTEREST, scripts_collates, switches
from rekindle.core.analysis.look_at_values import (
    BY_IDENTITY,
    CONSTANT,
    ITEM,
    PLAIN,
    STORED,
    VALUES,
    look_at_scalar,
)
from rekindle.core.analysis.look_findings import Finder, LookFindings, Reader, same_root
from rekindle.core.analysis.object_state import (
    HEAP_TYPE,
    IN_LIBRARY,
    KNOWN_STATES,
    ClassState,
    Getter,
    NotProvenError,
    mro_of,
    slot,
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
_KEPT_BACK, _FEW = 1 / 8, 64  # of what is left of the budget, for what comes after one of a few

_NO_CODE = CodeReads()


class Look:
    """All that some objects consist of, at one time.

    `earlier` is a look at the same objects: what it has found to be constant is not looked into again.
    Without `code`, functions and classes are told apart, and what they read is not looked at; without
    `process`, neither are settings of the process. `partly` leaves out attributes and items that are too much
    and looks at the others. `reads` says what code may write to numbers of `ctypes`: those are left out, as
    they may be in memory that other processes write to. `forked` is the memory that workers are forked with.
    """

    def __init__(
        self,
        *roots: object,
        earlier: Look | None = None,
        budget: float | None = None,
        code: bool = True,
        process: bool = True,
        partly: bool = False,
        reads: CodeReads = _NO_CODE,
        forked: ForkedArrays | None = None,
    ) -> None:
        self.follows_code, self.forked = code, forked
        self.reads_files = False  # whether code that was looked at may read files
        self.addresses: list[int] = []  # of the arrays and tensors that were looked at
        # Whether numbers of `ctypes` are looked at where this look is now.
        self.looks_at_numbers = not reads.writes_numbers
        self._roots, self._reads, self._partly = roots, reads, partly
        self._found = LookFindings()
        self._seen: dict[int, int] = {}  # in which order, by id
        self._states: dict[type, ClassState] = {}
        self._classes: dict[type, bool] = {}  # that may read files, and whether their code is looked into
        self._earlier = None if earlier is None else earlier._found.constants
        self._left = budget or (FIRST_BUDGET if earlier is None else BUDGET)
        self._left_again = budget or BUDGET  # to find out whether it holds
        self.why_incomplete = ""
        # Note something that was found: a plain value, which == compares without code of the user's.
        self.note: Callable[[object], None] = self._found.tokens.append
        # Let an object live as long as this look, which has noted its address.
        self.keep: Callable[[object], None] = self._found.kept.append
        try:
            if process:
                self.finding(switches, None)
                self.many(self.holding(scripts_collates, COLLATES))
            self.begin(roots)
            if code:
                reading = map(class_reads_files, self._classes, self._classes.values())
                self.reads_files = self.reads_files or any(reading)
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
        return (
            self.is_complete
            and all(map(same_root, roots, self._roots))
            and len(roots) == len(self._roots)
            and self._found.are_found_again(whatever_values=whatever_values)
        )

    def finds_same(self, earlier: Look) -> bool:
        """Whether all that this look found is as it was; it proves something if both are complete."""
        return self._found.are_same(earlier._found)

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

    def read(self, value: object) -> None:
        """Look at an attribute, or at what code reads by a name."""
        kept_back = self._left * _KEPT_BACK if self._partly else 0.0
        self._left -= kept_back
        try:
            self.one(value)
        except NotProvenError as error:
            if not self._partly:
                raise
            self.note("left out")
            self.by_identity(value)
            self.leave_out(str(error))
        finally:
            self._left += kept_back

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

    def finding(self, find: Finder, value: object) -> None:
        """Note what `find` returns for an object, which is compared with ==."""
        found = find(value)
        self.note(found)
        self.expecting(find, value, found)

    def expecting(self, find: Finder, value: object, found: object) -> None:
        """Note what `find` is to return for an object when it is found out whether this look holds."""
        self._found.values.append((find, value, found))

    def holding(self, read: Reader, holder: Any) -> tuple[object, ...]:
        """The objects that a holder has, as `read` returns them, which may be exchanged for others."""
        held = tuple(read(holder))
        self.spend(0.0, _HELD_OBJECT + _HELD_ITEM * len(held))
        self._found.held.append((read, holder, held))
        return held

    # Many values at once, without a Python loop where they are plain.

    def many(self, values: Sequence[object], level: int = 0) -> None:
        """Look at all of these, which are in nobody else's list."""
        count = len(values)
        self.note(count)
        if not count:
            return
        constants = self._found.constants
        position = len(constants)
        if self._earlier is not None and position < len(self._earlier):
            before = self._earlier[position]
            if len(before) == count:
                self.spend(_HELD_ITEM * count)
                if identical(before, values):
                    constants.append(before)
                    return
        self.spend(ITEM * count)
        kinds = set(map(type, values))
        if self._are_constant(values, kinds):
            constants.append(values)
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
            look = self.read if self._partly and count <= _FEW else self.one
            for value in values:
                look(value)

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
        self._found.objects.append(value)
        self._found.kinds.append(kind)
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
                names, values = _halves(self.holding(_entries, (get, value)))
            else:
                names, values = (name,), self.holding(_slot_value, (get, value))
            found = zip(names, values, strict=True)
            wanted = [entry for entry in found if self.wants_attribute(entry[0], kind)]
            self.note(len(wanted))
            for key, attribute in wanted:
                self.note(key if type(key) is str else repr(type(key)))
                if key in immutable:
                    self.by_identity(attribute)
                    self._classes[type(attribute)] = False
                elif key in self._reads.written:
                    at_numbers, self.looks_at_numbers = self.looks_at_numbers, False
                    self.read(attribute)
                    self.looks_at_numbers = at_numbers
                else:
                    self.read(attribute)

    def _class(self, kind: type) -> None:
        """A class and its bases: of libraries which entries there are, of others what these do."""
        if self._was_seen(-id(kind)):  # `id` is for its name (`one`), `~id` for what it alone defines.
            return
        self.by_identity(kind)
        self._found.objects.append(kind)
        self._found.kinds.append(type(kind))
        if not self.follows_code:
            return
        self._classes.setdefault(kind, True)
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
        named = zip(*_halves(self.holding(_defined_entries, kind)), strict=True)
        return [
            part
            for entry in named
            if entry[0] not in NOT_OF_INTEREST and self.wants(entry[0])
            for part in entry
        ]


def _entries(attributes: tuple[Getter, object]) -> list[object]:
    """The names in an object's `__dict__`, then what they mean."""
    get, value = attributes
    return [*dict.keys(get(value)), *dict.values(get(value))]


def _slot_value(attributes: tuple[Getter, object]) -> tuple[object]:
    return (slot(*attributes),)


def _defined_entries(kind: type) -> list[object]:
    """The names that a class defines, then what they mean."""
    return [*vars_of(kind).keys(), *vars_of(kind).values()]


def _halves(entries: Sequence[object]) -> tuple[Sequence[object], Sequence[object]]:
    """The names and what they mean, of one sequence of both."""
    return entries[: len(entries) // 2], entries[len(entries) // 2 :]
