"""Which samples a cache that is too small keeps: those that save the most work."""

from __future__ import annotations

import warnings

import numpy as np

from rekindle.choose.refurbish_sequence import CostsOf
from rekindle.core import counter_rng
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.reuse.cache.admission_rule import MAX_FLAGS
from rekindle.reuse.cache.store import Store
from rekindle.reuse.split_dataset import NativeSplit, Split
from rekindle.reuse.split_search import few_samples, loadable_parts

_LARGEST_OF = 8  # samples, by which it is judged how many fit


def admit(store: Store, split: Split, seed: int, costs_of: CostsOf | None, *, stacklevel: int) -> float:
    """Have a store in memory keep the costliest samples, if not all fit; returns the share that fits.

    Of millions of samples, it is a random share: looking at the cost of each would take as long as an epoch.
    How large a cached part is, is known where all have one size; otherwise the largest of a few tells.
    """
    size, capacity = store.size, store.capacity
    if not size or capacity is None:
        return 1.0
    largest = _largest_part(store, split, few_samples(size, _LARGEST_OF, seed))
    fit = capacity // max(largest, 1)
    if fit >= size:
        return 1.0
    if size > MAX_FLAGS:
        store.admit_share(fit / size, seed)
    else:
        order = counter_rng.permutation(size, seed, 0)  # By chance: a folder begins with one class.
        if costs_of is not None:
            order = order[np.argsort(-costs_of(order), kind="stable")]
        wanted = np.zeros(size, dtype=bool)
        wanted[order[:fit]] = True
        store.admit(wanted)
    if capacity:  # A capacity of 0 was the user's wish.
        which = "those that take the longest are kept" if size <= MAX_FLAGS else "a random share is kept"
        warnings.warn(
            f"the cache has room for {fit:,} of {size:,} samples ({fit / size:.0%}), {largest:,} bytes each: "
            f"{which}. Give it more memory, a folder on disk, or a codec.",
            stacklevel=stacklevel + 1,
        )
    return fit / size


def _largest_part(store: Store, split: Split, some: list[int]) -> int:
    """How many bytes a cached part takes: exactly, where all are alike, or the most of the first few."""
    example = split.example_part() if isinstance(split, NativeSplit) and store.codec.name == "raw" else None
    if example is not None:
        return store.nbytes_of(example)
    with generators_kept(GENERATORS):
        parts = loadable_parts(split, some).values()
        return max(map(store.nbytes_of, parts), default=0)
