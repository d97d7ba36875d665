"""NumPy dtypes as text and back, without pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from rekindle.reuse.cache.record import UnknownTypeError

# JSON has no tuples: lists stand for them.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | None"


@lru_cache(maxsize=256)
def dtype_to_text(dtype: np.dtype[np.generic]) -> str:
    """The text that `text_to_dtype` makes the same dtype of; UnknownTypeError if there is none."""
    description = None if dtype.hasobject else json.dumps(dtype_to_descr(dtype))
    if description is None or text_to_dtype(description) != dtype:
        raise UnknownTypeError(f"an array of {dtype!r} cannot be cached: its elements are not plain bytes.")
    return description


@lru_cache(maxsize=256)
def text_to_dtype(text: str) -> np.dtype[np.generic]:
    """The dtype that this text describes; never one of objects, whose bytes would be taken for pointers."""
    dtype: np.dtype[np.generic] = descr_to_dtype(_with_tuples(json.loads(text)))
    if dtype.hasobject:
        raise ValueError(f"arrays of objects are not read from a cache: {text}")
    return dtype


def _with_tuples(description: Json, *, field: bool = False) -> Any:
    """A dtype's description as NumPy wants it: fields, titles and shapes are tuples."""
    if not isinstance(description, list):
        return description
    if field:
        name, kind, *shape = description
        title_and_name = tuple(name) if isinstance(name, list) else name
        return (title_and_name, _with_tuples(kind), *(tuple(one) for one in shape))
    last = description[-1] if len(description) == 2 else None
    if isinstance(last, list) and all(isinstance(one, int) for one in last):
        return (_with_tuples(description[0]), tuple(last))
    return [_with_tuples(one, field=True) for one in description]
