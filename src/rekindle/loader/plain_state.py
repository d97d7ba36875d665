"""What users' own `state_dict`s may hold in a checkpoint: what `torch.load(…, weights_only=True)` reads."""

from __future__ import annotations

from collections import OrderedDict

import torch

from rekindle.errors import StateError

_PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor)
_DICTS = (dict, OrderedDict)  # the latter is what `torch.nn.Module.state_dict` gives


def check_plain(value: object, where: str, prefix: str = "") -> None:
    """StateError, which begins with the `prefix`, unless a value consists of numbers, strings and tensors."""
    if type(value) in _DICTS:
        for key, part in value.items():  # type: ignore[attr-defined]
            check_plain(key, f"a key of {where}", prefix)
            check_plain(part, f"{where}[{key!r}]", prefix)
    elif type(value) in (list, tuple):
        for number, part in enumerate(value):  # type: ignore[arg-type]
            check_plain(part, f"{where}[{number}]", prefix)
    elif type(value) not in _PLAIN:
        raise StateError(
            f"{prefix}{where} is a {type(value).__module__}.{type(value).__qualname__}, but a checkpoint "
            "holds numbers, strings, bytes and tensors in dicts, lists, tuples. Let state_dict() give those."
        )


def is_same(one: object, other: object) -> bool:
    """Whether two plain values are equal: of one type, and NaN where the other is."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(part, other[key]) for key, part in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if (one.dtype, one.device, one.shape) != (other.dtype, other.device, other.shape):
            return False
        return torch.equal(one, other) or bool(((one == other) | (one != one) & (other != other)).all())
    return bool(one == other) or (one != one and other != other)
