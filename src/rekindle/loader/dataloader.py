"""The drop-in DataLoader: torch's arguments with torch's meaning, on an engine of our own."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from inspect import signature
from multiprocessing.context import BaseContext
from typing import Any, Self, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, IterDataPipe, MapDataPipe, Sampler

from rekindle.choose import OrderKind, Redundancy
from rekindle.choose.agreement import agree
from rekindle.choose.importance import EpochPlanner, ImportanceMethod
from rekindle.choose.planned_sampler import show_order
from rekindle.choose.position import Position
from rekindle.choose.sampler_epochs import epoch_sampler
from rekindle.choose.seeding import DrawnSeed
from rekindle.core.samples import Batch, Sample
from rekindle.loader import accelerate, arguments, checkpoint, lightning, ray_train, resuming, sharding
from rekindle.loader.epoch_iterator import Progress
from rekindle.loader.epochs import Epochs
from rekindle.loader.native_option import Native
from rekindle.loader.ordering import Ordering
from rekindle.loader.parts import LoaderParts
from rekindle.loader.persistent_workers import PersistentWorkers
from rekindle.loader.rank_facts import facts_of
from rekindle.loader.representation import represent
from rekindle.loader.settings import LoaderSettings
from rekindle.loader.sharding import LoaderOrder, ShardArgument
from rekindle.reuse import Echo, Refurbish
from rekindle.run import Executor, OnError
from rekindle.run.hugging_face import epoch_of, follow_epoch, is_hugging_face
from rekindle.run.ray.settings import Ray
from rekindle.ship import BatchInfo, yielded
from rekindle.tune import Report

Sample_co = TypeVar("Sample_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[Sample_co]):
    """Loads batches for training, exactly as `torch.utils.data.DataLoader` would be asked to.

    All of torch's arguments have torch's meaning. Beyond them:

    Args:
        seed: What all randomness follows from: the order, and what transforms draw. `None` draws one from
            torch's generator, so `torch.manual_seed` makes a run repeatable. Kept in checkpoints.
        executor: "processes", "threads" (in this process), or "auto": processes, with up to four of the
            workers in threads of each where samples take long enough and release the GIL, as those of
            `rekindle.open` do, and datasets that say so (`releases_gil = draws_nothing = True`). Or
            `rekindle.Ray(…)`: actors of a Ray cluster.
        on_error: What to do with a sample that raises an exception: "raise" it, "skip" the sample, or
            "substitute" another one of the same epoch.
        error_budget: The share of an epoch's samples that may be bad before loading stops with an error.
        reuse: `Refurbish(…)` or `Echo(…)`: which work need not be done again for every epoch.
        final_transform: A function of a sample, applied to what the dataset gives; with `reuse`, this is
            what is done afresh each time.
        memory: Memory for what is reused, in place of what `reuse` says: bytes, a size such as "4GB", or
            "auto".
        device: Where batches go: copied without waiting, one batch ahead; and where the steps run that a
            dataset leaves to the device (`rekindle.open(…, place=…)`). None leaves batches on the CPU.
        batch_transform: Steps on whole batches of (images, labels), run where the batches end up: MixUp,
            CutMix, Normalize, ConvertImageDtype of `rekindle.transforms`; one or a list.
        importance: Which samples an epoch has, and at what weight: `Buckets()`, …, or an
            `ImportanceMethod` of your own.
        redundancy: `Redundancy(…)`: what to do with near-duplicates.
        native: True loads the native equivalent of a dataset of torchvision's or timm's (`rekindle.native`),
            which is several times as fast, and raises an error that lists what cannot be translated. "auto"
            then loads the dataset as it is, and logs which it did. `loader.dataset` stays the dataset given.
        shard: Which of the ranks of a distributed run this is, which share every epoch: "ranks" takes rank
            and world size from torch.distributed, or from `RANK` and `WORLD_SIZE`; or (rank, world size).
            None loads everything, or what a `sampler` gives; a `DistributedSampler` means the same as
            `shard=` where `reuse`, `importance` or `redundancy` is given.

    Workers end with the loader, with `close()`, or with a `with` block.

    >>> with DataLoader(range(6), batch_size=4) as loader:
    ...     [batch.tolist() for batch in loader]
    [[0, 1, 2, 3], [4, 5]]

    """

    def __init__(
        self,
        dataset: Dataset[Sample_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        executor: Executor = "auto",
        on_error: OnError = "raise",
        error_budget: float = arguments.DEFAULT_ERROR_BUDGET,
        reuse: Refurbish | Echo | None = None,
        final_transform: Callable[[Sample], Sample] | None = None,
        memory: int | str | None = None,
        device: str | int | torch.device | None = None,
        batch_transform: object = None,
        importance: ImportanceMethod | EpochPlanner | None = None,
        redundancy: Redundancy | None = None,
        native: Native = False,
        shard: ShardArgument = None,
    ) -> None:
        arguments.check_given(dataset, generator, collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        arguments.check_numbers(batch_size=batch_size, prefetch_factor=prefetch_factor)
        num_workers = arguments.worker_count(num_workers, executor, multiprocessing_context)
        self.executor = executor
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory,
            drop_last, timeout, worker_init_fn, multiprocessing_context, generator,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device, in_order=in_order,
        )  # fmt: skip
        self.on_error, self.error_budget = on_error, error_budget
        self.reuse, self.final_transform, self.memory = reuse, final_transform, memory
        self.device, self.batch_transform = device, batch_transform
        self.importance, self.redundancy, self.native, self.shard = importance, redundancy, native, shard
        follows_sampler = not (sampler is None and batch_sampler is None and generator is None)
        kind = arguments.order_kind(isinstance(dataset, IterableDataset), follows_sampler, bool(shuffle))
        chooses = not (importance is None and redundancy is None)
        self._ordering = Ordering(kind, sharding.shard_given(shard), plans=chooses or reuse is not None)
        if self._ordering.shard is None and chooses:
            self._ordering = self._ordering._replace(shard=sharding.implied_shard(self._order.kind))
        order, seed = self._order, arguments.checked_seed(seed)
        arguments.check(executor, on_error, error_budget, order.kind)
        sharding.check_shard(self, order, self._ordering.shard, can_split=is_hugging_face(dataset))
        given = None if isinstance(seed, DrawnSeed) else seed
        self._seed_is_given = given is not None
        sharding.check_seed(self, order.shard, self._ordering.shard, self._seed_is_given)
        self.seed = sharding.agreed_seed(order, seed) if given is None else given
        if kind is OrderKind.SHUFFLED and given is not None:
            # Not for a seed that was drawn: each of several processes has drawn another.
            show_order(self, given)
        self._ordering = self._ordering.with_samplers_of(self)
        self._torchs_prefetch = None if prefetch_factor is not None else self.prefetch_factor
        arguments.check_features(self, order, self._ordering.given, stacklevel=2)
        self._parts = LoaderParts.of(self, order)
        self._progress, self._epochs = Progress(), Epochs()
        self._order_checked = order
        self._agreed: int | None = None  # on how many samples the ranks have
        self._close_with_the_loader()
        accelerate.install()
        lightning.install()
        ray_train.install()

    def check_worker_number_rationality(self) -> None:
        # Torch's warning that there are fewer cores than workers; those of Ray are on other machines.
        if not isinstance(self.executor, Ray):
            super().check_worker_number_rationality()

    def _close_with_the_loader(self) -> None:
        weakref.finalize(self, self._epochs.close_idle)
        if self._parts.actors is not None:
            weakref.finalize(self, self._parts.actors.close)
        weakref.finalize(self, self._parts.reuse.close)

    @property
    def _order(self) -> LoaderOrder:
        """Who decides the order, for which rank and in which batches."""
        return self._ordering.now(self)

    def __setattr__(self, name: str, value: Any) -> None:
        arguments.check_not_set(self, name)
        super().__setattr__(name, value)

    # What a training script uses.

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super().__iter__()  # torch's legacy pipes have their own protocol with torch's workers.
        with self._epochs.passes.lock:
            if self.persistent_workers and self._iterator is None:
                self._iterator = PersistentWorkers(self._epochs)  # type: ignore[assignment]
            self._epochs.goes_on_with_workers = True
            iterator: Iterator[Batch] = self._get_iterator()
        return iterator

    def _get_iterator(self) -> Any:
        """What `iter(loader)` gives, by torch's name. Called by itself, it has new workers, as in torch."""
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super()._get_iterator()
        with self._epochs.passes.lock:
            return self._begin_pass(time.perf_counter(), self._order)

    def _begin_pass(self, asked: float, order: LoaderOrder) -> Iterator[Batch]:
        if self._epochs.sits_out:
            self._epochs.sits_out = False
            return iter(())
        if order != self._order_checked:
            self._follow(order)
        settings = self._settings(order)
        position = self._epochs.next_position(self._progress.position, self._sampler_to_set)
        self._agree(order, settings, position)
        if order.kind is OrderKind.ITERABLE and order.shard is not None:
            self._parts.to_load.set_epoch(epoch_of(self.dataset))  # A part of a stream is one of its own.
        return self._epochs.start(settings, position, self._progress, self, asked)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter(loader)` that of `epoch`, which counts from 0: its order, its augmentation.

        For scripts that save the epoch's number and no more. A sampler's `set_epoch` is called as well, or
        that of an iterable dataset. A loader that stands within this epoch (`load_state_dict`) goes on there.
        """
        epoch = arguments.checked_epoch(epoch)
        is_iterable = self._ordering.given is OrderKind.ITERABLE
        follows: Any = self.dataset if is_iterable else epoch_sampler(self._sampler_to_set)
        if callable(getattr(follows, "set_epoch", None)):
            follows.set_epoch(epoch)
        self._epochs.requested = epoch

    @property
    def _sampler_to_set(self) -> object:
        """The sampler whose `set_epoch` counts, or one that it is within."""
        return None if self._ordering.given is OrderKind.ITERABLE else self._index_sampler

    def _follow(self, order: LoaderOrder) -> None:
        """Take over an order that was put in the place of the one before: a sampler of a framework, say."""
        sharding.check_shard(self, order, self._ordering.shard, can_split=is_hugging_face(self.dataset))
        arguments.check_features(self, order, self._ordering.given, stacklevel=5)
        self._parts.follow(order)
        self._order_checked, self._agreed = order, None

    def _agree(self, order: LoaderOrder, settings: LoaderSettings, at: Position) -> None:
        """Make sure, before a loader's first batch, that all ranks load the same thing."""
        size = settings.size
        if self._agreed == size:
            return
        sharding.warn_of_ranks(order, stacklevel=5)
        if (part := sharding.part_in_group(order.shard)) is not None:
            self._progress.position = at  # Where an interrupt leaves it while it waits for the others.
            steps = len(self) if order.kind.is_planned else None
            agree("a loader", facts_of(settings, at, order, steps, self._parts.importance), part)
        self._agreed = size

    @property
    def batch(self) -> BatchInfo:
        """What the batch just yielded consists of (`ids`, `weights`, `epoch`, `step`, `fresh`)."""
        return resuming.batch_info(self._progress, self._epochs.passes)

    def feedback(
        self,
        losses: torch.Tensor | None = None,
        *,
        logits: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        ids: torch.Tensor | None = None,
    ) -> None:
        """Report to `importance=` how the model did on the batch just yielded; without it, warn once.

        Args:
            losses: One a sample, unweighted (of more dimensions, their mean counts), on any device.
            logits: (samples, classes), with `targets`: tell also whether a sample was right, and by how much.
            targets: The right classes: integers, or of mixed labels the shares, in the shape of the logits.
            ids: Which samples are meant, if not those of the batch just yielded. Without, a batch may be
                reported in pieces, in order, as gradient accumulation has them.

        """
        importance, last = self._parts.importance, self._progress.current
        if importance is not None:
            importance.report_feedback(None if last is None else yielded(last), losses, logits, targets, ids)
        elif not self._progress.has_warned_of_feedback:
            self._progress.has_warned_of_feedback = True
            arguments.warn_of_feedback(stacklevel=2)

    def close(self) -> None:
        """End the workers now and not when the loader goes; the next batch of this epoch raises WorkerError.

        The loader can be used again afterwards: the next epoch starts new workers.
        """
        self._epochs.close()
        if self._parts.actors is not None:
            self._parts.actors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self) -> Report:
        """Where the time went, since this loader was made."""
        return self._settings().report(self._epochs.next_epoch, self._parts.native)

    def __len__(self) -> int:
        """How many batches this epoch has, of this rank; between two epochs, the next one."""
        lightning.install()  # Imported since? It asks for the length before it loads a state.
        order = self._order
        chosen = self._parts.chosen_steps(order, self._progress.position.epoch)
        if chosen is not None:
            return chosen
        plain, is_plain = super().__len__(), not self._ordering.plans and order.shard is None
        return plain if is_plain else self._parts.planned_steps(self, order, plain)

    def __repr__(self) -> str:
        return represent(self, self._order.kind, self._given_prefetch, signature(DataLoader.__init__))

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: numbers, strings and tensors, to be kept in a checkpoint."""
        if self._progress.state_shown is not None:
            return self._progress.state_shown()
        position, settings = resuming.one_position(self._progress, self._epochs.passes), self._settings()
        if not position.begun:
            position = self._epochs.asked_for(position)
        if not position.begun and position.step == 0:
            position = resuming.between_epochs(position, self._index_sampler, settings, self._epochs)
        if isinstance(self.reuse, Echo) and position.epoch > 0 and settings.keeps_datasets:
            arguments.check_echoed_state(self.reuse, self.dataset, self._order.kind)
        return resuming.state_at(position, settings, self._order, self._progress)

    def load_state_dict(self, saved: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on where another loader stood: the next epoch gives the rest of its epoch.

        It may have had other numbers of workers and, with `shard=`, of ranks, and another batch size. Of a
        stream, a list of all ranks' states will do too. StateError if it had another dataset size, seed or
        kind of order.
        An epoch that goes on meanwhile ends: its next batch raises WorkerError.
        """
        settings, parts = self._settings(), self._parts
        saved = resuming.one_state(saved, settings, parts.to_load)
        identity: dict[str, Any] = checkpoint.identity(settings)
        if not self._seed_is_given:
            identity["seed"] = checkpoint.seed_of(saved)
        if isinstance(self.reuse, Refurbish) and self.reuse.split == "auto":
            # What was decided by measuring stays decided.
            identity["split"] = checkpoint.split_of(saved, parts.reuse.last_split)
        position, found, importance, own = resuming.resumed(
            saved, identity, settings, self._order, parts.to_load, stacklevel=2
        )
        if own is not None:
            settings.dataset.load_state_dict(own)
        parts.importance = importance
        follow_epoch(self.dataset, checkpoint.check_version(saved))
        self._progress.position, self._progress.unseen_bad = position, 0
        parts.bad_samples = replace(parts.bad_samples, found=found)
        self.__dict__["seed"] = identity["seed"] if self._seed_is_given else DrawnSeed(identity["seed"])
        self._agreed = None
        self._epochs.resume_at(position, self._sampler_to_set, self.generator)
        self.close()
        parts.reuse.resume(identity["seed"], identity["split"])

    def _settings(self, order: LoaderOrder | None = None) -> LoaderSettings:
        """The arguments as they are now: torch lets scripts change most of them between epochs."""
        order = order or self._order
        return LoaderSettings.of(self, order, self._parts, prefetch_factor=self._given_prefetch)

    @property
    def _given_prefetch(self) -> int | None:
        """The `prefetch_factor` that was given, or set later; not the one that torch fills in."""
        factor: int | None = self.prefetch_factor
        return None if factor == self._torchs_prefetch else factor

    # Accelerate re-creates loaders; it asks for the first of these before it does, then for the second.

    @property
    def _is_accelerate_prepared(self) -> bool:
        accelerate.install()
        return False

    @property
    def rekindle(self) -> dict[str, Any]:
        """The arguments that torch's loader does not have, to make another loader like this one with."""
        return {name: getattr(self, name) for name in arguments.OWN}

    # A copy or a pickle of a loader has no workers, and begins with the next epoch.

    def __getstate__(self) -> dict[str, Any]:
        position = self._epochs.asked_for(self._progress.position)
        if position.begun:
            position = Position(self._epochs.next_epoch)
        kept = {**self.__dict__, "_iterator": None, "_parts": self._parts.kept()}
        kept["_progress"] = Progress(position)
        del kept["_epochs"]
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept, _epochs=Epochs())
        self._epochs.next_epoch = self._progress.position.epoch
        self._parts = LoaderParts.again(self, self._order, kept["_parts"])
        self._close_with_the_loader()
