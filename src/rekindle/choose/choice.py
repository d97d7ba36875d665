"""Which samples an epoch has, and at what weight: before they are ordered, batched and dealt out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle import keys
from rekindle.choose.plan import EpochPlan, plan_epoch
from rekindle.errors import ArgumentError


class Choice(NamedTuple):
    """The samples of one epoch, for all ranks together; `rank` is the one whose share is laid out.

    `uses` says in how many of the epochs before each was chosen. `even_batches` asks for weights whose mean
    is 1 in every batch.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    uses: NDArray[np.int64]
    even_batches: bool = False
    rank: int = 0
    world: int = 1

    def laid_out(self, **layout: Any) -> EpochPlan:
        """The plan of this rank's share; `layout` as `plan_epoch` takes it."""
        plan = plan_epoch(
            rank=self.rank,
            world=self.world,
            ids=self.ids,
            weights=self.weights,
            uses=self.uses,
            **layout,
        )
        return plan.with_mean_weight_of_one() if self.even_batches else plan

    def steps(self, batch_size: int, drop_last: bool) -> int:
        """How many batches a rank's share has."""
        full, rest = divmod(len(range(self.rank, len(self.ids), self.world)), batch_size)
        return full + (rest > 0 and not drop_last)

    def shared_evenly(self, seed: int, epoch: int) -> Choice:
        """The same with as many samples as the ranks can share evenly, so that all have the same steps.

        The few that are added are samples of the choice again, at half their weight in both places: what each
        counts for is unchanged.
        """
        missing = -len(self.ids) % self.world
        if not missing:
            return self
        count = len(self.ids)
        again = keys.permutation(count, seed, epoch)[np.arange(missing) % count]
        share = 1 + np.bincount(again, minlength=count)
        weights = (self.weights / share).astype(np.float32)
        return self._replace(
            ids=np.concatenate([self.ids, self.ids[again]]),
            weights=np.concatenate([weights, weights[again]]),
            uses=np.concatenate([self.uses, self.uses[again]]),
        )


def checked(planned: Any, size: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """What a method's `plan` gave as ids and weights; ArgumentError, naming it, if they cannot be used."""

    def wrong(what: str) -> ArgumentError:
        return ArgumentError(
            f"{name}.plan must give indices and weights (None for weights of 1), but {what}. "
            f"There are {size} samples."
        )

    if not isinstance(planned, tuple) or len(planned) != 2:
        raise wrong(f"gave {planned!r}")
    ids, weights = np.asarray(planned[0]), planned[1]
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iu":
        raise wrong(f"its indices are no row of at least one whole number: {ids!r}")
    outside = (ids < 0) | (ids >= size)
    if outside.any():
        raise wrong(f"one index is {ids[outside][0]}")
    weights = np.ones(len(ids)) if weights is None else np.asarray(weights)
    if weights.shape != ids.shape or weights.dtype.kind not in "iuf":
        raise wrong(f"there are {len(ids)} indices and weights of the shape {weights.shape}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise wrong("some weights are negative or not finite")
    return ids.astype(np.int64), weights.astype(np.float32)
