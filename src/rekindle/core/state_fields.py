"""Reads the fields of a saved state, each checked before it is used: its type, range and length.

A state may come from anywhere, so nothing in it is believed. Reading it takes no more memory than the state
itself: a tensor that repeats one number a million times (a stride of 0) is refused.
"""

from __future__ import annotations

import math
import os
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import StateError

MOST = 2**62  # of anything that is counted: there is room to count on in 64 bits
MOST_EPOCHS = 2**30  # Scores and cache entries have 32 bits for an epoch.
MOST_RANKS = 2**20

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Entry = TypeVar("_Entry")
_SHOWN = 40  # characters of a string in a message
_DTYPES = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class StateFields:
    """One dictionary of a state; StateError names the field by its path (`sampler.start.numpy`)."""

    def __init__(self, state: object, path: str = "") -> None:
        if not isinstance(state, dict):
            where = path or "state"
            hint = ". Read the file with torch.load() first" if isinstance(state, str | os.PathLike) else ""
            raise StateError(f"{where}: expected what state_dict() gives, but got {shown(state)}{hint}")
        self._state, self._path = state, path

    def path(self, name: str) -> str:
        """The name of a field in messages."""
        return f"{self._path}.{name}" if self._path else name

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise the StateError that says what is wrong with a field."""
        raise StateError(f"{self.path(name)}: {problem}; was the state truncated or edited?")

    def get(self, name: str) -> Any:
        """A field as it is."""
        if name not in self._state:
            self.refuse(name, "missing from the state")
        return self._state[name]

    def inner(self, name: str) -> StateFields:
        """A dictionary in this one."""
        return StateFields(self.get(name), self.path(name))

    def names(self) -> list[str]:
        """The names of all fields."""
        for name in self._state:
            if not isinstance(name, str):
                self.refuse("", f"expected names of fields, but got {shown(name)}")
        return list(self._state)

    def integer(self, name: str, least: int = 0, most: int = MOST) -> int:
        """A field that is an integer in this range."""
        value = self.get(name)
        if type(value) is not int or not least <= value <= most:
            self.refuse(name, f"expected an integer from {least} to {most}, but got {shown(value)}")
        return value

    def boolean(self, name: str) -> bool:
        """A field that is a bool."""
        value = self.get(name)
        if type(value) is not bool:
            self.refuse(name, f"expected a bool, but got {shown(value)}")
        return value

    def entries(self, name: str, kind: type[_Entry], length: int | None = None) -> list[_Entry]:
        """A field that is a list of entries of one type."""
        value = self.get(name)
        right = type(value) is list and all(type(one) is kind for one in value)
        if not right or length not in (None, len(value)):
            count = "" if length is None else f"{length} times "
            self.refuse(name, f"expected a list of {count}{kind.__name__}, but got {shown(value)}")
        return list(value)

    def seconds(self, name: str, length: int) -> list[float]:
        """A field that is a list of durations."""
        values = self.entries(name, float, length)
        if not all(math.isfinite(one) and one >= 0 for one in values):
            self.refuse(name, f"expected finite numbers from 0 on, but got {values}")
        return values

    def array(
        self, name: str, dtype: np.dtype[_Scalar], length: int | None = None, *, within: str = ""
    ) -> NDArray[_Scalar]:
        """A field that is a 1-D tensor, as an array of its own; `within` names whatever sets the length."""
        try:
            values = vector(self.get(name), _DTYPES[dtype])
        except TypeError as error:
            self.refuse(name, str(error))
        if length is not None and len(values) != length:
            self.refuse(name, f"{len(values)} entries, but {length} {within or 'are expected'}")
        array: NDArray[_Scalar] = values.numpy().copy()
        return array


def vector(value: object, dtype: torch.dtype) -> torch.Tensor:
    """A 1-D tensor of this type in the memory of the host, dense in it; TypeError if `value` is none."""
    if (
        not isinstance(value, torch.Tensor)
        or value.layout is not torch.strided
        or value.dtype is not dtype
        or value.dim() != 1
    ):
        raise TypeError(f"expected a 1-D tensor of {dtype}, but got {shown(value)}")
    if value.device.type == "meta" or value.is_neg() or not value.is_contiguous():
        raise TypeError(f"expected a tensor that holds its numbers, but got {shown(value)} without them")
    needed = (value.storage_offset() + len(value)) * value.element_size()
    if value.untyped_storage().nbytes() < needed:
        raise TypeError(f"{shown(value)} is larger than its memory")
    return value.detach().cpu()


def shown(value: object) -> str:
    """A value in a message: short, whatever it is.

    >>> shown(-1), shown(10**30), shown([1, 2])
    ('-1', 'an integer of 100 bits', 'a list of 2 entries')
    """
    if value is None or type(value) in (bool, float):
        return repr(value)
    if type(value) is int:
        bits = value.bit_length()
        return repr(value) if bits <= 64 else f"an integer of {bits} bits"
    if isinstance(value, str | bytes):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN]) + "…" * (len(value) > _SHOWN)
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    if isinstance(value, dict | list | tuple | set):
        return f"a {type(value).__name__} of {len(value)} entries"
    return f"a {type(value).__name__}"
