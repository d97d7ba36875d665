"""What was looked at and lies where other processes see it change: shared memory, and what a manager holds.

Workers that persist keep their own copies of all else, whatever the script makes of it.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import xxhash

from rekindle.core.analysis.look import Look
from rekindle.core.analysis.look_at_values import CONTENTS
from rekindle.core.analysis.look_findings import Finder
from rekindle.core.analysis.object_state import attributes_of
from rekindle.core.forked_memory import is_any_shared
from rekindle.core.interrupts import is_interrupt

if TYPE_CHECKING:
    from multiprocessing.managers import BaseProxy


class SharedValues:
    """The values of these, as they were when the `looks` were taken.

    Attributes that are `written` are left out: the code of the script changes them itself.
    """

    def __init__(self, *looks: Look, written: frozenset[str] = frozenset()) -> None:
        found = [look._found for look in looks]
        own = {*chain.from_iterable(_own(value, written) for one in found for value in one.objects)}
        memory = (
            entry
            for one in found
            for entry in one.values
            if entry[0] in CONTENTS and id(entry[1]) not in own and _is_shared(entry[1])
        )
        values = [value for one in found for value in one.objects if id(value) not in own]
        proxies = filter(_is_proxy, values)
        self._found: list[tuple[Finder, Any, object]] = [
            *memory,
            *((_managers_value, proxy, _managers_value(proxy)) for proxy in proxies),
        ]

    def were_changed(self) -> bool:
        """Whether any of them is another by now."""
        return any(find(value) != found for find, value, found in self._found)


def _own(value: object, written: frozenset[str]) -> Iterator[int]:
    """The ids of an object's attributes with one of these names."""
    if not written or issubclass(type(value), type):
        return
    for name, attribute in attributes_of(value, type(value)) or ():
        if name in written:
            yield id(attribute)


def _is_shared(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        address = value.data_ptr()
    elif hasattr(value, "__array_interface__"):
        address = value.__array_interface__["data"][0]
    else:
        address = ctypes.addressof(value)
    return is_any_shared([address])


def _is_proxy(value: object) -> TypeGuard[BaseProxy]:
    managers = sys.modules.get("multiprocessing.managers")  # Who has a proxy has imported it.
    return managers is not None and issubclass(type(value), managers.BaseProxy)


def _managers_value(proxy: BaseProxy) -> object:
    """A digest of what a manager's process holds for a proxy; None if that cannot be had."""
    try:
        return xxhash.xxh3_128_digest(pickle.dumps(proxy._getvalue()))
    except Exception as error:  # The manager has ended, or has an object that cannot be sent.
        if is_interrupt(error):
            raise
        return None
