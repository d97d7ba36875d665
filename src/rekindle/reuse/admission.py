"""Which samples a cache that is too small keeps: those that save the most work."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from rekindle.choose.refurbish_sequence import CostsOf
from rekindle.core import counter_rng
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.reuse.cache.admission_rule import MAX_FLAGS
from rekindle.reuse.cache.store import Store
from rekindle.reuse.split_dataset import NativeSplit, Split
from rekindle.reuse.split_search import few_samples, loadable_parts

_LARGEST_OF = 8  # samples, by which it is judged how many fit


def admit(
    store: Store, split: Split, seed: int, find_costs: Callable[[int], CostsOf | None], *, stacklevel: int
) -> None:
    """Have a store in memory keep the costliest samples, if not all fit: by what `find_costs` gives.

    Of millions of samples, it is a random share: looking at the cost of each would take as long as an epoch.
    How large a cached part is, is known where all have one size; otherwise the largest of a few tells.
    """
    size, capacity = store.size, store.capacity
    if not size or capacity is None:
        return
    largest = _largest_part(store, split, seed)
    fit = capacity // max(largest, 1)
    if fit >= size:
        return
    if size > MAX_FLAGS:
        store.admit_share(fit / size, seed)
    else:
        order = counter_rng.permutation(size, seed, 0)  # By chance: a folder begins with one class.
        costs_of = find_costs(size)
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


def _largest_part(store: Store, split: Split, seed: int) -> int:
    """How many bytes a cached part takes: exactly, where all are alike, or the most of a few."""
    example = split.example_part() if isinstance(split, NativeSplit) and store.codec.name == "raw" else None
    if example is not None:
        return store.nbytes_of(example)
    with generators_kept(GENERATORS):
        parts = loadable_parts(split, few_samples(store.size, _LARGEST_OF, seed)).values()
        return max(map(store.nbytes_of, parts), default=0)
