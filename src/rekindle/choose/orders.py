"""A plan as the sequence of batches to carry out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.plan import EpochPlan
from rekindle.choose.refresh import Refresh


class BatchOrder(NamedTuple):
    """One batch to carry out: a part of a plan, or what a user's sampler names.

    `indices` is what the data set is asked for; `ids` are the same as integers, which name a sample in
    keys, states and reports (a sample's place in the epoch, where an index is no integer). `plain` says that
    the indices are Python's integers, and so equal to the ids.
    """

    epoch: int
    step: int
    indices: list[Any]
    ids: NDArray[np.int64]
    plain: bool
    plan: EpochPlan | None = None
    recent: list[Any] = []  # noqa: RUF012 - indices before this batch, if they are asked for; never changed
    refresh: Refresh | None = None  # when parts that are kept are made anew, where there is no plan
    repeat_of: int | None = None  # the step of the plan, for a batch that comes once more

    @property
    def generations(self) -> int | NDArray[np.int64]:
        """Which augmentation of the part that is kept is meant: one number, if all have the same."""
        if self.refresh is not None:
            return self.refresh.generations(self.ids, self.epoch)
        return self.epoch if self.plan is None else self._number_or_part(self.plan.generations)

    @property
    def turns(self) -> int | NDArray[np.int64]:
        """Which augmentation of the rest is meant: one number, if all have the same."""
        return self.epoch if self.plan is None else self._number_or_part(self.plan.turns)

    @property
    def fresh(self) -> NDArray[np.bool_]:
        """Which samples are computed anew."""
        if self.refresh is not None:
            return self.generations == self.turns  # type: ignore[return-value]
        if self.repeat_of is not None:
            return np.broadcast_to(np.bool_(False), self.ids.shape)
        part: NDArray[np.bool_] = self._part("fresh", np.bool_(True))
        return part

    @property
    def weights(self) -> NDArray[np.float32]:
        """What each sample counts for in the loss."""
        part: NDArray[np.float32] = self._part("weights", np.float32(1))
        return part

    @property
    def peers(self) -> NDArray[np.int64] | None:
        """The samples of the whole epoch, where they are known: what may stand in for one that fails."""
        return None if self.plan is None else self.plan.ids

    def _number_or_part(self, numbers: NDArray[np.int64]) -> int | NDArray[np.int64]:
        if numbers.strides == (0,):
            return self.epoch
        assert self.plan is not None
        return numbers[self._rows(self.plan)]

    def _part(self, name: str, otherwise: Any) -> Any:
        if self.plan is None:
            return np.broadcast_to(otherwise, self.ids.shape)
        return getattr(self.plan, name)[self._rows(self.plan)]

    def _rows(self, plan: EpochPlan) -> slice:
        return plan.rows(self.step if self.repeat_of is None else self.repeat_of)


@dataclass(frozen=True, slots=True)
class EndOfEpoch:
    """The mark between the batches of two epochs."""

    epoch: int


Orders: TypeAlias = Iterator[BatchOrder | EndOfEpoch]


def planned_orders(plan: EpochPlan, first_step: int = 0) -> Orders:
    """The batches of a plan from `first_step` on, then the mark that the epoch is over."""
    for step in range(first_step, plan.steps):
        ids = plan.ids[plan.rows(step)]
        yield BatchOrder(plan.epoch, step, ids.tolist(), ids, True, plan)
    yield EndOfEpoch(plan.epoch)


def planned_epochs(
    plan_of: Callable[[int], EpochPlan],
    *,
    epoch: int,
    first_step: int,
    without: Collection[int],
    one: bool = False,
) -> Orders:
    """Epoch after epoch of plans, without end; the first from `first_step`, `without` some steps.

    Only `one` epoch, where the plan of the next depends on what is learnt in this one.
    """
    done = set(without)
    while True:
        for order in planned_orders(plan_of(epoch), first_step):
            if isinstance(order, EndOfEpoch) or order.step not in done:
                yield order
        if one:
            return
        epoch, first_step, done = epoch + 1, 0, set()


def stream_orders(epoch: int, batch_size: int | None) -> Orders:
    """Batches of an iterable data set: it decides itself what is in them, and when they end."""
    size = 1 if batch_size is None else batch_size
    step = 0
    while True:
        ids = np.arange(step * size, (step + 1) * size)
        yield BatchOrder(epoch, step, [None] * size, ids, plain=False)
        step += 1
