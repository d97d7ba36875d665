"""Indices of chosen samples: 32-bit ones as long as these are enough, made a stretch at a time.

An epoch of a hundred million samples has as many of them, and the first touch of their memory is most of what
choosing costs. So they are written once, to where they stay.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.scores import MANY, stretches

Ids = NDArray[np.int32 | np.int64]


def ids_for(count: int, size: int) -> Ids:
    """Memory for the indices of `count` of `size` samples.

    >>> ids_for(2, 10**9).dtype, ids_for(2, 10**10).dtype
    (dtype('int32'), dtype('int64'))
    """
    return np.empty(count, dtype=_kind(size))


def all_ids(size: int) -> Ids:
    """The indices of all samples.

    >>> all_ids(3).tolist()
    [0, 1, 2]
    """
    return np.arange(size, dtype=_kind(size))


def ids_where(is_chosen: NDArray[np.bool_]) -> Ids:
    """The indices of the samples for which a mask is true.

    >>> ids_where(np.array([True, False, True])).tolist()
    [0, 2]
    """
    ids, end = ids_for(int(np.count_nonzero(is_chosen)), len(is_chosen)), 0
    if len(is_chosen) >= MANY:
        from rekindle.choose.ids_kernel import indices_where

        indices_where(ids.dtype.name)(is_chosen, ids)
        return ids
    for part in stretches(len(is_chosen)):
        found = np.flatnonzero(is_chosen[part])
        np.add(found, part.start, out=ids[end : end + len(found)], casting="same_kind")
        end += len(found)
    return ids


def repeated(times: NDArray[np.int64], start: int, size: int) -> Ids:
    """The indices of samples from `start` on, each as many times as it says.

    >>> repeated(np.array([0, 2, 1]), 5, 10).tolist()
    [6, 6, 7]
    """
    if size < MANY:
        return as_ids(np.repeat(np.arange(start, start + len(times)), times), size)
    from rekindle.choose.ids_kernel import repeat_indices

    ids = ids_for(int(times.sum()), size)
    repeat_indices(ids.dtype.name)(times, start, ids)
    return ids


def as_ids(ids: NDArray[np.int64], size: int) -> Ids:
    """These indices of some of `size` samples, in as little memory."""
    return ids.astype(_kind(size), copy=False)


def _kind(size: int) -> type[np.int32 | np.int64]:
    return np.int32 if size < 1 << 31 else np.int64


def are_ascending(ids: NDArray[np.integer], *, strictly: bool = True) -> bool:
    """Whether each index is larger than the one before it (none comes twice then); or, not `strictly`, equal.

    >>> are_ascending(np.array([0, 2, 5])), are_ascending(np.array([0, 2, 2]))
    (True, False)
    """
    larger = np.greater if strictly else np.greater_equal
    parts = (ids[max(part.start - 1, 0) : part.stop] for part in stretches(len(ids)))
    return all(bool(larger(part[1:], part[:-1]).all()) for part in parts)
