"""Near-copies in one loader: what was asked for, the epochs' choices, and what came of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.all_ranks import rank_and_world
from rekindle.choose import (
    BatchOrder,
    Choice,
    Copies,
    EpochPlan,
    Redundancy,
    Refresh,
    StandIns,
    reads_spared,
)
from rekindle.errors import ArgumentError
from rekindle.reuse import Refurbish


class Redundant:
    """What a loader does with the near-copies of a data set of `size` samples."""

    def __init__(self, asked: Redundancy, size: int, seed: int) -> None:
        self.asked, self.groups = asked, asked.groups_of(size)
        self.removes = asked.mode == "remove"
        self.follow(seed)
        self._served = np.zeros(size, dtype=np.int64)
        self._stood_in = self._saved = 0
        self.identity = asked.identity(size)  # what a state must agree with
        self._noted: EpochPlan | None = None
        self._spared: NDArray[np.int8] | None = None  # of that plan

    def follow(self, seed: int) -> None:
        """Let the members of groups take turns as this seed says."""
        members = [group.ids for group in self.groups.groups]
        self.copies, self._seed = Copies.of(members, self.groups.size, seed), seed

    def chosen(
        self, ids: NDArray[np.int64], weights: NDArray[np.float32], epoch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """What stays of the samples that a method chose."""
        if not self.removes:
            return ids, weights
        return self.copies.one_of_each(ids, weights, epoch, keep_totals=self.asked.correct)

    def used(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which samples' uses count, if these are chosen: members that stand in for each other share them."""
        return np.unique(ids) if self.removes else self.copies.with_copies(ids)

    def choice(self, epoch: int) -> Choice:
        """The samples of an epoch, where no method chooses: a pure function of the epoch."""
        everything = np.arange(len(self.copies.units))
        ids, weights = self.chosen(everything, np.ones(len(everything), dtype=np.float32), epoch)
        uses = self.copies.turns_before(ids, epoch) if self.removes else np.full(len(ids), epoch)
        return Choice(ids, weights, uses, False, *rank_and_world()).shared_evenly(self._seed, epoch)

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """How many batches a rank has of an epoch, where no method chooses."""
        count = self.copies.number_of_units if self.removes else len(self.copies.units)
        full, rest = divmod(-(-count // rank_and_world()[1]), batch_size)
        return full + (rest > 0 and not drop_last)

    def refresh(self, plain: Refresh) -> Refresh:
        """When parts are made anew."""
        return plain if self.removes else StandIns.over(self.copies, plain.factor, plain.seed)

    def note(
        self,
        order: BatchOrder,
        ids: NDArray[np.int64],
        plain: Refresh | None,
        uses: NDArray[np.int64] | None,
    ) -> None:
        """Keep account of a batch; `uses` as in `Scores`, where a method chooses."""
        np.add.at(self._served, ids, 1)
        plan = order.plan
        if plan is None or plan.own is None or plain is None:
            return
        if plan is not self._noted:
            turns = plan.epoch if uses is None else uses[plan.own] - 1
            self._noted, self._spared = plan, reads_spared(plan, plain, turns)
        assert self._spared is not None
        rows = plan.rows(order.step)
        self._stood_in += int((plan.own[rows] != plan.ids[rows]).sum())
        self._saved += int(self._spared[rows].sum())

    def used_up(self, order: BatchOrder) -> NDArray[np.int64]:
        """The samples whose parts nobody will use again, because others of their groups were made."""
        made = order.ids[order.fresh]
        return np.setdiff1d(self.copies.with_copies(made), made)

    def describe(self) -> dict[str, Any]:
        """What the report says about it; `inclusion`: how many samples with copies came how often."""
        counts = Counter(self._served[self.copies.counts > 1].tolist())
        told = {"mode": self.asked.mode, "groups": len(self.groups), "samples in groups": self.groups.samples}
        if not self.removes:
            told |= {"stood in": self._stood_in, "reads saved": self._saved}
        return {**told, "inclusion": {str(times): count for times, count in sorted(counts.items())}}


def check(asked: Any, order: str, seed: int | None, reuse: Any) -> None:
    """ArgumentError unless near-copies can be handled in a loader with this kind of order."""
    if asked is None:
        return
    if not isinstance(asked, Redundancy):
        raise ArgumentError(f"redundancy is {asked!r}. Give rk.Redundancy(…) or None.")
    if order == "stream":
        raise ArgumentError(
            "redundancy= does not go with an IterableDataset, which decides itself what comes next. "
            "Use a map-style data set."
        )
    if order == "sampler":
        raise ArgumentError(
            "redundancy= chooses the samples itself, so it does not go with sampler=, batch_sampler= or "
            "generator=. Use shuffle=True and seed=; ranks of torch.distributed share samples without one."
        )
    if asked.mode == "replace" and not isinstance(reuse, Refurbish):
        raise ArgumentError(
            "redundancy=Redundancy(mode='replace') serves samples whose part is kept, but reuse is "
            f"{reuse!r}, which keeps none. Give reuse=rk.Refurbish(…), or use mode='remove'."
        )
    if reuse is not None and not isinstance(reuse, Refurbish):
        raise ArgumentError("redundancy= does not go with reuse=Echo(…). Use reuse=rk.Refurbish(…), or none.")
    if rank_and_world()[1] > 1 and seed is None:
        raise ArgumentError("redundancy= needs the same seed= on all ranks, but none is given")
