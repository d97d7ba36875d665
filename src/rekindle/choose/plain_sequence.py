"""Every sample once, shuffled or in order: the sequence of an epoch that nothing else shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.planned_rows import PlannedRows, constant
from rekindle.choose.refresh_schedule import Refresh
from rekindle.core import counter_rng
from rekindle.core.keyed_permutation import KeyedPermutation, keyed_permutation


def shuffled_order(size: int, seed: int, epoch: int) -> KeyedPermutation:
    """The shuffled order of an epoch: which sample stands at a position."""
    return keyed_permutation(size, counter_rng.base(seed, counter_rng.Step.ORDER, epoch))


class PlainSequence:
    """The samples in a keyed order, or as they are numbered. It does not depend on ranks and batches.

    With `refresh`, cached results are reused as it says: of an order in which every sample stays with a rank.
    """

    first_rank = 0

    def __init__(
        self, size: int, epoch: int, order: KeyedPermutation | None, refresh: Refresh | None = None
    ) -> None:
        self.epoch, self.length, self.period = epoch, size, max(size, 1)
        self._order, self._refresh = order, refresh

    def rows(self, first: int, count: int, stride: int) -> PlannedRows:
        """The rows at `first`, `first + stride`, …"""
        ids = np.arange(first, first + count * stride, stride, dtype=np.int64)
        if self._order is not None:
            ids = self._order.forward(ids)
        generations: int | NDArray[np.int64] = self.epoch
        fresh = constant(np.bool_(True), count)
        if self._refresh is not None:
            generations = self._refresh.generations(ids, self.epoch)
            fresh = generations == self.epoch
        return PlannedRows(ids, generations, self.epoch, fresh, constant(np.float32(1), count))
