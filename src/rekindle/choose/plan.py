"""The plan of an epoch: which samples, in which order and batch, at what weight.

A plan is arrays, made before the epoch starts and never changed. Everything after it only carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    own: NDArray[np.int64] | None = None  # whose places these are, where near-copies stand in for samples

    @property
    def steps(self) -> int:
        full, rest = divmod(len(self.ids), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def rows(self, step: int) -> slice:
        """Where batch `step` lies in the arrays."""
        return slice(step * self.batch_size, min((step + 1) * self.batch_size, len(self.ids)))

    def with_mean_weight_of_one(self) -> EpochPlan:
        """The same plan, its weights scaled so that those of every batch have the mean 1."""
        if not len(self.ids):
            return self
        starts = np.arange(0, len(self.ids), self.batch_size)
        sizes = np.diff(starts, append=len(self.ids))
        means = np.add.reduceat(self.weights.astype(np.float64), starts) / sizes
        scales = np.divide(1, means, out=np.ones_like(means), where=means > 0)
        return replace(self, weights=(self.weights * np.repeat(scales, sizes)).astype(np.float32))


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
    ids: NDArray[np.int64] | None = None,
    weights: NDArray[np.float32] | None = None,
    uses: NDArray[np.int64] | None = None,
) -> EpochPlan:
    """The plan of an epoch that has every sample once, shuffled or in order, dealt to the ranks in turn.

    With `refresh`, cached parts are used again. A shuffled epoch is then balanced: each batch has the same
    share of samples to compute anew, or of their `costs`.

    Where samples were chosen, `ids` says which (in place of all of them), `weights` what each counts for, and
    `uses` how often each was used before: by that, and not by epochs, its cached part ages.

    >>> plan_epoch(size=5, epoch=0, seed=1, shuffle=False, batch_size=2, drop_last=False).ids.tolist()
    [0, 1, 2, 3, 4]
    """
    chosen = np.arange(size) if ids is None and refresh is not None else ids
    count = size if ids is None else len(ids)
    turns = epoch if uses is None else uses
    generations, fresh = None, None
    if refresh is not None and chosen is not None:
        generations = refresh.generations(chosen, turns)
        fresh = refresh.made(chosen, generations == turns)
    if not shuffle:
        rows = np.arange(rank, count, world, dtype=np.int64)
    elif fresh is None or not balance:
        rows = keys.permutation(count, seed, epoch)[rank::world]
    else:
        if costs is not None and ids is not None:
            costs = costs[ids]
        order = balanced_order(fresh, batch_size, seed=seed, epoch=epoch, costs=costs, world=world)
        rows = order[rank::world]
    dealt = rows if ids is None else ids[rows]
    plan = EpochPlan(
        epoch=epoch,
        ids=dealt,
        generations=same(np.int64(epoch), rows) if generations is None else generations[rows],
        turns=same(np.int64(epoch), rows),
        fresh=same(np.bool_(True), rows) if fresh is None else fresh[rows],
        weights=same(np.float32(1), rows) if weights is None else weights[rows],
        batch_size=batch_size,
        drop_last=drop_last,
    )
    return plan if refresh is None else refresh.stood_in(plan, epoch if uses is None else uses[rows])


def same(value: np.generic, ids: NDArray[np.int64]) -> NDArray[Any]:
    """The same value for every sample, which takes no memory: an array of stride 0."""
    return np.broadcast_to(value, ids.shape)
