"""Whether a data set has changed since workers got their copies of it.

With `persistent_workers=False`, torch starts new workers for every epoch, and users count on that: they call
`dataset.set_epoch(…)` or exchange a transform between epochs. We keep workers, so we look.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch

_DEEP = 4  # levels of objects within objects
_LONG = 64  # of a container, or places looked at in an array
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def fingerprint(value: Any, depth: int = _DEEP) -> object:
    """Something that differs if the data set was changed in a way that can be seen at a glance.

    Looks at attributes, and at theirs, and at up to 64 places of every container and array. A change
    elsewhere in one that is longer goes unnoticed.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, np.ndarray):
        return id(value), value.shape, _some_bytes(value)
    kind = type(value)
    if depth == 0:
        return kind, id(value)
    if isinstance(value, dict | list | tuple):
        return kind, id(value), len(value), _some_parts(value, depth - 1)
    attributes = getattr(value, "__dict__", None)
    if attributes:
        # A copy, so that a data set that fills itself while we look does no harm.
        return kind, id(value), fingerprint(dict(attributes), depth - 1)[2:]  # type: ignore[index]
    return kind, id(value)


def _some_parts(container: dict[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> tuple[object, ...]:
    """All parts of a short container, some from everywhere in a long one."""
    stride = max(1, len(container) // _LONG)
    if isinstance(container, dict):
        some: Any = islice(container.items(), 0, None, stride)
        return tuple((fingerprint(key, 0), fingerprint(part, depth)) for key, part in some)
    return tuple(fingerprint(part, depth) for part in container[::stride])


def _some_bytes(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.hasobject or array.size == 0:
        return b""
    return array.flat[:: max(1, array.size // _LONG)].tobytes()
