"""How to read what an object holds, and whether two objects hold the same: without any code of theirs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from rekindle.core.analysis.object_state import Getter, slot, vars_of


def entries(attributes: tuple[Getter, object]) -> list[object]:
    """The names in an object's `__dict__`, then what they mean."""
    get, value = attributes
    return [*dict.keys(get(value)), *dict.values(get(value))]


def slot_value(attributes: tuple[Getter, object]) -> tuple[object]:
    """What an attribute in a slot means."""
    return (slot(*attributes),)


def defined_entries(kind: type) -> list[object]:
    """The names that a class defines, then what they mean."""
    return [*vars_of(kind).keys(), *vars_of(kind).values()]


def halves(entries: Sequence[object]) -> tuple[Sequence[object], Sequence[object]]:
    """The names and what they mean, of one sequence of both."""
    return entries[: len(entries) // 2], entries[len(entries) // 2 :]


def all_values(dictionaries: Iterable[dict[object, object]]) -> Iterable[object]:
    """The values of all of these."""
    return chain.from_iterable(map(dict.values, dictionaries))


def lengths(containers: Iterable[Any]) -> list[int]:
    """How many items each of these has."""
    return [*map(len, containers)]


def identical(some: Iterable[object], others: Sequence[object]) -> bool:
    """Whether these are the same objects."""
    some = some if isinstance(some, list | tuple) else [*some]
    return len(some) == len(others) and all(map(operator.is_, some, others))


def same_root(root: object, other: object) -> bool:
    """Whether this is one object, or a tuple of the same ones."""
    return root is other or (type(root) is tuple is type(other) and identical(root, other))
