"""The plan of an epoch: which samples, in which order and batch, at what weight.

A plan is arrays, made before the epoch starts and never changed. Everything after it only carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle import keys


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One rank's epoch. Every array has one entry a sample, in the order of training.

    Batch `step` is the samples from `step * batch_size` on; a last batch that is not full is left out if
    `drop_last` is set. `generations` says which augmentation of a sample is meant (the epoch itself, as
    long as nothing is reused), `fresh` which samples are computed anew, `weights` what each counts for in
    the loss.
    """

    epoch: int
    ids: NDArray[np.int64]
    generations: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    weights: NDArray[np.float32]
    batch_size: int
    drop_last: bool

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
) -> EpochPlan:
    """The plain plan: every sample once, shuffled or in order, dealt to the ranks in turn.

    >>> plan_epoch(size=5, epoch=0, seed=1, shuffle=False, batch_size=2, drop_last=False).ids.tolist()
    [0, 1, 2, 3, 4]
    """
    if shuffle:
        ids = keys.permutation(size, seed, epoch)[rank::world]
    else:
        ids = np.arange(rank, size, world, dtype=np.int64)
    # The same value for every sample takes no memory: an array of stride 0.
    return EpochPlan(
        epoch=epoch,
        ids=ids,
        generations=np.broadcast_to(np.int64(epoch), ids.shape),
        fresh=np.broadcast_to(np.bool_(True), ids.shape),
        weights=np.broadcast_to(np.float32(1), ids.shape),
        batch_size=batch_size,
        drop_last=drop_last,
    )
