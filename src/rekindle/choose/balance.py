"""Cache-aware shuffle: every batch has the same share of the work.

Samples that must be computed anew cost far more than cached ones. In a plain shuffle their number swings from
batch to batch, and the accelerator waits for the batches that have many. Here they are spread evenly: every
batch, and every part of one, gets the same number of them (give or take one), and if it is known what each
costs, every batch gets about the same sum of costs. Which samples meet in a batch is random otherwise.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rekindle import keys


def balanced_order(
    fresh: NDArray[np.bool_],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    costs: NDArray[np.float32] | None = None,
    world: int = 1,
) -> NDArray[np.int64]:
    """The places of samples, in an order whose batches each have the same share of the `fresh` ones.

    `costs` says what each sample costs to compute; without it, only numbers are balanced. The order is dealt
    to `world` ranks in turn, in batches of `batch_size`, and the batches of all ranks are alike.
    """
    size = len(fresh)
    shuffled = keys.permutation(size, seed, epoch)
    is_fresh = fresh[shuffled]
    misses, hits = shuffled[is_fresh], shuffled[~is_fresh]
    by_rank = np.concatenate([np.arange(rank, size, world) for rank in range(world)])
    # Of the first n places, rank by rank, ⌊n · misses / size⌋ are for misses.
    before = np.arange(size + 1) * len(misses) // max(size, 1)
    for_misses = before[1:] > before[:-1]
    if costs is not None:
        misses = misses[_dealt(costs[misses], before[_batch_ends(size, batch_size, world)])]
    order = np.empty(size, dtype=np.int64)
    order[by_rank[for_misses]], order[by_rank[~for_misses]] = misses, hits
    return order


def _batch_ends(size: int, batch_size: int, world: int) -> NDArray[np.int64]:
    """Where batches end, if the places of one rank come after those of the other."""
    starts = np.cumsum([0, *(len(range(rank, size, world)) for rank in range(world))])
    ends = [np.arange(start + batch_size, stop, batch_size) for start, stop in pairwise(starts)]
    return np.unique(np.concatenate([*ends, starts[1:]]))


def _dealt(costs: NDArray[np.float32], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Samples in an order that makes costs add up alike in stretches that end at `ends`.

    Samples come in random order and are dealt in rounds of one for each stretch; in each round the dearest
    goes to the stretch that has had the least so far.
    """
    shares = np.diff(ends, prepend=0)
    rounds = int(shares.max(initial=0))
    dealt = np.empty(len(costs), dtype=np.int64)
    sums, counts = np.zeros(len(shares)), np.zeros(len(shares), dtype=np.int64)
    start = 0
    for number in range(rounds):
        # A stretch with a smaller share sits out some rounds, evenly spread.
        due = (number + 1) * shares // rounds
        takers = np.flatnonzero(due > counts)
        poorest = takers[np.argsort(sums[takers] / np.maximum(counts[takers], 1), kind="stable")]
        given = start + np.argsort(-costs[start : start + len(takers)], kind="stable")
        dealt[ends[poorest] - shares[poorest] + counts[poorest]] = given
        sums[poorest] += costs[given]
        counts = due
        start += len(takers)
    return dealt
