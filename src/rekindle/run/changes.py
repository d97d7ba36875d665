"""Whether a data set has changed since workers got their copies of it.

With `persistent_workers=False`, torch starts new workers for every epoch, and users count on that: they call
`dataset.set_epoch(…)` or exchange a transform between epochs. We keep workers, so we look.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_DEEP = 4  # levels of objects within objects
_LONG = 64  # of a container, or places looked at in an array
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def fingerprint(value: Any, depth: int = _DEEP) -> object:
    """Something that differs if the data set was changed in a way that can be seen at a glance.

    Looks at attributes, and at theirs, at short containers and at some places of arrays. A change to one
    element of a large list or array goes unnoticed.
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
    if isinstance(value, dict):
        inner: Any = value.items() if len(value) <= _LONG else ()
        parts = [(fingerprint(k, 0), fingerprint(v, depth - 1)) for k, v in inner]
        return kind, id(value), len(value), tuple(parts)
    if isinstance(value, list | tuple):
        inner = value if len(value) <= _LONG else ()
        return kind, id(value), len(value), tuple(fingerprint(part, depth - 1) for part in inner)
    attributes = getattr(value, "__dict__", None)
    if attributes:
        # A copy, so that a data set that fills itself while we look does no harm.
        return kind, id(value), fingerprint(dict(attributes), depth - 1)[2:]  # type: ignore[index]
    return kind, id(value)


def _some_bytes(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.hasobject or array.size == 0:
        return b""
    return array.flat[:: max(1, array.size // _LONG)].tobytes()
