"""What a sampler of a script keeps from one epoch to the next: saved with the state, and put back.

Such are a generator, a counter of its epochs, a list that it shuffles in place: a new process begins with
those as they are at first, so the epochs to come would be those that were. What passes over a sampler do not
change (its rank, its weights) is the script's, and in no state.
"""

from __future__ import annotations

import warnings
from collections import deque
from itertools import islice
from typing import NamedTuple

from rekindle.choose.kept_values import (
    DICTS,
    PLAIN,
    NotPlainError,
    Value,
    decoded,
    encoded,
    is_array,
    restored,
    same,
)
from rekindle.choose.sampler_epochs import weakly
from rekindle.choose.sampler_holders import Holder, Holders, is_alive
from rekindle.choose.sampler_state import KeptParts, stateful_part
from rekindle.core.state_fields import StateFields

_LONG = 50_000  # entries of a container, with those in it; of an array, that many times 100 bytes
_LOOKED_AT = 8  # of a container in which there are others
_CONTAINERS = (list, tuple, set, frozenset, deque, *DICTS)
_ABSENT, _OTHER = ("absent", None), ("other", None)


class _Kept(NamedTuple):
    """A value as plain data, and the object itself, if there is anything to say of it."""

    value: Value
    object: object = None


_Key = tuple[str, str]  # of a holder, and in it
_Snapshot = dict[_Key, _Kept]
_NOTHING = _Kept(_ABSENT)


class SamplerMemory:
    """Notices what passes over a sampler change in it."""

    def __init__(self) -> None:
        self._follow(None)
        self._has_warned = False

    def _follow(self, sampler: object) -> None:
        self._sampler = weakly(sampler)  # It may know its loader, which must be able to go.
        self._holders = Holders()
        self._changing: set[_Key] = set()
        self._first: _Snapshot | None = None  # before any of its passes
        self._start: _Snapshot | None = None
        self._is_within = False  # a pass

    def begin(self, sampler: object, generator: object) -> None:
        """Note how a pass over a sampler begins."""
        if self._sampler() is not sampler:
            self._follow(sampler)
        now = self._snapshot(sampler, generator)
        if self._is_within and self._start is not None:  # It was left before its end.
            self._changing |= _differing(self._start, now)
        self._first = now if self._first is None else self._first
        self._start, self._is_within = now, True

    def end(self, sampler: object, generator: object) -> None:
        """Note what a pass has changed that is over."""
        if self._start is not None and self._is_within and self._sampler() is sampler:
            self._changing |= _differing(self._start, self._snapshot(sampler, generator))
        self._is_within = False

    def within(self, sampler: object, generator: object) -> tuple[KeptParts, KeptParts]:
        """What a sampler kept when this pass began, and what of that is something else now."""
        if self._start is None or self._sampler() is not sampler:
            return {}, {}
        now = self._snapshot(sampler, generator, quickly=True)
        self._changing |= _differing({key: self._start.get(key, _NOTHING) for key in now}, now)
        start = {key: self._start.get(key, _NOTHING) for key in self._changing}
        now = {key: now.get(key, _NOTHING) for key in self._changing}
        return self._parts(start), self._parts({key: now[key] for key in _differing(start, now)})

    def between(self, sampler: object, generator: object, *, stacklevel: int) -> KeptParts:
        """What a sampler keeps between two passes."""
        if self._start is None or self._sampler() is not sampler:
            return {}
        now = self._snapshot(sampler, generator, quickly=not self._is_within)
        if self._is_within:
            self._changing |= _differing(self._start, now)
        self._warn(sampler, generator, stacklevel + 1)
        return self._parts({key: now.get(key, _NOTHING) for key in self._changing})

    def go_back_to(self, sampler: object, generator: object, parts: KeptParts) -> None:
        """Let a sampler keep what a state says, and what it kept at first where that had not changed yet."""
        if self._sampler() is not sampler:
            self._follow(sampler)
        now = self._snapshot(sampler, generator)
        if self._first is None:
            self._first = now
        elif self._start is not None and self._is_within:
            self._changing |= _differing(self._start, now)
        self._is_within = False
        first = {key: self._first.get(key, _NOTHING) for key in self._changing}
        self.put_back(sampler, generator, self._parts(first))
        self.put_back(sampler, generator, parts)

    def put_back(self, sampler: object, generator: object, parts: KeptParts) -> None:
        """Let a sampler keep what a state says, where it is one that can."""
        found = self._holders.of(sampler, generator)
        for place, values in parts.items():
            holder = found.get(place)
            for name, (value, in_place) in values.items():
                if holder is not None and holder.takes(name):
                    self._changing.add((place, name))
                    _put(holder, name, value, in_place)

    def _parts(self, kept: _Snapshot) -> KeptParts:
        parts: KeptParts = {}
        for key in sorted(kept):
            value, now = kept[key]
            if value is not _OTHER:
                first = (self._first or {}).get(key, _NOTHING).object
                parts.setdefault(key[0], {})[key[1]] = [value, now is not None and now is first]
        return parts

    def _snapshot(self, sampler: object, generator: object, *, quickly: bool = False) -> _Snapshot:
        """All that a sampler keeps; `quickly`: without what is long and not known to change."""
        found: _Snapshot = {}
        if stateful_part(sampler) is not None:
            return found
        for place, holder in self._holders.of(sampler, generator).items():
            for name, value in holder.values.items():
                key = place, name
                if not quickly or key in self._changing or not _is_long(value):
                    found[key] = _kept(value)
        return found

    def _warn(self, sampler: object, generator: object, stacklevel: int) -> None:
        """Warn once of what a state cannot hold."""
        if self._has_warned or stateful_part(sampler) is not None:
            return
        alive = [
            f"{type(holder.owner).__name__}.{name} ({type(value).__name__})"
            for holder in self._holders.of(sampler, generator).values()
            for name, value in holder.values.items()
            if is_alive(value)
        ]
        if alive:
            self._has_warned = True
            warnings.warn(
                f"sampler: the loader's state is without {', '.join(alive[:3])}, which has begun and is not "
                "over. If the next epoch goes on with it, a run that is resumed here gets other epochs: give "
                "the sampler state_dict() and load_state_dict().",
                stacklevel=stacklevel + 1,
            )


def _kept(value: object) -> _Kept:
    try:
        return _Kept(encoded(value), None if type(value) in PLAIN else value)
    except NotPlainError:
        return _Kept(_OTHER)


def _is_long(value: Value) -> bool:
    """Whether to look at a value takes more than some milliseconds."""
    if is_array(value):
        return bool(value.nbytes > 100 * _LONG)
    return _entries(value) > _LONG


def _entries(value: Value, levels: int = 3) -> float:
    """About how many entries a container has, with those of containers in it."""
    if type(value) not in _CONTAINERS or not value:
        return 0
    some = [*islice(value.values() if type(value) in DICTS else value, _LOOKED_AT)]
    within = sum(_entries(one, levels - 1) for one in some) if levels else 0
    return len(value) * (1 + within / len(some))


def _differing(some: _Snapshot, others: _Snapshot) -> set[_Key]:
    return {
        key
        for key in {*some, *others}
        if not same(some.get(key, _NOTHING).value, others.get(key, _NOTHING).value)
    }


def _put(holder: Holder, name: str, value: Value, in_place: bool) -> None:
    now = holder.values.get(name)
    if type(value) is tuple and value == _ABSENT:
        holder.remove(name)
        return
    new = restored(value, now, in_place=in_place)
    if new is not now:
        holder.put(name, new)


def checked_parts(fields: StateFields) -> KeptParts:
    """What a sampler keeps, of a saved state; StateError if it is none."""
    parts: KeptParts = {}
    for place in fields.names():
        inner = fields.inner(place)
        for name in inner.names():
            entry = inner.get(name)
            if type(entry) is not list or len(entry) != 2 or type(entry[1]) is not bool:
                inner.refuse(name, "expected a value and whether it is the same object")
            try:
                if type(entry[0]) is not tuple or entry[0] != _ABSENT:
                    decoded(entry[0])
            except (ValueError, TypeError, KeyError, RuntimeError, RecursionError, AssertionError) as error:
                inner.refuse(name, str(error))
            parts.setdefault(place, {})[name] = [entry[0], entry[1]]
    return parts
