"""What a look found, and whether another one would find the same: without any code of the user's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rekindle.core.analysis.list_items import FEW, identical, same_items
from rekindle.core.interrupts import is_interrupt

Reader = Callable[[Any], Iterable[object]]
Finder = Callable[[Any], object]


@dataclass(slots=True, eq=False)
class LookFindings:
    """All that a look found.

    Attributes:
        tokens: Plain values, to be compared with ==.
        constants: Long runs of objects that never change.
        kept: What is meant by an id among the tokens, which must not be freed.
        objects: Those that were looked into; their ids are among the tokens too.
        kinds: The classes of these, as the class of an object may be exchanged.
        held: What an object held, and how to read it.
        values: What an object had that is compared with ==, and how to find it.

    """

    tokens: list[object] = field(default_factory=list)
    constants: list[Sequence[object]] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)
    objects: list[object] = field(default_factory=list)
    kinds: list[type] = field(default_factory=list)
    held: list[tuple[Reader, object, Sequence[object]]] = field(default_factory=list)
    values: list[tuple[Finder, object, object]] = field(default_factory=list)

    def are_found_again(self, *, whatever_values: bool) -> bool:
        """Whether all objects are those that they were, hold what they held, and have the same values."""
        try:
            return self._are_found_again(whatever_values=whatever_values)
        except Exception as error:  # Something changes right now, or is like nothing before.
            if is_interrupt(error):
                raise
            return False

    def _are_found_again(self, *, whatever_values: bool) -> bool:
        if not all(map(operator.is_, map(type, self.objects), self.kinds)):
            return False
        for read, holder, held in self.held:
            if read is list.copy and len(held) > FEW:
                if not same_items(cast("list[object]", holder), held):
                    return False
                continue
            now = read(holder)
            now = now if isinstance(now, list | tuple) else [*now]
            if len(now) != len(held) or not all(map(operator.is_, now, held)):
                return False
        if whatever_values:
            return True
        for find, value, found in self.values:  # noqa: SIM110 (A generator takes a call for each.)
            if find(value) != found:
                return False
        return True

    def are_same(self, others: LookFindings) -> bool:
        """Whether another look found the same, in other objects perhaps."""
        mine, theirs = self.constants, others.constants
        return (
            self.tokens == others.tokens
            and len(mine) == len(theirs)
            and all(a is b or identical(a, b) for a, b in zip(mine, theirs, strict=True))
        )


def same_root(root: object, other: object) -> bool:
    """Whether this is one object, or a tuple of the same ones."""
    return root is other or (type(root) is tuple is type(other) and identical(root, other))
