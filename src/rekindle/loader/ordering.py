"""Who decides the order of a loader's samples: its arguments, or a sampler put in later, as torch allows."""

from __future__ import annotations

from typing import NamedTuple

import torch.utils.data
from torch.utils.data import BatchSampler

from rekindle.choose import OrderKind
from rekindle.choose.partition import sharding_of
from rekindle.choose.shard import Shard
from rekindle.loader.sharding import LoaderOrder


class Ordering(NamedTuple):
    """Who decides, by a loader's arguments.

    With `plans`, the loader has something to plan, and a sampler that deals the dataset to ranks only says to
    which: torch's DistributedSampler, and what Lightning and Accelerate put in its place.
    """

    given: OrderKind
    shard: Shard | None
    plans: bool
    own_samplers: tuple[object, object] | None = None  # that torch has made; None for an iterable one

    def with_samplers_of(self, loader: torch.utils.data.DataLoader[object]) -> Ordering:
        """The same for a loader whose samplers are still its own."""
        if self.given is OrderKind.ITERABLE:
            return self
        return self._replace(own_samplers=(loader._index_sampler, loader.sampler))

    def now(self, loader: torch.utils.data.DataLoader[object]) -> LoaderOrder:
        """Who decides the order now: a sampler too that was put in the place of our own, as torch allows."""
        kind = self._kind_now(loader)
        plain = LoaderOrder(kind, loader.batch_size, loader.drop_last, self.shard)
        plans = self.plans or self.shard is not None
        if kind is not OrderKind.SAMPLER or not plans or loader.generator is not None:
            return plain
        found = sharding_of(loader._index_sampler, len(loader.dataset))  # type: ignore[arg-type]
        if found is None:
            return plain
        return LoaderOrder(
            OrderKind.SHUFFLED if found.shuffle else OrderKind.SEQUENTIAL,
            loader.batch_size if found.batch_size is None else found.batch_size,
            loader.drop_last if found.batch_size is None else found.drop_last,
            Shard(found.rank, found.world, found.drop_uneven, found.gathers),
            found.seed,
        )

    def _kind_now(self, loader: torch.utils.data.DataLoader[object]) -> OrderKind:
        if not self.given.is_planned or self.own_samplers is None:
            return self.given
        batcher = loader.batch_sampler
        within = batcher.sampler if type(batcher) is BatchSampler else self.own_samplers[1]
        is_own = loader._index_sampler is self.own_samplers[0] and within is self.own_samplers[1]
        return self.given if is_own else OrderKind.SAMPLER
