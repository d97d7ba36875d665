"""Whether a list still holds the very objects that it held, found out without touching any of them.

To take each of many objects in hand changes its reference count: a forked worker would get a copy of its own
of all the memory that they lie on. A list is an array of addresses; here that is compared as bytes, twenty
times as fast.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

_POINTER = ctypes.sizeof(ctypes.c_void_p)
# In CPython, a list is its head, the address of its items, and for how many there is room; a tuple its head
# and then the items.
_ADDRESS_IN_LIST = list.__basicsize__ - 2 * _POINTER
_ITEMS_IN_TUPLE = tuple.__basicsize__
FEW = 128  # items, which are compared sooner one by one


def identical(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether these are the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def same_items(value: list[object], held: Sequence[object]) -> bool:
    """Whether a list, of whatever subclass, consists of these objects, in this order."""
    compare = _compare_bytes() if len(held) > FEW and type(held) is tuple else None
    if compare is None:
        return identical(list.copy(value), held)
    return _are_equal(compare, value, held)


def _are_equal(
    compare: Callable[[object, int, int], int], value: list[object], held: Sequence[object]
) -> bool:
    # The address is read from the list by the call that uses it. No other thread can shorten the list
    # between the two calls: they are made by C code, which keeps the GIL.
    address = ctypes.c_void_p.from_address(id(value) + _ADDRESS_IN_LIST)
    calls = (
        functools.partial(list.__len__, value),
        functools.partial(compare, address, id(held) + _ITEMS_IN_TUPLE, len(held) * _POINTER),
    )
    return all(map(operator.eq, map(operator.call, calls), (len(held), 0)))


@functools.cache
def _compare_bytes() -> Callable[[object, int, int], int] | None:
    """The C function that compares memory, called with the GIL; None where lists may look otherwise."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    if list.__basicsize__ != 5 * _POINTER or tuple.__basicsize__ not in (3 * _POINTER, 4 * _POINTER):
        return None
    try:
        compare = ctypes.PyDLL(None).memcmp
    except (TypeError, OSError, AttributeError):  # Windows has no such handle of the program.
        return None
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    some = [object() for _ in range(FEW)]
    right = _are_equal(compare, some, tuple(some)) and not _are_equal(compare, some[::-1], tuple(some))
    return compare if right else None


def all_values(dictionaries: Iterable[dict[object, object]]) -> Iterable[object]:
    """The values of all of these."""
    return chain.from_iterable(map(dict.values, dictionaries))


def lengths(containers: Iterable[Any]) -> list[int]:
    """How many items each of these has."""
    return [*map(len, containers)]
