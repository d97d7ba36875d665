"""Values that a sampler keeps, as plain data that a checkpoint can hold: numbers, containers, generators.

A plain value stands for itself; anything else is a pair of what it is and its content.
"""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch

from rekindle.core.analysis.object_state import GENERATORS
from rekindle.core.generator_states import WORDS, check_torch, check_twister
from rekindle.core.interrupts import is_interrupt
from rekindle.core.public_rng import NumPyGenerator, PythonGenerator
from rekindle.core.state_fields import shown

Value: TypeAlias = Any  # whatever a sampler keeps, or as plain data what is in a state

PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_SEQUENCES: dict[str, Callable[[list[Value]], Value]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque
}  # fmt: skip
DICTS = (dict, OrderedDict, defaultdict)
_MOST_LEVELS = 8
_MOST_BYTES = 2**27
_ONE = 2**13  # bytes that take as long to copy as to begin with an array or a container
_ROW = 2**8  # bytes that take as long to copy as a short list
_ROWS = "rows"  # lists, or tuples, of plain values, which are copied and compared all at once
_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}


class NotPlainError(Exception):
    """A value that a checkpoint cannot hold."""


def encoded(value: object) -> Value:
    """A value as plain data, which shares nothing with it; NotPlainError if it cannot be had so."""
    return _Encoding().one(value)


class _Encoding:
    """One value on its way: not too deep, and not too large, for it is copied in every epoch."""

    def __init__(self) -> None:
        self._left = _MOST_BYTES

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise NotPlainError

    def one(self, value: Value, level: int = 0) -> Value:
        kind = type(value)
        if kind in PLAIN:
            return value
        if level > _MOST_LEVELS:
            raise NotPlainError
        if kind in _SEQUENCES.values():
            self._spend(_ONE)
            return kind.__name__, self.all(value, level)
        if kind in DICTS:
            self._spend(_ONE)
            return "dict", [self.all(dict.keys(value), level), self.all(dict.values(value), level)]
        try:
            if kind is np.ndarray or issubclass(kind, np.generic):
                self._spend(value.nbytes + _ONE)
                name = "array" if kind is np.ndarray else "scalar"
                return name, torch.from_numpy(np.array(value))
            if is_array(value) and not value.requires_grad:  # That would be a model's.
                self._spend(value.nbytes + _ONE)
                return "tensor", value.detach().clone()
            if issubclass(kind, GENERATORS):
                return _encoded_generator(value)
        except Exception as error:  # A generator may be of a class of the script's.
            if is_interrupt(error):
                raise
            raise NotPlainError from error
        raise NotPlainError

    def all(self, values: Collection[Value], level: int) -> Value:
        self._spend(8 * len(values))
        if set(map(type, values)) <= PLAIN:
            return [*values]
        if _are_rows(values):
            copied = sum(type(row) is list for row in values)
            self._spend(8 * sum(map(len, values)) + _ROW * copied)
            return _ROWS, _copied_rows(values)
        return [self.one(value, level + 1) for value in values]


def is_array(value: Value) -> bool:
    """Whether this is an array or a tensor that can be copied."""
    if type(value) is not torch.Tensor:
        return type(value) is np.ndarray
    return value.device.type == "cpu" and value.layout is torch.strided


def _are_rows(values: Collection[Value]) -> bool:
    if {*map(type, values)} not in ({list}, {tuple}):
        return False
    return set(map(type, chain.from_iterable(values))) <= PLAIN


def _copied_rows(rows: Collection[Value]) -> list[Value]:
    return [row.copy() if type(row) is list else row for row in rows]


def _encoded_generator(value: object) -> tuple[str, Value]:
    if isinstance(value, np.random.Generator):
        if type(value.bit_generator).__name__ not in _BIT_GENERATORS:
            raise NotPlainError
        return "numpy Generator", _without_arrays(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return "numpy RandomState", NumPyGenerator(value).save_tensor()
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return "torch Generator", value.get_state()
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return "Random", PythonGenerator(value).save_tensor()
    raise NotPlainError


def _without_arrays(state: Value) -> Value:
    if isinstance(state, dict):
        return {name: _without_arrays(part) for name, part in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def same(one: Value, other: Value) -> bool:
    """Whether two encoded values are equal."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is torch.Tensor:
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return torch.equal(_bytes(one), _bytes(other))
    if kind is list or kind is tuple:
        if len(one) != len(other):
            return False
        if kind is tuple and one[0] == other[0] == _ROWS:
            return bool(one[1] == other[1])
        kinds = {*map(type, one)}
        if kinds <= PLAIN:
            return bool(one == other)
        return all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def decoded(value: Value, level: int = 0) -> Value:
    """The value that was encoded, of a generator its state; ValueError or TypeError if this is none."""
    if type(value) in PLAIN:
        return value
    if type(value) is not tuple or len(value) != 2 or level > _MOST_LEVELS + 1:
        raise ValueError(f"expected a value that a sampler keeps, but got {shown(value)}")
    kind, content = value
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_all_decoded(content, level))
    if kind == "dict":
        keys, values = content
        return dict(zip(_all_decoded(keys, level), _all_decoded(values, level), strict=True))
    if kind in ("array", "scalar", "tensor"):
        return _decoded_array(kind, content)
    return _checked_generator_state(kind, content)


def _all_decoded(values: Value, level: int) -> list[Value]:
    if type(values) is tuple:
        name, rows = values
        if name != _ROWS or type(rows) is not list or not _are_rows(rows):
            raise ValueError(f"expected lists or tuples of plain values, but got {shown(rows)}")
        return _copied_rows(rows)
    if type(values) is not list:
        raise ValueError(f"expected a list, but got {shown(values)}")
    if set(map(type, values)) <= PLAIN:
        return [*values]
    return [decoded(value, level + 1) for value in values]


def _decoded_array(kind: str, content: Value) -> Value:
    if type(content) is not torch.Tensor or content.layout is not torch.strided:
        raise TypeError(f"expected a tensor, but got {shown(content)}")
    if content.device.type == "meta" or content.numel() * content.element_size() > max(
        content.untyped_storage().nbytes(), 1
    ):
        raise ValueError(f"{shown(content)} is larger than its memory")
    copied = content.detach().cpu().clone()
    if kind == "tensor":
        return copied
    return copied.numpy() if kind == "array" else copied.numpy()[()]


def _checked_generator_state(kind: Value, content: Value) -> Value:
    if kind == "torch Generator":
        return check_torch(content).clone()
    if kind == "Random":
        PythonGenerator().check_tensor(content)
    elif kind == "numpy RandomState":
        NumPyGenerator().check_tensor(content)
    elif kind == "numpy Generator":
        return _checked_bits(content)
    else:
        raise ValueError(f"there is no kind of value {shown(kind)}")
    return content.detach().cpu().clone()


def _checked_bits(state: Value) -> dict[str, Value]:
    """The state of a bit generator of NumPy's, each of whose numbers it takes as it is."""
    name = state.get("bit_generator") if type(state) is dict else None
    if name not in _BIT_GENERATORS:
        raise ValueError(f"expected the state of a bit generator, but got {shown(state)}")
    try:
        other = _BIT_GENERATORS[name](0)
        other.state = state
        taken = _without_arrays(other.state)
    except Exception as error:
        raise ValueError(f"a {name} cannot take this state: {error}") from error
    if not same([*_flat(taken)], [*_flat(state)]):
        raise ValueError(f"a {name} cannot have this state")
    if name == "MT19937":
        check_twister(np.array([*state["state"]["key"], state["state"]["pos"]], dtype=np.float64))
        assert len(state["state"]["key"]) == WORDS
    elif not 0 <= state.get("buffer_pos", 0) <= 4:
        raise ValueError(f"expected a position from 0 to 4, but got {shown(state['buffer_pos'])}")
    return taken  # type: ignore[no-any-return]


def _flat(state: Value) -> Value:
    if isinstance(state, dict):
        for name in sorted(state):
            yield name
            yield from _flat(state[name])
    elif isinstance(state, list):
        yield from state
    else:
        yield state


def restored(value: Value, now: object, *, in_place: bool) -> object:
    """The value that was encoded, to stand where `now` does: that object itself, if it can be made so.

    Generators always are, and with `in_place` what may be held elsewhere too: containers, arrays, tensors.
    """
    content = decoded(value)
    if type(value) is not tuple:
        return content
    if value[0] in _NEW_GENERATORS:
        return _generator(value[0], content, now)
    target: Value = now
    is_same_kind = type(target) is type(content)
    if (type(target) in DICTS and value[0] == "dict") or (type(target) is deque and is_same_kind):
        target = target if in_place else target.copy()  # It may have an order, a default or a length.
        target.clear()
        (target.extend if type(target) is deque else target.update)(content)
        return target
    if not (in_place and is_same_kind):
        return content
    if type(target) is list:
        target[:] = content
    elif type(target) is set:
        target.clear()
        target.update(content)
    elif _is_like(target, content):
        target[...] = content
    else:
        return content
    return target


def _is_like(array: Value, other: Value) -> bool:
    if type(array) is torch.Tensor:
        return array.dtype == other.dtype and array.shape == other.shape and not array.requires_grad
    is_array = type(array) is np.ndarray and array.flags.writeable
    return is_array and array.dtype == other.dtype and array.shape == other.shape


_NEW_GENERATORS: dict[str, Callable[[], Value]] = {
    "torch Generator": torch.Generator,
    "Random": random.Random,
    "numpy RandomState": np.random.RandomState,
    "numpy Generator": np.random.default_rng,
}


def _generator(kind: str, state: Value, now: object) -> object:
    """The generator that is there, in a saved state; another one, if that is of another kind."""
    generator: Value = now if isinstance(now, GENERATORS) else _NEW_GENERATORS[kind]()
    if kind == "numpy Generator":
        bits = _BIT_GENERATORS[state["bit_generator"]]
        if not isinstance(generator, np.random.Generator) or type(generator.bit_generator) is not bits:
            generator = np.random.Generator(bits(0))
        generator.bit_generator.state = state
        return generator
    if not isinstance(generator, type(_NEW_GENERATORS[kind]())):
        generator = _NEW_GENERATORS[kind]()
    if kind == "torch Generator":
        generator.set_state(state)
    elif kind == "Random":
        PythonGenerator(generator).restore_tensor(state)
    else:
        NumPyGenerator(generator).restore_tensor(state)
    return generator
