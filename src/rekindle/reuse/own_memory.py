"""Values in memory of their own: what a dataset does to its arrays after a call is not done to the result.

The last steps see the result of the first ones only when the dataset has gone on: to fill the same buffer
with a second view, say. So what is in the memory of an argument is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from rekindle.core.samples import Sample
from rekindle.prepare.rgb import is_pillow

_Range: TypeAlias = tuple[int, int]  # of addresses


def apart_from(given: Sample, value: Sample) -> Sample:
    """The value, without anything in the memory of what was given."""
    leaves = [*_leaves(given)]
    ranges = [place for place in map(_range_of, leaves) if place is not None]
    return _apart(value, [id(leaf) for leaf in leaves if is_pillow(leaf)], ranges)


def _leaves(value: Sample) -> Iterator[Sample]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _range_of(value: Sample) -> _Range | None:
    if isinstance(value, np.ndarray):
        return byte_bounds(value)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu":
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return None


def _apart(value: Sample, images: list[int], ranges: list[_Range]) -> Sample:
    kind = type(value)
    if kind is dict:
        return {key: _apart(part, images, ranges) for key, part in value.items()}
    if kind in (list, tuple):
        return kind([_apart(part, images, ranges) for part in value])
    if is_pillow(value):  # One that is made of an array may be in its memory.
        shared = id(value) in images or (bool(ranges) and bool(getattr(value, "readonly", 0)))
        return value.copy() if shared else value
    place = _range_of(value) if ranges else None
    if place is None or not any(place[0] < end and start < place[1] for start, end in ranges):
        return value
    return value.clone() if isinstance(value, torch.Tensor) else value.copy()
