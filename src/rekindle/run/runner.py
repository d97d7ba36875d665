"""Chooses who loads the batches: this thread, threads beside it, processes, or actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any, Literal, Protocol, TypeAlias

from torch.utils.data import default_collate

from rekindle.choose import EndOfEpoch, Orders
from rekindle.choose.position import CopyStates, IterablePosition
from rekindle.core.analysis.changes import Watched
from rekindle.core.analysis.worker_questions import asks_which_worker
from rekindle.core.counters import Counters
from rekindle.core.samples import Collate
from rekindle.reuse.worker_view import WorkerView
from rekindle.run.bad_samples import BadSamples
from rekindle.run.copy_checks import CopyChecks
from rekindle.run.engine import Engine
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch
from rekindle.run.inline import Inline
from rekindle.run.inline_iterable import InlineStream
from rekindle.run.job import Job
from rekindle.run.process_pool import ProcessPool
from rekindle.run.ray.actors import Actors
from rekindle.run.ray.pool import RayPool
from rekindle.run.ray.settings import Ray
from rekindle.run.slots import SlotPool
from rekindle.run.thread_pool import ThreadPool
from rekindle.run.window import Window
from rekindle.run.worker_pool import WorkerPool

Executor: TypeAlias = Literal["auto", "threads", "processes"] | Ray
ChosenExecutor: TypeAlias = Literal["inline", "threads", "processes", "ray"]


class Runner(Protocol):
    """Whoever loads batches."""

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""

    @property
    def workers(self) -> Sequence[BaseProcess | Thread]:
        """The worker processes or threads."""

    @property
    def copies(self) -> CopyChecks | None:
        """What workers say about their copies of the dataset; None if they have none, or are not asked."""

    @property
    def steady(self) -> bool:
        """Whether `next`, left by an exception, may be called again: that was waiting, or raised it itself.

        After an interrupt anywhere else, what it was doing is half done, and the runner is to begin again.
        """

    def next(self) -> SlotBatch | CollatedBatch | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""

    def poll(self) -> SlotBatch | CollatedBatch | EndOfEpoch | None:
        """The same, if it is there already: this never waits."""

    def close(self) -> None:
        """End everything that runs, in less than two seconds."""


class MapRunner(Runner, Protocol):
    """Loads batches of a map-style dataset."""

    def begin(self, orders: Orders, worker_seed: Callable[[int], int]) -> None:
        """Load these from now on; what is in flight is dropped."""

    @property
    def states(self) -> CopyStates:
        """The states of the workers' copies of the dataset, as far as they have been taken or loaded."""

    def load_states(self, states: CopyStates, *, are_there: bool) -> None:
        """Put the workers' copies into these states, unless they are known to be there."""


class IterableRunner(Runner, Protocol):
    """Loads batches of an iterable dataset."""

    def begin_iterable(self, orders: Orders, batch_size: int, position: IterablePosition) -> None:
        """Go on with an epoch from a position."""


@dataclass(frozen=True)
class Work:
    """All that has to be known to start a runner."""

    dataset: Any
    batched: bool
    collate_fn: Collate
    drop_last: bool
    workers: int
    executor: ChosenExecutor
    context: BaseContext | None
    worker_init_fn: Callable[[int], None] | None
    batches_ahead: int | None  # that were asked for
    timeout: float
    in_order: bool
    seed: int
    base_seed: int
    bad_samples: BadSamples
    counters: Counters
    reused: WorkerView | None = None
    watched: Watched | None = None
    threads: int = 1  # up to which a process has
    actors: Actors | None = None  # of the loader, if it uses Ray
    takes_states: bool = False  # of workers' copies of a map-style dataset
    is_planned: bool = False  # Nobody sees how far ahead its batches are asked for.
    reads_on: bool = False  # Whoever is asked twice for a sample may give another.
    draws_nothing: bool = False  # as the dataset declares

    def job(self) -> Job:
        """What each worker has to know of it."""
        return Job(
            dataset=self.dataset,
            collate_fn=self.collate_fn,
            batched=self.batched,
            drop_last=self.drop_last,
            stop_at_failure=self.bad_samples.on_error == "raise",
            skip_failures=self.bad_samples.on_error == "skip",
            substitutes=self.bad_samples.on_error == "substitute",
            workers=self.workers,
            worker_init_fn=self.worker_init_fn,
            reused=self.reused,
            watched=self.watched if self.executor in ("processes", "ray") else None,
            takes_states=self.takes_states,
            asks_once=self.executor != "ray",
        )


def choose_executor(executor: Executor, workers: int) -> ChosenExecutor:
    """Processes, unless threads are asked for: no thread of ours runs beside the training loop otherwise.

    Its Python never waits for the GIL because of us, and what kills a worker does not kill the training.
    """
    if workers == 0:
        return "inline"
    if isinstance(executor, Ray):
        return "ray"
    return "processes" if executor == "auto" else executor


def start_map(work: Work) -> MapRunner:
    """A runner for a map-style dataset, ready for orders."""
    job = work.job()
    rows = work.batched and work.collate_fn is default_collate and not job.together
    rows = rows and not work.takes_states  # By rows, the first sample may be loaded twice.
    if work.executor == "inline":
        return Inline(job, seed=work.seed, rows=rows, bad_samples=work.bad_samples, counters=work.counters)
    return _engine(work, job, rows=rows, iterable=False)


def start_iterable(work: Work) -> IterableRunner:
    """A runner for an iterable dataset, ready for orders."""
    job = work.job()
    if work.executor == "inline":
        return InlineStream(job, work.counters)
    return _engine(work, job, rows=False, iterable=True)


def _engine(work: Work, job: Job, *, rows: bool, iterable: bool) -> Engine:
    # Who reads on gives each worker's copy its own records, as in torch: batch by batch, in turn.
    whole = work.worker_init_fn is not None or work.takes_states or work.reads_on
    if not (whole or iterable or (rows and work.draws_nothing)):
        whole = work.executor == "processes" and asks_which_worker(work.dataset, work.collate_fn)
    window = Window(work.workers, work.batches_ahead, whole=whole or not rows, planned=work.is_planned)
    slots = SlotPool(window, shared=work.executor == "processes")
    pool: WorkerPool
    if work.executor == "threads":
        pool = ThreadPool(job)
    elif work.actors is not None:
        pool = RayPool(job, work.base_seed, work.actors)
    else:
        pool = ProcessPool(job, work.base_seed, work.context, slots, work.threads)
    return Engine(
        pool,
        slots,
        seed=work.seed,
        window=window,
        rows=rows,
        whole=whole,
        iterable=iterable,
        in_order=work.in_order,
        timeout=work.timeout,
        watched=job.watched is not None,
        bad_samples=work.bad_samples,
        counters=work.counters,
    )
