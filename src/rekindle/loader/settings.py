"""What a loader was asked for, as it stands when an epoch starts."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

import torch

from rekindle.choose import OrderKind
from rekindle.choose.importance.session import ImportanceSession
from rekindle.choose.shard import Shard
from rekindle.core.analysis.changes import Watched
from rekindle.core.analysis.self_changes import may_read_on
from rekindle.core.counters import Counters
from rekindle.core.samples import Collate, Index
from rekindle.loader.parts import LoaderParts
from rekindle.loader.sharding import LoaderOrder
from rekindle.prepare.declared import draws_nothing
from rekindle.reuse.session import ReuseSession
from rekindle.run import BadSamples, Executor, Work, choose_executor
from rekindle.run.code_findings import DRAW_NOTHING
from rekindle.run.dataset_copies import has_state
from rekindle.run.ray.actors import Actors
from rekindle.run.runner import ChosenExecutor
from rekindle.run.threads_per_process import threads_per_process
from rekindle.ship.device_options import Placement
from rekindle.tune import Report

if TYPE_CHECKING:
    from rekindle.loader.dataloader import DataLoader


@dataclass(frozen=True)
class LoaderSettings:
    """The arguments of a loader, under torch's names, and the parts that it was wired from."""

    dataset: Any
    order: OrderKind
    index_sampler: Iterable[Index] | None
    batch_size: int | None
    batched: bool
    drop_last: bool
    collate_fn: Collate
    num_workers: int
    executor: Executor
    context: BaseContext | None
    worker_init_fn: Callable[[int], None] | None
    prefetch_factor: int | None  # as it was given; torch fills in 2
    persistent_workers: bool
    timeout: float
    in_order: bool
    pin_memory: bool
    pin_memory_device: str
    generator: torch.Generator | None
    seed: int
    reuse: ReuseSession
    importance: ImportanceSession | None
    device: Placement
    bad_samples: BadSamples
    counters: Counters
    actors: Actors | None
    shard: Shard | None = None  # of ranks that share the epochs

    @classmethod
    def of(
        cls,
        loader: DataLoader[object],
        order: LoaderOrder,
        parts: LoaderParts,
        *,
        prefetch_factor: int | None,
    ) -> LoaderSettings:
        """A loader's arguments as they are now, and its parts."""
        return cls(
            dataset=loader.dataset,
            order=order.kind,
            index_sampler=None if order.kind is OrderKind.ITERABLE else loader._index_sampler,
            batch_size=order.batch_size,
            batched=loader._auto_collation,
            drop_last=order.drop_last,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            executor=loader.executor,
            context=loader.multiprocessing_context,
            worker_init_fn=loader.worker_init_fn,
            prefetch_factor=prefetch_factor,
            persistent_workers=loader.persistent_workers,
            timeout=loader.timeout,
            in_order=loader.in_order,
            pin_memory=loader.pin_memory,
            pin_memory_device=loader.pin_memory_device,
            generator=loader.generator,
            seed=int(loader.seed),
            reuse=parts.reuse,
            importance=parts.importance,
            device=parts.placement,
            bad_samples=parts.bad_samples,
            counters=parts.counters,
            actors=parts.actors,
            shard=order.shard,
        )

    @cached_property
    def size(self) -> int:
        """How many samples the dataset has; -1 if it does not know."""
        try:
            return len(self.dataset) if isinstance(self.dataset, Sized) else -1
        except TypeError:
            return -1

    @cached_property
    def chosen_executor(self) -> ChosenExecutor:
        """Who loads the batches."""
        return choose_executor(self.executor, self.num_workers)

    @property
    def forks(self) -> bool:
        """Whether workers are forked from this process."""
        context = self.context or multiprocessing.get_context()
        return self.chosen_executor == "processes" and context.get_start_method() == "fork"

    @cached_property
    def has_state(self) -> bool:
        """Whether the dataset is a map-style one with a state of its own."""
        return self.order is not OrderKind.ITERABLE and has_state(self.dataset)

    @cached_property
    def takes_states(self) -> bool:
        """Whether workers say in which state their copies of the dataset are, batch by batch."""
        return self.chosen_executor == "processes" and self.has_state and self.reuse.batch_echo is None

    @property
    def threads(self) -> int:
        """How many workers share a process, at most."""
        if self.executor != "auto" or self.num_workers == 0 or self.order is OrderKind.ITERABLE:
            return 1
        if self.reuse.splits_samples:
            return 1
        if self.takes_states:  # Each worker has a copy of its own.
            return 1
        return threads_per_process(self.reuse.dataset, self.collate_fn, self.worker_init_fn)

    @property
    def keeps_proven_workers(self) -> bool:
        """Whether workers live on after an epoch if nothing was changed; not if a `worker_init_fn` expects to
        be called for every epoch, nor if they persist anyhow.
        """
        return self.num_workers > 0 and not self.persistent_workers and self.worker_init_fn is None

    @property
    def batches_ahead(self) -> int | None:
        """How many batches are to be on their way at once, if that was given."""
        return None if self.prefetch_factor is None else max(1, self.prefetch_factor) * self.num_workers

    @property
    def keeps_datasets(self) -> bool:
        """Whether the workers' copies of the dataset go on from one epoch to the next."""
        return self.num_workers == 0 or self.persistent_workers

    @property
    def watched(self) -> tuple[object, ...]:
        """What workers get copies of, or are started by: as long as it is the same, they can be kept."""
        plain = (
            self.num_workers,
            self.executor,
            self.batches_ahead,
            self.timeout,
            self.in_order,
            self.shard,
            None if self.context is None else self.context.get_start_method(),
        )
        return plain, self.dataset, self.collate_fn, *self.reuse.watched

    @cached_property
    def reads_on(self) -> bool:
        """Whether a sample that is loaded and not used may be missing afterwards."""
        is_torchs = any(self.collate_fn is one for one in DRAW_NOTHING)
        inherited = self.num_workers == 0 or self.forks or self.chosen_executor == "threads"
        if not is_torchs and may_read_on(self.collate_fn, inherited=inherited):
            return True
        return not self.draws_nothing and may_read_on(self._read, inherited=inherited)

    @cached_property
    def draws_nothing(self) -> bool:
        """Whether the dataset declares that it draws no random numbers."""
        return draws_nothing(self._read)

    @property
    def _read(self) -> object:
        return self.reuse.dataset if self.reuse.is_native else self.dataset

    def work(self, base_seed: int, watched: Watched | None) -> Work:
        """What a runner has to know."""
        is_iterable = self.order is OrderKind.ITERABLE
        return Work(
            dataset=self.reuse.iterable_view() if is_iterable else self.reuse.dataset,
            batched=self.batched,
            collate_fn=self.collate_fn,
            drop_last=self.drop_last,
            workers=self.num_workers,
            executor=self.chosen_executor,
            context=self.context,
            worker_init_fn=self.worker_init_fn,
            batches_ahead=self.batches_ahead,
            is_planned=self.order.is_planned,
            timeout=self.timeout,
            # Echoes of batches are counted, so the batches are loaded in order.
            in_order=self.in_order or self.reuse.batch_echo is not None,
            seed=self.seed,
            base_seed=base_seed,
            bad_samples=self.bad_samples,
            counters=self.counters,
            reused=self.reuse.worker_view,
            watched=watched,
            threads=self.threads,
            actors=self.actors,
            takes_states=self.takes_states,
            reads_on=self.reads_on,
            draws_nothing=self.draws_nothing,
        )

    def report(self, epochs: int, native: str) -> Report:
        """Where the time went in so many epochs; `native` says what `native="auto"` came to."""
        importance, redundant = self.importance, self.reuse.redundant
        return Report.of(
            self.counters,
            workers=self.num_workers,
            executor=self.chosen_executor,
            threads=self.threads,
            bad_samples=self.bad_samples.found,
            reuse=self.reuse.report(epochs),
            importance=None if importance is None else importance.summary(),
            redundancy=None if redundant is None else redundant.summary(),
            native=native or None,
        )
