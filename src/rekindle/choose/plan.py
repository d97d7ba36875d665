"""The plan of an epoch: which samples, in which order and batch, at what weight.

A plan is arrays, made before the epoch starts and never changed. Everything after it only carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle import keys
from rekindle.choose.balance import balanced_order
from rekindle.choose.refresh import Refresh


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One rank's epoch. Every array has one entry a sample, in the order of training.

    Batch `step` is the samples from `step * batch_size` on; a last batch that is not full is left out if
    `drop_last` is set. `generations` and `turns` say which augmentation of a sample is meant: that of the
    part that is kept, and that of the rest (both are the epoch itself, as long as nothing is reused). `fresh`
    says which samples are computed anew, `weights` what each counts for in the loss.
    """

    epoch: int
    ids: NDArray[np.int64]
    generations: NDArray[np.int64]
    turns: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    weights: NDArray[np.float32]
    batch_size: int
    drop_last: bool
    last_uses: NDArray[np.bool_] | None = None  # of parts that are kept for this epoch alone

    @property
    def steps(self) -> int:
        full, rest = divmod(len(self.ids), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def rows(self, step: int) -> slice:
        """Where batch `step` lies in the arrays."""
        return slice(step * self.batch_size, min((step + 1) * self.batch_size, len(self.ids)))


def plan_epoch(
    *,
    size: int,
    epoch: int,
    seed: int,
    shuffle: bool,
    batch_size: int,
    drop_last: bool,
    rank: int = 0,
    world: int = 1,
    refresh: Refresh | None = None,
    balance: bool = True,
    costs: NDArray[np.float32] | None = None,
) -> EpochPlan:
    """The plan of an epoch that has every sample once, shuffled or in order, dealt to the ranks in turn.

    With `refresh`, cached parts are used again. A shuffled epoch is then balanced: each batch has the same
    share of samples to compute anew, or of their `costs`.

    >>> plan_epoch(size=5, epoch=0, seed=1, shuffle=False, batch_size=2, drop_last=False).ids.tolist()
    [0, 1, 2, 3, 4]
    """
    generations = None if refresh is None else refresh.generations(np.arange(size), epoch)
    if not shuffle:
        ids = np.arange(rank, size, world, dtype=np.int64)
    elif generations is None or not balance:
        ids = keys.permutation(size, seed, epoch)[rank::world]
    else:
        order = balanced_order(generations == epoch, batch_size * world, seed=seed, epoch=epoch, costs=costs)
        ids = order[rank::world]
    return EpochPlan(
        epoch=epoch,
        ids=ids,
        generations=same(np.int64(epoch), ids) if generations is None else generations[ids],
        turns=same(np.int64(epoch), ids),
        fresh=same(np.bool_(True), ids) if generations is None else generations[ids] == epoch,
        weights=same(np.float32(1), ids),
        batch_size=batch_size,
        drop_last=drop_last,
    )


def same(value: np.generic, ids: NDArray[np.int64]) -> NDArray[Any]:
    """The same value for every sample, which takes no memory: an array of stride 0."""
    return np.broadcast_to(value, ids.shape)
