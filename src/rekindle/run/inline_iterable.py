"""An iterable dataset read without workers, with its own state of the global generators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rekindle.choose import BatchOrder, EndOfEpoch, Orders
from rekindle.choose.position import DatasetState, IterablePosition, later
from rekindle.core.counters import Counters
from rekindle.core.global_rng import GENERATORS, GlobalGenerator, generators_kept, seed_like_torch
from rekindle.core.interrupts import dataset_call, is_interrupt, running_timers
from rekindle.core.public_rng import Restore
from rekindle.run.in_flight_batch import CollatedBatch
from rekindle.run.job import Job
from rekindle.run.stream_reader import StreamReader

# After so many batches it is known which generators a dataset draws from. Exchanging all three costs 0.3 ms.
_LEARN_FROM = 4


class InlineStream:
    """Carries out orders one by one; the batches are the same as those of one worker."""

    def __init__(self, job: Job, counters: Counters) -> None:
        self._job, self._counters = job, counters
        self._orders: Orders = iter(())
        self._reader = StreamReader(job)
        self._dataset = DatasetState(None)
        self._states: dict[GlobalGenerator, Restore] = {}  # as the dataset left the generators
        self._drawn_from: set[GlobalGenerator] = set()
        self._batches = 0
        self._made: CollatedBatch | None = None  # last
        self._again: CollatedBatch | None = None  # made before an interrupt, and not yielded
        self.closed, self.steady = False, True
        self.workers = ()
        self.copies = None

    def begin_iterable(self, orders: Orders, batch_size: int, position: IterablePosition) -> None:
        """Carry out these orders from now on, from a position of the dataset on."""
        assert position.made is not None
        if not self.steady and self._reader.is_own_iterator:  # An interrupt: such a dataset only goes on.
            self._orders, self._again = orders, self._made
            return
        self._orders, self._again, self._batches = orders, None, 0
        self._dataset = position.dataset(0)
        state = DatasetState(None) if position.is_live else self._dataset
        with generators_kept(GENERATORS):
            self._reader.start(state, batch_size, lambda: seed_like_torch(position.base_seed, 0))
            self._states = {generator: generator.save() for generator in GENERATORS}

    def next(self) -> CollatedBatch | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        self.steady = False
        order = next(self._orders)
        if isinstance(order, EndOfEpoch):
            return order
        again, self._again = self._again, None
        if again is not None and again.order.step == order.step:
            self._reader.used()
            return again
        outer, dataset_call.script_timers = dataset_call.script_timers, running_timers()
        try:
            made = self._load(order)
        except Exception as error:
            self.steady = not is_interrupt(error)
            raise
        finally:
            dataset_call.script_timers = outer
        if made is None:
            return EndOfEpoch(order.epoch)
        self._made = made
        self._reader.used()
        return made

    def _load(self, order: BatchOrder) -> CollatedBatch | None:
        started = time.perf_counter()
        reader = self._reader
        with self._own_generators():
            samples, fresh = reader.take(len(order.indices))
            loaded = time.perf_counter()
            short = len(samples) < len(order.indices)
            if not samples or (short and self._job.drop_last):
                return None
            batch = self._job.collate(samples)
            taken = reader.state()
        state = later(self._dataset, taken)
        self._dataset = self._dataset if state is None else state
        self._counters.load.add(loaded - started, calls=len(samples))
        self._counters.collate.add(time.perf_counter() - loaded, calls=len(samples))
        left_out = range(len(samples), len(order.indices))
        return CollatedBatch(order, order.ids, batch, left_out, fresh=fresh, dataset_state=state)

    def poll(self) -> None:
        """Nothing is ever ready before it is asked for."""

    def close(self) -> None:
        """Nothing runs in between: there is nothing to end."""
        self.closed = True

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """The generators as the dataset left them; the training loop's state is restored afterwards."""
        with generators_kept(tuple(self._states)):
            for restore in self._states.values():
                restore()
            marks = {generator: generator.mark() for generator in self._states}
            try:
                yield
            finally:
                self._keep_states(marks)

    def _keep_states(self, marks: dict[GlobalGenerator, object]) -> None:
        """Note how the dataset leaves the generators; those it never draws from are left alone."""
        self._drawn_from.update(one for one, mark in marks.items() if one.mark() != mark)
        self._batches += 1
        keep = GENERATORS if self._batches <= _LEARN_FROM else self._drawn_from
        self._states = {generator: generator.save() for generator in self._states if generator in keep}
