"""A plan as the sequence of batches to load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.plan import EpochPlan
from rekindle.core.samples import Index


class BatchOrder(NamedTuple):
    """One batch to load: a part of a plan, or what a user's sampler yields.

    `indices` is what the dataset is asked for; `ids` are the same as integers, which name a sample in keys,
    checkpoints and reports (its position in the epoch, where an index is no integer). `generations` say which
    augmentation is meant of the part that is cached, `turns` of the rest, or of all where nothing is cached;
    one number, if all samples have the same. A turn is the epoch, and which draw of the sample in it this is;
    `batch_turn` is that of what is drawn for the batch as a whole.
    """

    epoch: int
    step: int
    indices: list[Index]
    ids: NDArray[np.int64]
    plain: bool  # the indices are Python's integers, and so equal to the ids
    generations: int | NDArray[np.int64]
    turns: int | NDArray[np.int64]
    batch_turn: int
    fresh: NDArray[np.bool_]  # which samples are to be recomputed
    weights: NDArray[np.float32]  # of the samples in the loss
    plan: EpochPlan | None = None
    recent: Sequence[Index] = ()  # indices before this batch, where a failed sample may need a substitute
    last_uses: NDArray[np.bool_] | None = None  # of results that are cached for this epoch only
    substituted_ids: NDArray[np.int64] | None = None  # the samples that near-duplicates are substituted for


@dataclass(frozen=True, eq=False, slots=True)
class YieldedBatch:
    """What the training loop got of an order: the arrays have an entry for each row of the batch."""

    order: BatchOrder
    ids: NDArray[np.int64]
    fresh: NDArray[np.bool_]  # which samples were recomputed for this batch, or, echoed, are no repeats
    planned: NDArray[np.bool_]  # which samples were to be recomputed
    recomputed: NDArray[np.bool_]  # which samples were
    rows: NDArray[np.int64] | None  # of the order, that are in the batch; None: all of them


@dataclass(frozen=True, slots=True)
class EndOfEpoch:
    """The mark between the batches of two epochs."""

    epoch: int


Orders: TypeAlias = Iterator[BatchOrder | EndOfEpoch]
PlanOf: TypeAlias = Callable[[int], EpochPlan]  # the plan of an epoch


def unplanned_order(
    epoch: int, step: int, indices: list[Index], ids: NDArray[np.int64], *, plain: bool
) -> BatchOrder:
    """A batch that no plan knows, of samples that are drawn for the first time."""
    fresh = np.broadcast_to(np.bool_(True), ids.shape)
    weights = np.broadcast_to(np.float32(1), ids.shape)
    return BatchOrder(epoch, step, indices, ids, plain, epoch, epoch, epoch, fresh, weights)


def planned_orders(plan: EpochPlan, first_step: int = 0) -> Orders:
    """The batches of a plan from `first_step` on, then the mark that the epoch is over."""
    for step in range(first_step, plan.steps):
        yield planned_order(plan, step)
    yield EndOfEpoch(plan.epoch)


def planned_order(plan: EpochPlan, step: int) -> BatchOrder:
    """Batch `step` of a plan."""
    epoch, rows = plan.epoch, plan.batch(step)
    return BatchOrder(
        epoch=epoch,
        step=step,
        indices=rows.ids.tolist(),
        ids=rows.ids,
        plain=True,
        generations=rows.generations,
        turns=rows.turns,
        batch_turn=epoch,
        fresh=rows.fresh,
        weights=rows.weights,
        plan=plan,
        last_uses=rows.last_uses,
        substituted_ids=rows.substituted_ids,
    )


class PlannedEpochs:
    """Epoch after epoch of plans, without end: an iterator of orders.

    The first epoch begins at `first_step`, `without` some steps that were yielded before. Only `one` epoch,
    where the plan of the next depends on what is learnt in this one.
    """

    def __init__(
        self,
        plan_of: PlanOf,
        *,
        epoch: int,
        first_step: int = 0,
        without: Collection[int] = (),
        one: bool = False,
    ) -> None:
        self._plan_of, self._one = plan_of, one
        self._planned: EpochPlan | None = None
        self._epoch = epoch  # whose batches come next
        self._first_step, self._without = first_step, frozenset(without)
        # Not a generator of this object, which would hold it: a dataset would outlive its loader by that.
        self._orders: Orders | None = None
        self._ended = False

    def __iter__(self) -> PlannedEpochs:
        return self

    def __next__(self) -> BatchOrder | EndOfEpoch:
        if self._ended:
            self._begin_next()
        elif self._orders is None:
            self._orders = planned_orders(self._plan_of(self._epoch), self._first_step)
        assert self._orders is not None
        order = next(self._orders)
        while isinstance(order, BatchOrder) and order.step in self._without:
            order = next(self._orders)
        self._ended = isinstance(order, EndOfEpoch)
        return order

    def plan_ahead(self) -> None:
        """Plan the next epoch now, while nobody waits, and not in the middle of this one."""
        if not self._one and self._planned is None:
            self._planned = self._plan_of(self._epoch + 1)

    def _begin_next(self) -> None:
        if self._one:
            raise StopIteration
        self._orders = planned_orders(self._planned or self._plan_of(self._epoch + 1))
        self._planned, self._without = None, frozenset()
        self._epoch, self._ended = self._epoch + 1, False


def iterable_orders(epoch: int, batch_size: int | None, first_step: int = 0) -> Orders:
    """Batches of an iterable dataset, which decides itself what is in them and when they end."""
    size = 1 if batch_size is None else batch_size
    step = first_step
    while True:
        ids = np.arange(step * size, (step + 1) * size)
        yield unplanned_order(epoch, step, [None] * size, ids, plain=False)
        step += 1
