"""The parts that a loader is wired from: what reads, reuses, chooses, ships and counts its samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import default_collate

from rekindle.choose import OrderKind, batches_per_epoch
from rekindle.choose.importance.session import ImportanceSession
from rekindle.core.counters import Counters
from rekindle.loader import sharding
from rekindle.loader.native_option import dataset_to_load
from rekindle.loader.sharding import LoaderOrder
from rekindle.reuse.session import ReuseSession
from rekindle.run import BadSamples
from rekindle.run.ray.actors import Actors, actors_of
from rekindle.ship.device_options import Placement

if TYPE_CHECKING:
    from rekindle.loader.dataloader import DataLoader


class KeptParts(NamedTuple):
    """What a copy of a loader takes over of its parts."""

    placement: Placement
    counters: Counters
    bad_samples: BadSamples
    importance: ImportanceSession | None


@dataclass
class LoaderParts:
    """The parts of one loader, made from its arguments."""

    to_load: Any  # what is read of the dataset: its native equivalent, a rank's part of a stream
    reuse: ReuseSession
    placement: Placement
    counters: Counters
    bad_samples: BadSamples
    importance: ImportanceSession | None
    actors: Actors | None
    native: str  # what `native="auto"` came to; empty if that was not given

    @classmethod
    def of(cls, loader: DataLoader[object], order: LoaderOrder) -> LoaderParts:
        """New ones, for the order that the loader has now."""
        to_load, reuse, native = _reuse(loader, order)
        counters, importance = Counters(), None
        if loader.importance is not None:
            shuffled = order.kind is OrderKind.SHUFFLED
            importance = ImportanceSession(
                loader.importance,
                len(loader.dataset),  # type: ignore[arg-type]
                int(loader.seed),
                counters,
                reuse.redundant,
                reuse.planning.refresh_by_use(shuffled, order.batch_size or 1, order.drop_last),
                order.shard,
                reuse.planning.refresh,
            )
        return cls(
            to_load,
            reuse,
            _placement(loader, order, to_load, reuse),
            counters,
            BadSamples(loader.on_error, loader.error_budget, keep_steps=sharding.keeps_steps(order)),
            importance,
            actors_of(loader.executor),
            native,
        )

    def kept(self) -> KeptParts:
        """What a copy of the loader, or a pickle of it, is to take over: nothing that runs."""
        counters = Counters()
        importance = None if self.importance is None else self.importance.copied(counters)
        if importance is not None:
            importance.schedule = None  # `again` gives it that of the copy.
        return KeptParts(
            self.placement,
            counters,
            replace(self.bad_samples, found=list(self.bad_samples.found)),
            importance,
        )

    @classmethod
    def again(cls, loader: DataLoader[object], order: LoaderOrder, kept: KeptParts) -> LoaderParts:
        """Those of a copy."""
        to_load, reuse, native = _reuse(loader, order)
        if kept.importance is not None:
            kept.importance.duplicates = reuse.redundant
            kept.importance.schedule = reuse.planning.refresh
        return cls(to_load, reuse, *kept, actors_of(loader.executor), native)

    def follow(self, order: LoaderOrder) -> None:
        """Take over an order that was put in the place of the one before."""
        self.reuse.order_by(order.seed)
        self.bad_samples.keep_steps = sharding.keeps_steps(order)
        if self.importance is not None:
            self.importance.shard = order.shard

    def chosen_steps(self, order: LoaderOrder, epoch: int) -> int | None:
        """How many batches an epoch has whose samples are chosen; None if none are."""
        if self.importance is None:
            return None
        choice = self.importance.choice or self.importance.choose(epoch)
        return choice.steps(order.batch_size or 1, order.drop_last)

    def planned_steps(self, loader: DataLoader[object], order: LoaderOrder, plain: int) -> int:
        """How many batches an epoch has for this rank, where torch's loader would have `plain` of them."""
        given: Any = loader.dataset if order.kind is OrderKind.ITERABLE else loader.sampler
        samples = len(given) if loader._auto_collation else plain
        batch_size, drop_last, shard = order.batch_size or 1, order.drop_last, order.shard
        if order.kind.is_planned and shard is not None:
            samples = shard.share(len(loader.dataset))  # type: ignore[arg-type]
            plain = batches_per_epoch(samples, batch_size, drop_last)
        steps = self.reuse.planning.steps(plain, samples, batch_size, drop_last, order.layout.world)
        return max(0, steps - loader._epochs.first_step)


def _reuse(loader: DataLoader[object], order: LoaderOrder) -> tuple[Any, ReuseSession, str]:
    dataset, native = dataset_to_load(loader.dataset, loader.native)
    to_load = sharding.split(dataset, order.shard)
    reuse = ReuseSession(
        to_load, loader.reuse, loader.final_transform, loader.memory, int(loader.seed), loader.redundancy
    )
    reuse.order_by(order.seed)
    return to_load, reuse, native


def _placement(
    loader: DataLoader[object], order: LoaderOrder, to_load: object, reuse: ReuseSession
) -> Placement:
    as_given = loader.collate_fn is default_collate and loader.final_transform is None
    return Placement.of(
        to_load,
        loader.device,
        loader.batch_transform,
        batched=loader._auto_collation,
        by_rows=loader._auto_collation and as_given and order.kind is not OrderKind.ITERABLE,
        reuses=loader.final_transform is not None or reuse.keeps_account,
    )
