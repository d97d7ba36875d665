"""What a worker has in place of a long list, where the dataset's code is proven only to read items of it."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from sys import getrefcount
from threading import Lock
from typing import Any, SupportsIndex

from rekindle.core.plain_values import plain_values
from rekindle.core.shared_list import FORMAT, SharedRows, position_in

_MOST_LENT = 512  # elements that are kept as objects, before those are dropped that nobody refers to


class ListStandIn:
    """Gives items, the length and whether something is contained, exactly as the list would."""

    def __init__(self, rows: SharedRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows.count

    def __getitem__(self, index: SupportsIndex | slice) -> object:
        if isinstance(index, slice):
            return [*map(self._item, range(*index.indices(self._rows.count)))]
        return self._item(position_in(self._rows.count, index))

    def __iter__(self) -> Iterator[object]:
        return map(self._item, range(self._rows.count))

    def __contains__(self, value: object) -> bool:
        return any(item is value or item == value for item in self)

    def __reduce__(self) -> tuple[type, tuple[list[object]]]:
        return list, ([*self],)

    def _item(self, number: int) -> object:
        return self._rows.load(number)


class MutableStandIn(ListStandIn):
    """The same for elements that code may change: a change lasts, and who has an element has *the* element.

    An element is an object from the time that it is asked for until nobody else refers to it, or to a list or
    dict in it, any more; if it has changed by then, for ever.
    """

    def __init__(self, rows: SharedRows) -> None:
        super().__init__(rows)
        self._lock = Lock()
        self._lent: dict[int, Any] = {}
        self._changed: dict[int, object] = {}

    def _item(self, number: int) -> object:
        with self._lock:
            if number in self._changed:
                return self._changed[number]
            if number not in self._lent:
                if len(self._lent) >= _MOST_LENT:
                    self._take_back()
                self._lent[number] = self._rows.load(number)
            return self._lent[number]

    def _take_back(self) -> None:
        """Drop what nobody refers to; if that is less than half, allow for more at once, next time."""
        kept: dict[int, Any] = {}
        lent, self._lent = self._lent, kept
        for number in [*lent]:
            value = [lent.pop(number)]
            if _is_held(value):
                kept[number] = value[0]
            elif (  # An array, say, that was put into a dict; its bytes would be those of `bytes`.
                plain_values(value, owned=False) is None
                or marshal.dumps(value[0], FORMAT) != self._rows.row(number)
            ):
                self._changed[number] = value[0]
        if len(kept) > _MOST_LENT // 2:
            self._changed.update(kept)
            kept.clear()


def _is_held(values: Any) -> bool:
    """Whether any list, dict or tuple among these, or within them, is referred to from elsewhere."""
    return any(
        type(value) in (list, dict, tuple)
        and value != ()
        and (getrefcount(value) > _ALONE or _is_held(value.values() if type(value) is dict else value))
        for value in values
    )


def _references_of_one_owner() -> int:
    """What `_is_held` counts for an element that nothing but its container refers to."""
    alone: list[list[int]] = [[]]
    return next(getrefcount(value) for value in alone)


_ALONE = _references_of_one_owner()
