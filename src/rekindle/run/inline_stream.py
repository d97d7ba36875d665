"""An iterable data set read without workers, with generators of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rekindle.choose import EndOfEpoch, Orders
from rekindle.counters import Counters
from rekindle.global_random import STREAMS, Stream, seed_like_torch
from rekindle.reuse.echo_stream import take
from rekindle.run.load import generators_kept
from rekindle.run.tickets import Made
from rekindle.run.worker import Job, pass_over

# So many batches tell which generators a data set draws from. Exchanging all of them costs 0.3 ms a batch.
_LEARN_FROM = 4


class InlineStream:
    """Carries out orders one by one; the same batches as one worker makes."""

    def __init__(self, job: Job, counters: Counters) -> None:
        self._job, self._counters = job, counters
        self._orders: Orders = iter(())
        self._iterator: Iterator[Any] = iter(())
        self._states: dict[Stream, Any] = {}  # of the generators, as the data set left them
        self._drawn_from: set[Stream] = set()
        self._batches = 0
        self.closed = False

    def begin_stream(
        self, orders: Orders, base_seed: int, batch_size: int, made: list[int], turn: int
    ) -> None:
        """Carry out these orders from now on, the first `made[0]` batches left out."""
        self._orders, self._batches = orders, 0
        with generators_kept(STREAMS):
            seed_like_torch(base_seed, 0)
            self._iterator = iter(self._job.dataset)
            pass_over(self._iterator, made[0], batch_size, self._job)
            self._states = {stream: stream.save() for stream in STREAMS}

    def next(self) -> Made | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        order = next(self._orders)
        if isinstance(order, EndOfEpoch):
            return order
        started = time.perf_counter()
        with self._own_generators():
            samples, fresh = take(self._iterator, len(order.indices))
            loaded = time.perf_counter()
            short = len(samples) < len(order.indices)
            if not samples or (short and self._job.drop_last):
                return EndOfEpoch(order.epoch)
            batch = self._job.collate_fn(samples if self._job.batched else samples[0])
        self._counters.load.add(loaded - started, calls=len(samples))
        self._counters.collate.add(time.perf_counter() - loaded, calls=len(samples))
        return Made(order, order.ids, batch, list(range(len(samples), len(order.indices))), fresh=fresh)

    def poll(self) -> None:
        """Nothing is ever ready before it is asked for."""

    def close(self) -> None:
        """Nothing runs in between: there is nothing to end."""
        self.closed = True

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """The generators as the data set left them; the training loop's come back afterwards."""
        with generators_kept(tuple(self._states)):
            for stream, state in self._states.items():
                stream.restore(state)
            marks = {stream: stream.mark() for stream in self._states}
            yield
            self._drawn_from.update(s for s, mark in marks.items() if s.mark() != mark)
            self._batches += 1
            keep = STREAMS if self._batches <= _LEARN_FROM else self._drawn_from
            self._states = {stream: stream.save() for stream in self._states if stream in keep}
