"""Cache-aware shuffle: every batch has the same share of the work.

Samples that must be computed anew cost far more than cached ones. In a plain shuffle their number swings from
batch to batch, and the accelerator waits for the batches that have many. Here every batch gets the same
number of them (give or take one), and if it is known what each costs, about the same sum of costs. Which
samples meet in a batch is random otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle import keys

_WITHIN_BATCHES = 2**62  # turns of permutations, added to the epoch: no epoch reaches them


def balanced_order(
    fresh: NDArray[np.bool_],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    costs: NDArray[np.float32] | None = None,
) -> NDArray[np.int64]:
    """The places of samples, in an order whose batches each have the same share of the `fresh` ones.

    `costs` says what each sample costs to compute; without it, only numbers are balanced.
    """
    size = len(fresh)
    shuffled = keys.permutation(size, seed, epoch)
    is_fresh = fresh[shuffled]
    misses, hits = shuffled[is_fresh], shuffled[~is_fresh]
    ends = np.minimum(np.arange(1, -(-size // batch_size) + 1) * batch_size, size)
    shares = np.diff(ends * len(misses) // max(size, 1), prepend=0)
    batches = np.arange(len(ends))
    if costs is None:
        of_misses = np.repeat(batches, shares)
    else:
        of_misses = _dealt(costs[misses], shares)
    of_hits = np.repeat(batches, np.diff(ends, prepend=0) - shares)
    # All samples of a batch together, in random order within it.
    places = np.concatenate([misses, hits])
    batch_of = np.concatenate([of_misses, of_hits])
    again = keys.permutation(size, seed, _WITHIN_BATCHES + epoch)
    order: NDArray[np.int64] = places[again][np.argsort(batch_of[again], kind="stable")]
    return order


def _dealt(costs: NDArray[np.float32], shares: NDArray[np.int64]) -> NDArray[np.int64]:
    """The batch of each sample: batch b gets `shares[b]` of them, and costs add up alike.

    Samples come in random order and are dealt in rounds of one for each batch; in each round the dearest goes
    to the batch that has had the least so far.
    """
    rounds = int(shares.max(initial=0))
    batch_of = np.empty(len(costs), dtype=np.int64)
    sums, counts = np.zeros(len(shares)), np.zeros(len(shares), dtype=np.int64)
    start = 0
    for number in range(rounds):
        # A batch with a smaller share sits out some rounds, evenly spread.
        due = (number + 1) * shares // rounds
        takers = np.flatnonzero(due > counts)
        dealt = slice(start, start + len(takers))
        poorest = takers[np.argsort(sums[takers] / np.maximum(counts[takers], 1), kind="stable")]
        dearest = np.argsort(-costs[dealt], kind="stable")
        batch_of[start + dearest] = poorest
        sums[poorest] += costs[dealt][dearest]
        counts = due
        start += len(takers)
    return batch_of
