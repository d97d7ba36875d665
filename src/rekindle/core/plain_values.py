"""Which containers hold plain values only, so that a copy of an element is as good as the element."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from sys import getrefcount
from typing import Any, NamedTuple

_ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None)})
_MUTABLE = frozenset({list, dict})
_CONTAINERS = _MUTABLE | {tuple}
_MOST_LEVELS = 8


class Plain(NamedTuple):
    """What there is to know of plain elements: whether whoever gets one could change it."""

    mutable: bool


def plain_values(values: Sequence[object], *, owned: bool = True) -> Plain | None:
    """Whether all elements are of the classes in `_ATOMS`, or tuples, lists and dicts of these; None if not.

    If they are to be `owned`, None also if something mutable is referred to from elsewhere, through which it
    could be changed.
    """
    mutable = _has_mutable(values)
    if mutable is None or (mutable and owned and _most_references(values) > _ALONE):
        return None
    return Plain(mutable)


def _has_mutable(values: Sequence[object]) -> bool | None:
    """Whether a list or a dict is among plain values; None if not all are plain."""
    mutable, level = False, values
    for _ in range(_MOST_LEVELS):
        kinds = set(map(type, level))
        if kinds <= _ATOMS:
            return mutable
        if not kinds <= _ATOMS | _CONTAINERS:
            return None
        mutable = mutable or bool(kinds & _MUTABLE)
        dicts = _of_kinds(level, kinds, {dict})
        if not set(map(type, chain.from_iterable(dicts))) <= _ATOMS:
            return None  # Keys that are tuples are too rare to be looked into.
        level = _content(level, kinds, dicts)
    return None


def _most_references(values: Sequence[object]) -> int:
    """The most references that there are to any container; the empty tuple belongs to everybody."""
    most, level = 0, values
    while kinds := set(map(type, level)) - _ATOMS:
        containers = [value for value in level if type(value) in kinds and value != ()]
        level = []  # It refers to them.
        most = max(most, *map(getrefcount, containers), 0)
        level = _content(containers, kinds, _of_kinds(containers, kinds, {dict}))
    return most


def _content(
    level: Sequence[object], kinds: set[type], dicts: Sequence[dict[object, object]]
) -> list[object]:
    """What is in these containers, but for dicts' keys."""
    others = _of_kinds(level, kinds, {tuple, list})
    return [*chain.from_iterable(others), *chain.from_iterable(map(dict.values, dicts))]


def _of_kinds(level: Sequence[object], kinds: set[type], wanted: set[type]) -> Sequence[Any]:
    """Those of some classes, without a look at each if all are, or none."""
    if kinds <= wanted:
        return level
    return [] if kinds.isdisjoint(wanted) else [value for value in level if type(value) in wanted]


_ALONE = _most_references([[]])  # where the container is the only owner
