"""Which samples an epoch has, and at what weight: before they are ordered, batched and dealt to ranks."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.plan import EpochPlan, batches_per_epoch
from rekindle.choose.planned_rows import constant
from rekindle.choose.planning import PlanArguments, plan_chosen
from rekindle.choose.rank_homes import Dealt
from rekindle.choose.sample_ids import Ids
from rekindle.choose.shard import ONE_RANK, Shard
from rekindle.core import counter_rng
from rekindle.errors import ArgumentError


class Choice(NamedTuple):
    """The samples of one epoch, for all ranks together; `rank` is the one whose share is planned.

    `uses` says in how many of the epochs before each was chosen, where something is reused; `cached` which
    generation is.
    `even_batches` asks for weights whose mean is 1 in every batch.
    """

    ids: Ids
    weights: NDArray[np.float32]
    uses: NDArray[np.int64] | None
    even_batches: bool = False
    rank: int = 0
    world: int = 1
    cached: NDArray[np.int64] | None = None
    dealt: Dealt | None = None  # to the ranks that have what is cached

    def plan(self, **arguments: Unpack[PlanArguments]) -> EpochPlan:
        """The plan of this rank's share; `arguments` as `plan_epoch` takes them."""
        if arguments.get("shard", ONE_RANK).world == 1:
            arguments = {**arguments, "shard": Shard(self.rank, self.world)}
        return plan_chosen(
            self.ids,
            self.weights,
            self.uses,
            self.cached,
            self.dealt,
            even_weights=self.even_batches,
            **arguments,
        )

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """How many batches a rank's share has."""
        return batches_per_epoch(-(-len(self.ids) // self.world), batch_size, drop_last)

    def shared_evenly(self, seed: int, epoch: int) -> Choice:
        """The same with as many samples as the ranks can share evenly, so that all have the same steps.

        The few samples added are in the choice already; their weight is divided between their occurrences, so
        that each counts for as much as before.
        """
        missing = -len(self.ids) % self.world
        if not missing:
            return self
        count = len(self.ids)
        again = counter_rng.permutation(count, seed, epoch)[np.arange(missing) % count]
        share = 1 + np.bincount(again, minlength=count)
        weights = (self.weights / share).astype(np.float32)
        return self._replace(
            ids=np.concatenate([self.ids, self.ids[again]]),
            weights=np.concatenate([weights, weights[again]]),
            uses=None if self.uses is None else np.concatenate([self.uses, self.uses[again]]),
        )


def validated(planned: object, size: int, name: str) -> tuple[Ids, NDArray[np.float32]]:
    """The ids and weights that a method's `plan` returned; ArgumentError, naming it, if they are unusable."""

    def error(problem: str) -> ArgumentError:
        return ArgumentError(
            f"{name}.plan must return (indices, weights), with None for weights of 1; {problem}. "
            f"The dataset has {size} samples."
        )

    if not isinstance(planned, tuple) or len(planned) != 2:
        raise error(f"got {planned!r}")
    ids = np.asarray(planned[0])
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise error(
            f"for the indices, expected a non-empty 1-D integer array, got {ids.dtype} of shape {ids.shape}"
        )
    if ids.min() < 0 or ids.max() >= size:
        raise error(f"index {ids[(ids < 0) | (ids >= size)][0]} is out of range")
    if ids.dtype != np.int32:
        ids = ids.astype(np.int64, copy=False)
    if planned[1] is None:
        return ids, constant(np.float32(1), len(ids))
    weights = np.asarray(planned[1])
    if weights.shape != ids.shape or weights.dtype.kind not in "iuf":
        raise error(f"got {len(ids)} indices, but weights of {weights.dtype} and shape {weights.shape}")
    if not (weights.min() >= 0 and weights.max() < np.inf):  # NaN is neither.
        raise error("some weights are negative or not finite")
    return ids, weights.astype(np.float32, copy=False)
