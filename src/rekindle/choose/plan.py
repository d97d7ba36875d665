"""The plan of an epoch: which samples, in which order and batch, at what weight.

A plan is arrays, computed before the epoch starts and never changed. Everything after it only executes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.balanced_shuffle import balanced_order
from rekindle.choose.draws import earlier_occurrences
from rekindle.choose.refresh_schedule import Refresh
from rekindle.core import counter_rng

_Scalar = TypeVar("_Scalar", bound=np.generic)


def batches_per_epoch(samples: int, batch_size: int, drop_last: bool) -> int:
    """How many batches so many samples make.

    >>> batches_per_epoch(10, 4, drop_last=False), batches_per_epoch(10, 4, drop_last=True)
    (3, 2)
    """
    full, rest = divmod(samples, batch_size)
    return full + (rest > 0 and not drop_last)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One rank's epoch. Every array has one entry per sample, in the order of training.

    Batch `step` is the samples from `step * batch_size` on; an incomplete last batch is left out if
    `drop_last` is set. `generations` and `turns` identify the augmentation of a sample: that of the cached
    part, and that of the rest. Both are the epoch itself, as long as nothing is reused and no sample occurs
    twice: of a sample that does, each occurrence has a turn of its own. `fresh` says which samples are
    recomputed, `weights` what each counts for in the loss.
    """

    epoch: int
    ids: NDArray[np.int64]
    generations: NDArray[np.int64]
    turns: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    weights: NDArray[np.float32]
    batch_size: int
    drop_last: bool
    last_uses: NDArray[np.bool_] | None = None  # of results that are cached for this epoch only
    substituted_ids: NDArray[np.int64] | None = None  # the samples that near-duplicates are substituted for

    @property
    def steps(self) -> int:
        """How many batches there are."""
        return batches_per_epoch(len(self.ids), self.batch_size, self.drop_last)

    def rows(self, step: int) -> slice:
        """Where batch `step` lies in the arrays."""
        return slice(step * self.batch_size, min((step + 1) * self.batch_size, len(self.ids)))

    def with_mean_weight_of_one(self) -> EpochPlan:
        """The same plan, its weights scaled to a mean of 1 in every batch."""
        if not len(self.ids):
            return self
        starts = np.arange(0, len(self.ids), self.batch_size)
        sizes = np.diff(starts, append=len(self.ids))
        means = np.add.reduceat(self.weights.astype(np.float64), starts) / sizes
        scales = np.divide(1, means, out=np.ones_like(means), where=means > 0)
        return replace(self, weights=(self.weights * np.repeat(scales, sizes)).astype(np.float32))


class _RequiredPlanArguments(TypedDict):
    size: int
    epoch: int
    seed: int
    shuffle: bool
    batch_size: int
    drop_last: bool


class PlanArguments(_RequiredPlanArguments, total=False):
    """The arguments of `plan_epoch` that order and batch samples, whichever they are."""

    refresh: Refresh | None
    balance: bool
    costs: NDArray[np.float32] | None


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

    With `refresh`, cached results are reused. A shuffled epoch is then balanced: each batch has the same
    share of samples to recompute, or of their `costs`.

    Where samples were chosen, `ids` says which (instead of all of them), `weights` what each counts for, and
    `uses` how often each was used before: by that, and not by epochs, its cached result ages.

    >>> plan_epoch(size=5, epoch=0, seed=1, shuffle=False, batch_size=2, drop_last=False).ids.tolist()
    [0, 1, 2, 3, 4]
    """
    chosen = np.arange(size) if ids is None and refresh is not None else ids
    count = size if ids is None else len(ids)
    turns = epoch if uses is None else uses
    generations, fresh = None, None
    if refresh is not None and chosen is not None:
        generations = refresh.generations(chosen, turns)
        fresh = refresh.recomputed(chosen, generations == turns)
    if not shuffle:
        rows = np.arange(rank, count, world, dtype=np.int64)
    elif fresh is None or not balance:
        rows = counter_rng.permutation(count, seed, epoch)[rank::world]
    else:
        if costs is not None and ids is not None:
            costs = costs[ids]
        order = balanced_order(fresh, batch_size, seed=seed, epoch=epoch, costs=costs, world=world)
        rows = order[rank::world]
    dealt = rows if ids is None else ids[rows]
    plan = EpochPlan(
        epoch=epoch,
        ids=dealt,
        generations=constant(np.int64(epoch), rows) if generations is None else generations[rows],
        turns=constant(np.int64(epoch), rows) if ids is None else _turns(ids, rows, epoch),
        fresh=constant(np.bool_(True), rows) if fresh is None else fresh[rows],
        weights=constant(np.float32(1), rows) if weights is None else weights[rows],
        batch_size=batch_size,
        drop_last=drop_last,
    )
    return plan if refresh is None else refresh.substitute(plan, epoch if uses is None else uses[rows])


def _turns(ids: NDArray[np.int64], rows: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """A turn for each of some rows: occurrences are counted in `ids`, whichever order and rank they get."""
    if np.bincount(ids).max(initial=0) <= 1:
        return constant(np.int64(epoch), rows)
    return epoch + earlier_occurrences(ids)[rows] * counter_rng.NEXT_DRAW


def constant(value: _Scalar, ids: NDArray[np.int64]) -> NDArray[_Scalar]:
    """The same value for every sample, which takes no memory: an array of stride 0."""
    return np.broadcast_to(value, ids.shape)
