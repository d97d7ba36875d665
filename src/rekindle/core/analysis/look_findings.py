"""What a look found, and whether another one would find the same: without any code of the user's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rekindle.core.analysis.list_items import identical, same_items

Reader = Callable[[Any], Iterable[object]]
Finder = Callable[[Any], object]


class LookFindings:
    """All that a look found.

    `tokens` are plain values, to be compared with ==, and `constants` are long runs of objects that never
    change. What is meant by an id among the tokens is `kept`, since it must not be freed.
    """

    def __init__(self) -> None:
        self.tokens: list[object] = []
        self.constants: list[Sequence[object]] = []
        self.kept: list[object] = []
        self.objects: list[object] = []  # that were looked into; their ids are among the tokens too
        self.kinds: list[type] = []  # of these, as the class of an object may be exchanged
        self.held: list[tuple[Reader, object, Sequence[object]]] = []  # how to read what an object held
        self.values: list[tuple[Finder, object, object]] = []  # how to find again what is compared with ==

    def are_found_again(self, *, whatever_values: bool) -> bool:
        """Whether all objects are those that they were, hold what they held, and have the same values."""
        if not all(map(operator.is_, map(type, self.objects), self.kinds)):
            return False
        if not all(_holds(holder, read, held) for read, holder, held in self.held):
            return False
        return whatever_values or all(find(value) == found for find, value, found in self.values)

    def are_same(self, others: LookFindings) -> bool:
        """Whether another look found the same, in other objects perhaps."""
        mine, theirs = self.constants, others.constants
        return (
            self.tokens == others.tokens
            and len(mine) == len(theirs)
            and all(a is b or identical(a, b) for a, b in zip(mine, theirs, strict=True))
        )


def _holds(holder: Any, read: Reader, held: Sequence[object]) -> bool:
    """Whether what is read from a holder are these objects."""
    if read is list.copy:
        return same_items(holder, held)
    now = read(holder)
    return identical(now if isinstance(now, list | tuple) else [*now], held)


def same_root(root: object, other: object) -> bool:
    """Whether this is one object, or a tuple of the same ones."""
    return root is other or (type(root) is tuple is type(other) and identical(root, other))
