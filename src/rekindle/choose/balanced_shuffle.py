"""Cache-aware shuffle: every batch has the same share of the work.

Samples that must be recomputed cost far more than cached ones. In a plain shuffle their number varies from
batch to batch, and the accelerator waits for the batches that have many. Here they are spread evenly: every
batch gets the same number of them (give or take one), and if the cost of each is known, every batch gets
about the same sum of costs. Which samples share a batch is random otherwise, and so is the order within it:
what pairs neighbours (MixUp, CutMix) pairs recomputed and cached samples as chance has it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng


class BalancedShuffle:
    """Where the rows of a rank come from: `samples` of them, `fresh` of which are to be recomputed.

    Of the first n rows, up to the end of a batch, ⌊n · fresh / samples⌋ are fresh ones.
    """

    def __init__(self, samples: int, fresh: int, batch_size: int, key: int) -> None:
        self._samples, self._fresh, self._batch_size, self._key = samples, fresh, batch_size, key

    def places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """For each row whether it is a fresh one, and its number among the fresh ones, or among the others.

        The rows may be any, but those of all batches from the first to the last are looked at.
        """
        if not len(rows):
            return np.empty(0, dtype=bool), np.empty(0, dtype=np.int64)
        size = self._batch_size
        first, last = int(rows.min()) // size, int(rows.max()) // size
        before = self.fresh_before(np.arange(first, last + 2))
        fresh = np.diff(before)
        others_before = np.arange(first, last + 1) * size - before[:-1]
        # The slots of a batch are its fresh ones, then the others.
        slots = self.slots(first, last - first + 1).astype(np.int64)
        is_fresh = slots < fresh[:, None]
        places = slots + np.where(is_fresh, before[:-1, None], (others_before - fresh)[:, None])
        start = first * size
        if int(rows[-1]) - int(rows[0]) == len(rows) - 1:  # All rows of a stretch.
            here: slice | NDArray[np.int64] = slice(int(rows[0]) - start, int(rows[-1]) - start + 1)
        else:
            here = rows - start
        return is_fresh.reshape(-1)[here], places.reshape(-1)[here]

    def fresh_before(self, batches: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many fresh rows there are before each of some batches, which follow each other."""
        first = int(batches[0]) * self._batch_size
        if first >= self._samples:
            return np.full(len(batches), self._fresh)
        # The product of the first with the number of fresh ones may have more than 64 bits.
        whole, rest = divmod(first * self._fresh, self._samples)
        later = np.minimum((batches - batches[0]) * self._batch_size, self._samples - first)
        before: NDArray[np.int64] = whole + (rest + later * self._fresh) // self._samples
        return before

    def slots(self, first: int, count: int) -> NDArray[np.uint32 | np.uint64]:
        """A random order of the slots of each of `count` batches from `first` on: random bits, sorted."""
        size = self._batch_size
        slot_bits = max(size - 1, 1).bit_length()
        start, rows = first * size, count * size
        if slot_bits <= 10:  # Two keys of each random number: two slots with equal bits are rare enough.
            drawn = counter_rng.split(self._key, np.arange(start // 2, (start + rows) // 2 + 1))
            halves = drawn.astype("<u8", copy=False).view("<u4")
            keys = halves[start % 2 : start % 2 + rows].reshape(count, size)
        else:
            keys = counter_rng.split(self._key, np.arange(start, start + rows)).reshape(count, size)
        slot_mask = keys.dtype.type((1 << slot_bits) - 1)
        keys <<= keys.dtype.type(slot_bits)
        keys |= np.arange(size, dtype=keys.dtype)
        missing = start + rows - self._samples
        if missing > 0:  # An incomplete last batch: what is not there stays behind what is.
            keys[-1, size - missing :] |= ~slot_mask
        keys.sort(axis=1)
        keys &= slot_mask
        return keys


def balanced_order(
    fresh: NDArray[np.bool_],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    costs: NDArray[np.float32] | None = None,
    world: int = 1,
    left_out: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """The samples' rows, in an order whose batches each have the same share of the `fresh` ones.

    `costs` is what each sample costs to compute; without it, only numbers are balanced. The order is dealt to
    `world` ranks in turn, in batches of `batch_size`, and the batches of all ranks are alike. The rows that
    are `left_out` come last, behind all complete batches.
    """
    shuffled = counter_rng.permutation(len(fresh), seed, epoch)
    if left_out is not None and len(left_out):
        is_left_out = np.zeros(len(fresh), dtype=bool)
        is_left_out[left_out] = True
        shuffled = shuffled[~is_left_out[shuffled]]
    size = len(shuffled)
    is_fresh = fresh[shuffled]
    misses, hits = shuffled[is_fresh], shuffled[~is_fresh]
    by_rank = np.concatenate([np.arange(rank, size, world) for rank in range(world)])
    # Of the first n positions, rank by rank, ⌊n · misses / size⌋ are for misses.
    before = np.arange(size + 1) * len(misses) // max(size, 1)
    for_misses = before[1:] > before[:-1]
    if costs is not None:
        misses = misses[evened_out(costs[misses], before[_batch_ends(size, batch_size, world)])]
    balanced = np.empty(size, dtype=np.int64)
    balanced[for_misses], balanced[~for_misses] = misses, hits
    order = np.empty(size, dtype=np.int64)
    order[by_rank] = balanced[_shuffled_within(_batch_ends(size, batch_size, world), seed, epoch)]
    return order if left_out is None else np.concatenate([order, left_out])


def _batch_ends(size: int, batch_size: int, world: int) -> NDArray[np.int64]:
    """Where batches end, if the positions of one rank come after those of the other."""
    starts = np.cumsum([0, *(len(range(rank, size, world)) for rank in range(world))])
    ends = [np.arange(start + batch_size, stop, batch_size) for start, stop in pairwise(starts)]
    return np.unique(np.concatenate([*ends, starts[1:]]))


def _shuffled_within(ends: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Positions in an order that is random within each of the segments that end at `ends`."""
    segments = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    keys = counter_rng.seeds(seed, np.arange(len(segments)), epoch, counter_rng.Step.ROWS)
    return np.lexsort((keys, segments))


def evened_out(costs: NDArray[np.float32], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Samples in an order in which the costs of the segments that end at `ends` add up alike.

    Samples come in random order and are dealt in rounds of one for each segment; in each round the costliest
    goes to the segment that has had the least so far.
    """
    shares = np.diff(ends, prepend=0)
    rounds = int(shares.max(initial=0))
    dealt = np.empty(len(costs), dtype=np.int64)
    sums, counts = np.zeros(len(shares)), np.zeros(len(shares), dtype=np.int64)
    start = 0
    for number in range(rounds):
        # A segment with a smaller share sits out some rounds, evenly spread.
        due = (number + 1) * shares // rounds
        takers = np.flatnonzero(due > counts)
        poorest = takers[np.argsort(sums[takers] / np.maximum(counts[takers], 1), kind="stable")]
        given = start + np.argsort(-costs[start : start + len(takers)], kind="stable")
        dealt[ends[poorest] - shares[poorest] + counts[poorest]] = given
        sums[poorest] += costs[given]
        counts = due
        start += len(takers)
    return dealt
