"""Chooses who carries out the orders: this thread, threads beside it, or processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal, Protocol

from torch.utils.data import default_collate

from rekindle.choose import EndOfEpoch, Orders
from rekindle.counters import Counters
from rekindle.reuse.reused import Reused
from rekindle.run.bad_samples import BadSamples
from rekindle.run.crew import ProcessCrew
from rekindle.run.engine import Crew, Engine
from rekindle.run.inline import Inline
from rekindle.run.inline_stream import InlineStream
from rekindle.run.slots import SlotPool
from rekindle.run.threads import ThreadCrew
from rekindle.run.tickets import Filled, Made
from rekindle.run.worker import Job

Executor = Literal["inline", "threads", "processes"]


class AnyRunner(Protocol):
    """Who carries out orders."""

    closed: bool

    def next(self) -> Filled | Made | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""

    def poll(self) -> Filled | Made | EndOfEpoch | None:
        """The same, if it is there already: this never waits."""

    def close(self) -> None:
        """End everything that runs, in less than two seconds."""


class Runner(AnyRunner, Protocol):
    """Carries out orders of a map-style data set."""

    def begin(self, orders: Orders, worker_seed: Callable[[int], int]) -> None:
        """Carry out these from now on; what is under way is dropped."""


class StreamRunner(AnyRunner, Protocol):
    """Carries out orders of an iterable data set."""

    def begin_stream(
        self, orders: Orders, base_seed: int, batch_size: int, made: list[int], turn: int
    ) -> None:
        """Start a pass, leaving out the batches that each worker has made already."""


@dataclass(frozen=True)
class Work:
    """All that has to be known to choose and start a runner."""

    dataset: Any
    stream: bool
    batched: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    workers: int
    executor: Literal["auto", "threads", "processes"]
    context: BaseContext | None
    worker_init_fn: Callable[[int], None] | None
    window: int
    timeout: float
    in_order: bool
    seed: int
    base_seed: int
    bad_samples: BadSamples
    counters: Counters
    reused: Reused | None = None

    @property
    def chosen(self) -> Executor:
        """Threads for a data set that says that its work releases Python's lock; processes otherwise.

        What is left to do for a sample of which a part is kept is so short that Python's lock would be in the
        way: processes are a fifth quicker then.
        """
        if self.workers == 0:
            return "inline"
        if self.executor == "auto":
            short = self.reused is not None
            return "threads" if getattr(self.dataset, "releases_gil", False) and not short else "processes"
        return self.executor


def start(work: Work) -> Any:
    """A runner that is ready for orders: a StreamRunner for a stream, a Runner otherwise."""
    job = Job(
        dataset=work.dataset,
        collate_fn=work.collate_fn,
        batched=work.batched,
        drop_last=work.drop_last,
        stop_at_failure=work.bad_samples.on_error == "raise",
        skip_failures=work.bad_samples.on_error == "skip",
        workers=work.workers,
        worker_init_fn=work.worker_init_fn,
        reused=work.reused,
    )
    rows = work.batched and work.collate_fn is default_collate and not job.together
    if work.chosen == "inline":
        if work.stream:
            return InlineStream(job, work.counters)
        return Inline(
            job,
            seed=work.seed,
            rows=rows,
            bad_samples=work.bad_samples,
            counters=work.counters,
        )
    pool = SlotPool(work.window + 1, shared=work.chosen == "processes")
    crew: Crew
    if work.chosen == "threads":
        crew = ThreadCrew(job)
    else:
        crew = ProcessCrew(job, work.base_seed, work.context, pool)
    return Engine(
        crew,
        pool,
        seed=work.seed,
        window=work.window,
        rows=rows,
        whole=work.worker_init_fn is not None,
        stream=work.stream,
        in_order=work.in_order,
        timeout=work.timeout,
        bad_samples=work.bad_samples,
        counters=work.counters,
    )
