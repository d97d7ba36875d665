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


def left_out_of(samples: int, batch_size: int, drop_last: bool, world: int = 1) -> int:
    """How many samples are in incomplete last batches that are left out, of all ranks together.

    >>> left_out_of(10, 4, drop_last=True), left_out_of(20, 4, drop_last=True, world=2)
    (2, 4)
    """
    if not drop_last:
        return 0
    shares = {len(range(rank, samples, world)) for rank in (0, world - 1)}
    steps = {share // batch_size for share in shares}
    return samples - steps.pop() * batch_size * world if len(steps) == 1 else 0


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
    cached: NDArray[np.int64] | None = None,
) -> EpochPlan:
    """The plan of an epoch that has every sample once, shuffled or in order, dealt to the ranks in turn.

    With `refresh`, cached results are reused. A shuffled epoch is then balanced: each batch has the same
    share of samples to recompute, or of their `costs`. What `drop_last` leaves out of a shuffled epoch are
    samples that need not be recomputed in it.

    Where samples were chosen, `ids` says which (instead of all of them), `weights` what each counts for, and
    `uses` how often each was used before: by that, and not by epochs, its cached result ages. `cached` are
    the generations that the rows use, where these do not follow from `refresh`; −1 is none, for a row that is
    left out.

    >>> plan_epoch(size=5, epoch=0, seed=1, shuffle=False, batch_size=2, drop_last=False).ids.tolist()
    [0, 1, 2, 3, 4]
    """
    chosen = np.arange(size) if ids is None and refresh is not None else ids
    count = size if ids is None else len(ids)
    turns = epoch if uses is None else uses
    generations, fresh, is_due = None, None, np.empty(0, dtype=bool)
    last = np.empty(0, dtype=np.int64)  # the rows that are left out
    if refresh is not None and chosen is not None:
        generations = refresh.generations(chosen, turns) if cached is None else cached
        is_due = (generations == turns) | (generations < 0)
        generations = np.where(is_due, turns, generations)
        fresh = is_due if ids is None else refresh.recomputed(ids, is_due)
        if shuffle and (left_out := left_out_of(count, batch_size, drop_last, world)):
            if cached is None:
                last = refresh.spare_first(chosen, turns, fresh)[:left_out]
            else:
                last = _without_result_first(cached, fresh, seed, epoch)[:left_out]
    if not shuffle:
        rows = np.arange(rank, count, world, dtype=np.int64)
    elif fresh is None or not balance:
        rows = _with_last(counter_rng.permutation(count, seed, epoch), last)[rank::world]
    else:
        if costs is not None and ids is not None:
            costs = costs[ids]
        order = balanced_order(
            fresh, batch_size, seed=seed, epoch=epoch, costs=costs, world=world, left_out=last
        )
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
    if refresh is None:
        return plan
    if ids is not None and fresh is not None:  # A result is computed where it is used first.
        plan = replace(plan, fresh=refresh.recomputed(dealt, is_due[rows]))
    return refresh.substitute(plan, epoch if uses is None else uses[rows])


def _without_result_first(
    generations: NDArray[np.int64], fresh: NDArray[np.bool_], seed: int, epoch: int
) -> NDArray[np.int64]:
    """Rows in the order in which they are left out: those without a result, those that have one, others."""
    drawn = counter_rng.seeds(seed, np.arange(len(fresh)), epoch, counter_rng.Step.LEFT_OUT)
    return np.lexsort((drawn, fresh, generations >= 0))


def _with_last(order: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order with these rows at its end."""
    return order if not len(last) else np.concatenate([order[~np.isin(order, last)], last])


def _turns(ids: NDArray[np.int64], rows: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """A turn for each of some rows: occurrences are counted in `ids`, whichever order and rank they get."""
    if np.bincount(ids).max(initial=0) <= 1:
        return constant(np.int64(epoch), rows)
    return epoch + earlier_occurrences(ids)[rows] * counter_rng.NEXT_DRAW


def constant(value: _Scalar, ids: NDArray[np.int64]) -> NDArray[_Scalar]:
    """The same value for every sample, which takes no memory: an array of stride 0."""
    return np.broadcast_to(value, ids.shape)
