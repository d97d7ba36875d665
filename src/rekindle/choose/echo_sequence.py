"""The sequence of an epoch with repeated samples: every rank repeats its own.

The cached part of a sample is computed once an epoch, by the rank that has it; the rest for every repeat.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.chosen_sequence import ArraySequence
from rekindle.choose.draws import earlier_occurrences
from rekindle.choose.echo_order import EchoOrder, echoed
from rekindle.choose.plain_sequence import shuffled_order
from rekindle.choose.plan import EpochPlan
from rekindle.choose.planned_rows import PlannedRows, constant
from rekindle.choose.shard import ONE_RANK, EpochLayout, EpochStart, Shard
from rekindle.core import counter_rng
from rekindle.core.counter_rng import NEXT_DRAW
from rekindle.core.keyed_permutation import KeyedPermutation

_Numbers = NDArray[np.int64]


class EchoSequence:
    """The repeats of all samples, laid out for ranks that each have the same number of sources."""

    first_rank = 0

    def __init__(
        self,
        size: int,
        epoch: int,
        order: KeyedPermutation | None,
        *,
        factor: float,
        buffer: int,
        seed: int,
        shard: Shard,
    ) -> None:
        """`shard` is that of any rank of the layout that the epoch is begun with."""
        self.epoch, self._order, self._size, self._world = epoch, order, size, shard.world
        self._factor, self._buffer, self._seed = factor, buffer, seed
        self._sources = shard.share(size)
        self._of_rank = lru_cache(maxsize=None)(self._echoes)
        self.length = self._of_rank(0).length * self._world
        self.period = max(self.length, 1)

    def rows(self, first: int, count: int, stride: int) -> PlannedRows:
        """The rows at `first`, `first + stride`, …"""
        if stride == self._world:
            numbers = np.arange(first // self._world, first // self._world + count)
            return self._rows(np.full(count, first % self._world), numbers)
        numbers, ranks = np.divmod(first + stride * np.arange(count), self._world)
        return self._rows(ranks, numbers)

    def _rows(self, ranks: _Numbers, numbers: _Numbers) -> PlannedRows:
        sources, repeats = np.empty_like(numbers), np.empty_like(numbers)
        last_uses = np.empty(len(numbers), dtype=bool)
        for rank in np.unique(ranks).tolist():
            here, echoes = ranks == rank, self._of_rank(rank)
            own = numbers[here]
            start, stop = int(own.min()), int(own.max()) + 1
            copies = echoes.copies(start, stop)[own - start]
            sources[here] = echoes.sources(copies)
            repeats[here], last_uses[here] = echoes.repeats(copies)
        # Sources that ranks repeat so that all have as many are draws of their own.
        times, positions = np.divmod(sources * self._world + ranks, self._size)
        ids = positions if self._order is None else self._order.forward(positions)
        most = -int(-self._factor // 1)
        turns = self.epoch + (repeats + times * most) * NEXT_DRAW
        weights = constant(np.float32(1), len(ids))
        return PlannedRows(ids, self.epoch, turns, repeats == 0, weights, last_uses)

    def _echoes(self, rank: int) -> EchoOrder:
        seed = self._seed
        if rank:
            seed = int(counter_rng.seeds(seed, rank, 0, counter_rng.Step.ECHO)[0] >> np.uint64(1))
        return EchoOrder(self._sources, self._factor, self._buffer, seed=seed, turn=self.epoch)


def plan_echo(
    *,
    size: int,
    epoch: int,
    seed: int,
    shuffle: bool,
    batch_size: int,
    drop_last: bool,
    factor: float,
    buffer: int,
    shard: Shard | None = None,
    start: EpochStart | None = None,
) -> EpochPlan:
    """A plan with repeated samples."""
    shard = shard or ONE_RANK
    start = start or EpochStart(EpochLayout(shard.world, batch_size))
    order = shuffled_order(size, seed, epoch) if shuffle else None
    begun = Shard(0, start.layout.world, shard.drop_last)
    sequence = EchoSequence(size, epoch, order, factor=factor, buffer=buffer, seed=seed, shard=begun)
    return EpochPlan(sequence, batch_size, drop_last, shard, start)


def echo_plan(
    ids: _Numbers, *, epoch: int, seed: int, batch_size: int, drop_last: bool, factor: float, buffer: int
) -> EpochPlan:
    """The same for samples in a given order, in which some may occur more than once."""
    chosen = ids[echoed(len(ids), factor, buffer, seed=seed, turn=epoch).sources]
    repeats = earlier_occurrences(chosen)
    rows = PlannedRows(
        chosen,
        epoch,
        epoch + repeats * NEXT_DRAW,
        repeats == 0,
        constant(np.float32(1), len(chosen)),
        last_uses=earlier_occurrences(chosen[::-1])[::-1] == 0,
    )
    start = EpochStart(EpochLayout(1, batch_size))
    return EpochPlan(ArraySequence(rows, epoch), batch_size, drop_last, ONE_RANK, start)
