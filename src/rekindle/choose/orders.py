"""A plan as the sequence of batches to carry out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.plan import EpochPlan, plan_epoch


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """One batch to carry out.

    `indices` is what the data set is asked for; `ids` are the same as integers, which name a sample in
    keys, states and reports (a sample's place in the epoch, where an index is no integer). `plain` says that
    the indices are Python's integers, and so equal to the ids.
    """

    epoch: int
    step: int
    indices: list[Any]
    ids: NDArray[np.int64]
    generations: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    weights: NDArray[np.float32]
    plain: bool
    # The samples of the whole epoch, where they are known: what may stand in for one that fails.
    peers: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class EndOfEpoch:
    """The mark between the batches of two epochs."""

    epoch: int


Orders: TypeAlias = Iterator[BatchOrder | EndOfEpoch]


def plain_order(epoch: int, step: int, indices: list[Any], ids: NDArray[np.int64]) -> BatchOrder:
    """A batch outside any plan: all of it fresh, all of weight 1."""
    return BatchOrder(
        epoch=epoch,
        step=step,
        indices=indices,
        ids=ids,
        generations=np.broadcast_to(np.int64(epoch), ids.shape),
        fresh=np.broadcast_to(np.bool_(True), ids.shape),
        weights=np.broadcast_to(np.float32(1), ids.shape),
        plain=all(type(index) is int for index in indices),
    )


def planned_orders(plan: EpochPlan, first_step: int = 0) -> Orders:
    """The batches of a plan from `first_step` on, then the mark that the epoch is over."""
    for step in range(first_step, plan.steps):
        rows = plan.rows(step)
        ids = plan.ids[rows]
        yield BatchOrder(
            epoch=plan.epoch,
            step=step,
            indices=ids.tolist(),
            ids=ids,
            generations=plan.generations[rows],
            fresh=plan.fresh[rows],
            weights=plan.weights[rows],
            plain=True,
            peers=plan.ids,
        )
    yield EndOfEpoch(plan.epoch)


def planned_epochs(
    size: Callable[[], int],
    *,
    epoch: int,
    first_step: int,
    without: Collection[int],
    seed: int,
    shuffle: bool,
    batch_size: int,
    drop_last: bool,
) -> Orders:
    """Epoch after epoch of plain plans, without end; the first from `first_step`, `without` some steps."""
    done = set(without)
    while True:
        plan = plan_epoch(
            size=size(),
            epoch=epoch,
            seed=seed,
            shuffle=shuffle,
            batch_size=batch_size,
            drop_last=drop_last,
        )
        for order in planned_orders(plan, first_step):
            if isinstance(order, EndOfEpoch) or order.step not in done:
                yield order
        epoch, first_step, done = epoch + 1, 0, set()


def stream_orders(epoch: int, batch_size: int | None) -> Orders:
    """Batches of an iterable data set: it decides itself what is in them, and when they end."""
    size = 1 if batch_size is None else batch_size
    step = 0
    while True:
        ids = np.arange(step * size, (step + 1) * size)
        yield plain_order(epoch, step, [None] * size, ids)
        step += 1
