"""Which samples a cache that is too small keeps: those that save the most work."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.reuse.cache.store import Store
from rekindle.reuse.split_dataset import NativeSplit, Split
from rekindle.reuse.split_search import loadable_parts

_LARGEST_OF = 8  # samples, by which it is judged how many fit


def admit(
    store: Store, split: Split, seed: int, costs: NDArray[np.float32] | None, *, stacklevel: int
) -> float:
    """Have a store in memory keep the costliest samples, if not all fit; returns the share that fits.

    How large a cached part is, is known where all have one size; otherwise the largest of a few tells.
    """
    size, capacity = store.size, store.stats.capacity
    if not size or capacity is None:
        return 1.0
    order = counter_rng.permutation(size, seed, 0)  # Among equals, by chance: a folder begins with one class.
    largest = _largest_part(store, split, order)
    fit = capacity // max(largest, 1)
    if fit >= size:
        return 1.0
    if costs is not None:
        order = order[np.argsort(-costs[order], kind="stable")]
    wanted = np.zeros(size, dtype=bool)
    wanted[order[:fit]] = True
    store.admit(wanted)
    if capacity:  # A capacity of 0 was the user's wish.
        warnings.warn(
            f"the cache has room for {fit:,} of {size:,} samples ({fit / size:.0%}), {largest:,} bytes each: "
            "those that take the longest are kept. Give it more memory, a folder on disk, or a codec.",
            stacklevel=stacklevel + 1,
        )
    return fit / size


def _largest_part(store: Store, split: Split, order: NDArray[np.int64]) -> int:
    """How many bytes a cached part takes: exactly, where all are alike, or the most of the first few."""
    example = split.example_part() if isinstance(split, NativeSplit) and store.codec.name == "raw" else None
    if example is not None:
        return store.nbytes_of(example)
    with generators_kept(GENERATORS):
        parts = loadable_parts(split, order[:_LARGEST_OF].tolist()).values()
        return max(map(store.nbytes_of, parts), default=0)
