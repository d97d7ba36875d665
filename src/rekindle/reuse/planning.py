"""How reuse lays out an epoch: what is recomputed when, what is repeated, in balanced batches."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import Choice, EpochPlan, EpochStart, Refresh, Shard, plan_echo, plan_epoch
from rekindle.choose.batch_orders import PlanOf
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.duplicates.unit_shards import unit_shards
from rekindle.choose.echo_order import echoed_length
from rekindle.choose.echo_sequence import echo_plan
from rekindle.choose.plan import batches_per_epoch
from rekindle.choose.planning import PlanArguments
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.choose.refurbish_sequence import CostsOf
from rekindle.choose.shard import ONE_RANK, EpochLayout
from rekindle.prepare.native import encoded_lengths
from rekindle.reuse.settings import Echo, Refurbish

_FIXED_COST = 40_000  # what a sample costs beside its decoding, as bytes of a JPEG that take as long


class Layout(TypedDict):
    """How an epoch is laid out in batches."""

    shuffle: bool
    batch_size: int
    drop_last: bool


class ReusePlanning:
    """Plans the epochs of a loader that may reuse samples, and substitute near-duplicates."""

    def __init__(
        self, dataset: Sized, reuse: Refurbish | Echo | None, seed: int, redundant: DuplicatePolicy | None
    ) -> None:
        self._dataset, self._reuse, self._seed, self._redundant = dataset, reuse, seed, redundant
        self._refresh: Refresh | None = None
        self._shared_refresh: Refresh | None = None
        self._lengths: NDArray[np.int64] | None = None

    def follow(self, seed: int) -> None:
        """Plan as this seed says from now on."""
        self._seed, self._refresh, self._shared_refresh = seed, None, None

    def plan_of(
        self,
        choice: Choice | None,
        layout: Layout,
        shard: Shard | None = None,
        begun: tuple[int, EpochStart] | None = None,
    ) -> PlanOf:
        """What plans a rank's share of an epoch: of all samples, or of those that were chosen.

        `begun` is an epoch, and where the rank starts in it, that was begun with another world or batch size.
        """
        plan: Callable[..., EpochPlan] = plan_epoch if choice is None else choice.plan
        share = shard or ONE_RANK

        def start(epoch: int) -> EpochStart | None:
            return begun[1] if begun is not None and begun[0] == epoch else None

        redundant, dataset, seed, reuse = self._redundant, self._dataset, self._seed, self._reuse
        if choice is None and redundant is not None:
            plan = partial(_plan_without_duplicates, redundant)
        if isinstance(reuse, Echo) and reuse.after != "batch":
            factor, buffer = reuse.factor, reuse.buffer
            return lambda epoch: plan_echo(
                size=len(dataset), epoch=epoch, seed=seed, factor=factor, buffer=buffer, shard=share,
                start=start(epoch), **layout,
            )  # fmt: skip
        if not isinstance(reuse, Refurbish):
            return lambda epoch: plan(
                size=len(dataset), epoch=epoch, seed=seed, shard=share, start=start(epoch), **layout
            )
        balance = reuse.balance is not None
        size = len(dataset)
        costs_of = self.costs_of(size) if reuse.balance == "cost" else None
        refresh = self.refresh()
        return lambda epoch: plan(
            size=size, epoch=epoch, seed=seed, shard=share, start=start(epoch), refresh=refresh,
            balance=balance, costs_of=costs_of, **layout,
        )  # fmt: skip

    def refresh_by_use(self, shuffle: bool, batch_size: int, drop_last: bool) -> RefreshByUse | None:
        """What decides which of the samples that a method of importance chose are recomputed.

        Near-duplicates that share results keep to their turns instead.
        """
        if not isinstance(self._reuse, Refurbish):
            return None
        shared = self._redundant is not None and self._redundant.substitutes
        return RefreshByUse(self._reuse.factor, batch_size, drop_last, shuffle, shared)

    def plan_of_sampler(
        self, epoch: int, batch_size: int, drop_last: bool
    ) -> Callable[[NDArray[np.int64]], EpochPlan] | None:
        """What plans an epoch of a user's own sampler; None if it is followed as it is."""
        if not isinstance(self._reuse, Echo):
            return None
        return partial(
            echo_plan,
            epoch=epoch,
            seed=self._seed,
            batch_size=batch_size,
            drop_last=drop_last,
            factor=self._reuse.factor,
            buffer=self._reuse.buffer,
        )

    def refresh(self) -> Refresh | None:
        """When samples are recomputed; those that are substituted for each other, together."""
        plain = self.plain_refresh()
        if plain is None or self._redundant is None:
            return plain
        if self._shared_refresh is None:
            self._shared_refresh = self._redundant.refresh(plain)
        return self._shared_refresh

    def released(self, plan: EpochPlan) -> NDArray[np.int64]:
        """Near-duplicates whose results this rank used before, and no rank uses from this epoch on."""
        layout, shard = plan.start.layout, plan.shard
        shards = unit_shards(self.refresh(), True, layout) if layout.world == shard.world else None
        return np.empty(0, dtype=np.int64) if shards is None else shards.released(plan.epoch, shard.rank)

    def used_up(self, plan: EpochPlan, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some samples whose cached result is not used after this epoch."""
        refresh = self.plain_refresh()
        if refresh is None:
            return np.empty(0, dtype=np.int64)
        begun, size = plan.start.layout, len(self._dataset)
        ranks = Shard(0, begun.world, plan.shard.drop_last)
        left_out = ranks.left_out(size, begun.batch_size, plan.drop_last)
        following = refresh.serving(size - left_out).next_turns(ids, plan.epoch)
        used_up: NDArray[np.int64] = ids[following == plan.epoch + 1]
        return used_up

    def plain_refresh(self) -> Refresh | None:
        """The same without substitution."""
        if not isinstance(self._reuse, Refurbish):
            return None
        size = len(self._dataset)
        if self._refresh is None or self._refresh.size != size:
            seed = self._reuse.part_seed(self._seed)
            self._refresh, self._shared_refresh = Refresh(size, self._reuse.factor, seed), None
        return self._refresh

    def costs_of(self, size: int) -> CostsOf | None:
        """What the dataset's `size` samples are predicted to cost, from their files' lengths, if known."""
        if self._lengths is None or len(self._lengths) != size:
            self._lengths = encoded_lengths(self._dataset)
        lengths = self._lengths
        if lengths is None:
            return None
        return lambda ids: (lengths[ids] + _FIXED_COST).astype(np.float32)

    def steps(self, plain: int, samples: int, batch_size: int, drop_last: bool, world: int = 1) -> int:
        """How many batches a rank has in an epoch, that has `plain` of them without reuse."""
        if self._redundant is not None:
            return self._redundant.epochs.steps(batch_size, drop_last, world)
        if not isinstance(self._reuse, Echo):
            return plain
        if self._reuse.after == "batch":
            return echoed_length(plain, self._reuse.factor)
        return batches_per_epoch(echoed_length(samples, self._reuse.factor), batch_size, drop_last)


def _plan_without_duplicates(redundant: DuplicatePolicy, **given: Unpack[PlanArguments]) -> EpochPlan:
    """A rank's plan of what is left of an epoch: shared evenly by the ranks that it was begun by."""
    shard, start = given.get("shard", ONE_RANK), given.get("start")
    begun = EpochLayout(shard.world, given["batch_size"]) if start is None else start.layout
    shards = unit_shards(given.get("refresh"), given["shuffle"], begun)
    if shards is None:
        choice = redundant.epochs.choice(given["epoch"], Shard(0, begun.world))
    else:
        choice = shards.choice(given["epoch"], begun.batch_size, given["drop_last"])
    return choice._replace(rank=shard.rank, world=shard.world).plan(**given)
