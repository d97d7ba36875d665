"""The drop-in DataLoader: torch's arguments with torch's meaning, on an engine of our own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Literal, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, IterDataPipe, MapDataPipe, Sampler, default_collate

from rekindle import adaptive_state, arguments, state, with_accelerate, with_redundancy, with_reuse
from rekindle.adaptive import Adaptive
from rekindle.choose import Orders, PlannedSampler, Redundancy, SamplerOrders, planned_epochs, stream_orders
from rekindle.choose.importance import Method
from rekindle.counters import Counters
from rekindle.iteration import EpochIterator, Progress
from rekindle.parked import Parked
from rekindle.placement import Placement
from rekindle.reuse import Echo, Refurbish
from rekindle.run import BadSamples, OnError, Work, start
from rekindle.run.tickets import Filled, Made
from rekindle.seeding import before_an_epoch, draw_seed, stream_seed, worker_seed
from rekindle.ship import BatchInfo
from rekindle.ship.echo import EchoedBatches
from rekindle.state import Position
from rekindle.tune import Report
from rekindle.with_reuse import Reuse

Sample_co = TypeVar("Sample_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[Sample_co]):
    """Loads batches for training, exactly as `torch.utils.data.DataLoader` would be asked to.

    All of torch's arguments have torch's meaning. Beyond them:

    Args:
        seed: What all randomness follows from: the order, and what transforms draw. `None` draws one from
            torch's generator, so `torch.manual_seed` makes a run repeatable. Kept in the state.
        executor: "processes", "threads", or "auto": threads for data sets that release Python's lock (they
            say so with an attribute `releases_gil = True`) if nothing is reused, processes otherwise.
        on_error: What to do with a sample that raises an exception: "raise" it, "skip" the sample, or
            "substitute" another one of the same epoch.
        error_budget: The share of an epoch's samples that may be bad before loading stops with an error.
        reuse: `Refurbish(…)` or `Echo(…)`: what need not be done again for every epoch.
        final_transform: A function of a sample, applied to what the data set gives; with `reuse`, this is
            what is done anew each time.
        memory: Bytes of memory for what is reused, in place of what `reuse` says.
        device: Where batches go: copied without waiting, one batch ahead; and where the steps run that a data
            set leaves to the device (`rekindle.open(…, place=…)`). None leaves batches on the CPU.
        batch_transform: Steps on whole batches of (images, labels), run where the batches end up: MixUp,
            CutMix, Normalize, ConvertImageDtype of `rekindle.transforms`; one or a list.
        importance: Which samples an epoch has, and at what weight: `Buckets()`, … or your own `Method`.
        redundancy: `Redundancy(…)`: what to do with samples that are nearly the same as others.

    >>> loader = DataLoader(range(6), batch_size=4)
    >>> [batch.tolist() for batch in loader]
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
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        executor: Literal["auto", "threads", "processes"] = "auto",
        on_error: OnError = "raise",
        error_budget: float = 0.01,
        reuse: Refurbish | Echo | None = None,
        final_transform: Callable[[Any], Any] | None = None,
        memory: int | Literal["auto"] | None = None,
        device: str | int | torch.device | None = None,
        batch_transform: Any = None,
        importance: Method | None = None,
        redundancy: Redundancy | None = None,
    ) -> None:
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory,
            drop_last, timeout, worker_init_fn, multiprocessing_context, generator,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device, in_order=in_order,
        )  # fmt: skip
        stream = isinstance(dataset, IterableDataset)
        arguments.check(seed, executor, on_error, error_budget, stream)
        self._order = "stream" if stream else "shuffled" if shuffle else "sequential"
        if not stream and not (sampler is None and batch_sampler is None and generator is None):
            self._order = "sampler"
        self._seed_is_given = seed is not None
        self.seed = draw_seed(put_back=self._order == "sampler") if seed is None else seed
        if self._order == "shuffled" and seed is not None:
            self._show_order()
        self.executor, self.on_error, self.error_budget = executor, on_error, error_budget
        self.reuse, self.final_transform, self.memory = reuse, final_transform, memory
        own_batches = self._auto_collation and self.batch_size is None
        with_reuse.check(reuse, final_transform, self._order, self.sampler, own_batches)
        with_redundancy.check(redundancy, self._order, seed, reuse)
        self._reuse = Reuse(dataset, reuse, final_transform, memory, self.seed, redundancy)
        self.device, self.batch_transform = device, batch_transform
        as_given = self.collate_fn is default_collate and final_transform is None
        by_rows = self._auto_collation and as_given and not stream
        reuses = reuse is not None or final_transform is not None
        self._placement = Placement.of(dataset, device, batch_transform, by_rows=by_rows, reuses=reuses)
        self._bad_samples = BadSamples(on_error, error_budget)
        self._counters = Counters()
        self.importance, self.redundancy = importance, redundancy
        self._adaptive: Adaptive | None = None
        arguments.check_importance(importance, self._order, seed, reuse)
        if importance is not None:
            size: int = len(dataset)  # type: ignore[arg-type]
            self._adaptive = Adaptive(importance, size, self.seed, self._counters, self._reuse.redundant)
        self._progress = Progress()
        self._next_epoch = 0
        self._kept_worker_seed: int | None = None  # of persistent workers, who are seeded once
        self._pass: weakref.ref[EpochIterator] | None = None
        self._parked = Parked()
        weakref.finalize(self, self._parked.close)
        weakref.finalize(self, self._reuse.close)
        with_accelerate.install()

    def _show_order(self) -> None:
        """Let `loader.sampler` give our order, for those who put a loader together anew from its parts.

        Not for a seed that was drawn: each of several processes has drawn another.
        """
        sampler = PlannedSampler(self.dataset, self.seed)  # type: ignore[arg-type]
        self.__dict__["sampler"] = sampler
        if self.batch_sampler is not None:
            self.batch_sampler.sampler = sampler  # type: ignore[attr-defined]

    # What a training script uses.

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super().__iter__()  # torch's legacy pipes have their own protocol with torch's workers.
        position = self._progress.position
        if position.begun:  # Another pass was dropped halfway or still goes on: this one is a new epoch.
            position = Position(self._next_epoch)
        return self._start_pass(position)

    @property
    def batch(self) -> BatchInfo:
        """What the batch just yielded consists of: `ids`, `weights`, `epoch`, `step`, `fresh`."""
        if self._progress.last is None:
            raise AttributeError("loader.batch describes the batch just yielded, and none has been yet")
        return BatchInfo(self._progress.last)

    def feedback(
        self,
        losses: torch.Tensor | None = None,
        *,
        logits: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        ids: torch.Tensor | None = None,
    ) -> None:
        """Tell `importance=` how the model did on the batch just yielded; does nothing without `importance=`.

        Args:
            losses: One a sample, unweighted (of more dimensions, their mean counts), on any device.
            logits: (samples, classes), with `targets`: tell also whether a sample was right, and by how much.
            targets: The right classes.
            ids: Which samples are meant, if not those of the batch just yielded. Without, a batch may be
                reported in pieces, in order, as gradient accumulation has them.

        """
        if self._adaptive is not None:
            self._adaptive.tell(self._progress.last, losses, logits, targets, ids)

    def close(self) -> None:
        """End the workers now and not when the loader goes; a pass that is under way ends with them.

        The loader can be used again afterwards: the next pass starts new workers.
        """
        earlier = self._pass() if self._pass is not None else None
        if earlier is not None:
            earlier._detach()
            earlier._runner.close()
        self._parked.close()

    def report(self) -> Report:
        """Where the time went, since this loader was made."""
        return Report.of(
            self._counters,
            workers=self.num_workers,
            executor=self._work(0).chosen,
            bad_samples=self._bad_samples.found,
            reuse=self._reuse.report(self._next_epoch),
            importance=None if self._adaptive is None else self._adaptive.describe(),
            redundancy=None if self._reuse.redundant is None else self._reuse.redundant.describe(),
        )

    def __len__(self) -> int:
        """How many batches this epoch has; between two epochs, the next one."""
        if self._adaptive is not None:
            choice = self._adaptive.choice or self._adaptive.choose(self._progress.position.epoch)
            return choice.steps(self.batch_size or 1, self.drop_last)
        plain = super().__len__()
        if not isinstance(self.reuse, Echo) and self.redundancy is None:
            return plain
        given: Any = self.dataset if self._order == "stream" else self.sampler
        size = len(given) if self._auto_collation else plain
        return self._reuse.steps(plain, size, self.batch_size or 1, self.drop_last)

    def _note_reuse(self, ready: Filled | Made, batch: Any) -> None:
        """Keep account of a batch of samples that may have been reused."""
        self._reuse.note(ready, batch, None if self._adaptive is None else self._adaptive.scores.uses)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: numbers, strings and tensors, to be kept in a checkpoint."""
        position = self._progress.position
        if not position.begun and position.step == 0:  # Between two epochs: what will the next one draw from?
            position = before_an_epoch(position, self._order, self._index_sampler, self.generator)
        found = self._bad_samples.found
        seen = found[: len(found) - self._progress.unseen_bad]
        saved = state.save(self._identity(), position, seen)
        if self._adaptive is not None:
            saved["importance_state"] = adaptive_state.save(self._adaptive)
        return saved

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where another loader stood: the next pass gives the rest of its epoch.

        The other loader may have had another number of workers. StateError if it had another data set size,
        batch size, seed or kind of order.
        """
        identity = self._identity()
        if isinstance(saved, dict):
            if not self._seed_is_given and isinstance(saved.get("seed"), int):
                identity["seed"] = saved["seed"]
            if isinstance(self.reuse, Refurbish) and self.reuse.split == "auto":
                identity["split"] = saved.get("split")  # What was decided by measuring stays decided.
        known = self._order in ("shuffled", "sequential") and self._adaptive is None
        position, found = state.load(saved, identity, len(self) if known else None)
        if self._adaptive is not None:
            adaptive = self._adaptive.copied(self._counters)
            adaptive_state.load(adaptive, saved.get("importance_state"), identity["seed"])
            adaptive.check_position(position.epoch, position.step, self.batch_size or 1, self.drop_last)
            self._adaptive = adaptive
        self._progress.position = position
        self._bad_samples = BadSamples(self.on_error, self.error_budget, found)
        self._progress.unseen_bad = 0
        self.seed, self._next_epoch = identity["seed"], self._progress.position.epoch
        self.close()
        self._reuse.go_on(self.seed, identity["split"])

    # A pass: who makes the batches, and which.

    def _start_pass(self, position: Position) -> EpochIterator:
        position.begun, self._progress.unseen_bad = True, 0
        self._progress.position, self._next_epoch = position, position.epoch + 1
        earlier = self._pass() if self._pass is not None else None
        if self.persistent_workers and earlier is not None:
            earlier._detach()
        # Persistent workers are seeded once; a stream starts anew with every epoch all the same.
        once = self.persistent_workers and self._order != "stream"
        kept_seed = self._kept_worker_seed if once else None
        sampler_orders = self._follow_sampler(position, kept_seed) if self._order == "sampler" else None
        base_seed = self._base_seed(position, sampler_orders) if kept_seed is None else kept_seed
        self._kept_worker_seed = base_seed
        runner = self._parked.take(self.dataset, self.persistent_workers)
        if runner is None:
            runner = self._start_runner(base_seed)
            self._parked.started(runner, self.dataset, keep=self.persistent_workers)
        try:
            self._give_orders(runner, position, base_seed, kept_seed)
        except BaseException:  # The user's sampler raised, say: nobody will ever ask this runner for a batch.
            runner.close()
            raise
        iterator = EpochIterator(self, runner, position)
        self._pass = weakref.ref(iterator)
        return iterator

    def _start_runner(self, base_seed: int) -> Any:
        self._reuse.prepare()
        runner = start(self._work(base_seed))
        if isinstance(self.reuse, Echo) and self.reuse.after == "batch":
            return EchoedBatches(runner, self.reuse.factor, self.reuse.buffer, self.seed)
        return runner

    def _give_orders(self, runner: Any, position: Position, base_seed: int, kept_seed: int | None) -> None:
        if self._order == "stream":
            assert position.stream is not None
            orders = stream_orders(position.epoch, self.batch_size)
            made, turn = position.stream["made"], position.stream["turn"]
            runner.begin_stream(orders, base_seed, self.batch_size or 1, made, turn)
        elif position.sampler is not None:
            runner.begin(position.sampler, lambda _: base_seed)
        elif not self._parked.is_ahead_at(position):
            seed_of_epoch = partial(worker_seed, self.seed) if kept_seed is None else lambda _: base_seed
            if isinstance(runner, EchoedBatches):
                runner.begin_planned(partial(self._planned, position), seed_of_epoch, position)
            else:
                runner.begin(self._planned(position, position.step, position.ahead), seed_of_epoch)

    def _planned(self, position: Position, first_step: int, without: Collection[int]) -> Orders:
        """Our own order from here on: the next epoch follows without a pause."""
        choice = None if self._adaptive is None else self._adaptive.choose(position.epoch)
        plan_of = self._reuse.plan_of(
            choice,
            shuffle=self._order == "shuffled",
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
        )
        return planned_epochs(
            plan_of, epoch=position.epoch, first_step=first_step, without=without, one=choice is not None
        )

    def _follow_sampler(self, position: Position, kept_seed: int | None) -> SamplerOrders:
        orders = SamplerOrders(
            self._index_sampler,
            batched=self._auto_collation,
            epoch=position.epoch,
            generator=self.generator,
            base_seed=kept_seed,
            resume=position.sampler_state,
            without=position.ahead,
            keep_recent=self.on_error == "substitute",
            refresh=self._reuse.refresh(),
            plan_of=self._reuse.plan_of_sampler(position.epoch, self.batch_size or 1, self.drop_last),
        )
        position.sampler = orders
        return orders

    def _base_seed(self, position: Position, orders: SamplerOrders | None) -> int:
        """What torch would seed its workers with."""
        if orders is not None:
            return orders.base_seed
        if self._order == "stream":
            return stream_seed(position, self.seed, self.num_workers, self.generator)
        return worker_seed(self.seed, position.epoch)

    def _park(self, runner: Any) -> None:
        """Keep a runner whose epoch is over for the next one, or end it."""
        if self._adaptive is not None:  # All that this epoch can tell is known now: choose for the next one.
            try:
                self._adaptive.choose(self._next_epoch, ended=True)
            except BaseException:
                runner.close()
                raise
        once_an_epoch = self.worker_init_fn is not None and not self.persistent_workers
        if self.num_workers == 0 or once_an_epoch:
            runner.close()
            return
        if self._adaptive is not None:
            kept_seed = self._kept_worker_seed if self.persistent_workers else None
            self._give_orders(runner, Position(self._next_epoch), kept_seed or 0, kept_seed)
        planned = self._order in ("shuffled", "sequential")
        self._parked.park(runner, self._next_epoch if planned else None)

    def _work(self, base_seed: int) -> Work:
        return Work(
            dataset=self._reuse.stream()
            if self._order == "stream"
            else self._placement.loaded_from(self.dataset),
            stream=self._order == "stream",
            batched=self._auto_collation,
            collate_fn=self.collate_fn,
            drop_last=self.drop_last,
            workers=self.num_workers,
            executor=self.executor,
            context=self.multiprocessing_context,
            worker_init_fn=self.worker_init_fn,
            window=max(1, (self.prefetch_factor or 1) * self.num_workers),
            timeout=self.timeout,
            in_order=self.in_order or self._reuse.repeats_batches,
            seed=self.seed,
            base_seed=base_seed,
            bad_samples=self._bad_samples,
            counters=self._counters,
            reused=self._reuse.reused,
        )

    def _identity(self) -> dict[str, Any]:
        """What a state must agree with."""
        try:
            size = len(self.dataset)  # type: ignore[arg-type]
        except TypeError:
            size = -1
        identity = {
            "seed": self.seed,
            "dataset_size": size,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "order": self._order,
            **self._reuse.identity(),
            "importance": self._adaptive.name if self._adaptive is not None else "",
        }
        if self._order == "stream":  # Each worker has its own part of a stream.
            identity["num_workers"] = max(1, self.num_workers)
        return identity

    # Accelerate makes loaders anew; it asks for the first of these before it does, then for the second.

    @property
    def _is_accelerate_prepared(self) -> bool:
        with_accelerate.install()
        return False

    @property
    def rekindle(self) -> dict[str, Any]:
        """The arguments that torch's loader does not have, to make another loader like this one with."""
        names = ("seed", "executor", "on_error", "error_budget", "reuse", "final_transform", "memory")
        further = ("device", "batch_transform", "importance", "redundancy")
        return {name: getattr(self, name) for name in (*names, *further)}

    # A copy or a pickle of a loader has no workers, and begins with the next epoch.

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        for name in ("_parked", "_pass", "_reuse"):
            del kept[name]
        position = self._progress.position
        kept["_progress"] = Progress(Position(self._next_epoch) if position.begun else position)
        kept["_counters"] = Counters()
        if self._adaptive is not None:
            kept["_adaptive"] = self._adaptive.copied(kept["_counters"])
        kept["_bad_samples"] = BadSamples(self.on_error, self.error_budget, list(self._bad_samples.found))
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept, _pass=None, _parked=Parked())
        self._reuse = Reuse(
            self.dataset, self.reuse, self.final_transform, self.memory, self.seed, self.redundancy
        )
        if self._adaptive is not None:
            self._adaptive.redundant = self._reuse.redundant
        weakref.finalize(self, self._parked.close)
        weakref.finalize(self, self._reuse.close)
