"""Batch echo: every batch is yielded several times, shuffled by a buffer of batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from multiprocessing.process import BaseProcess
from threading import Thread

from rekindle.choose import EndOfEpoch, Orders
from rekindle.choose.echo_order import copies_of, echoed_stream
from rekindle.choose.position import IterablePosition
from rekindle.core.samples import Batch
from rekindle.run import IterableRunner, MapRunner, Runner
from rekindle.run.copy_checks import CopyChecks
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch
from rekindle.ship.unpack import unpack


class _EchoedBatches:
    """A runner that yields what another one loads, `factor` times each.

    A repeat is a copy: what the training loop does to a batch is not seen in the next one.
    """

    def __init__(self, runner: Runner, factor: float, buffer: int, seed: int) -> None:
        self._source, self._factor, self._buffer, self._seed = runner, factor, buffer, seed
        self._start_epoch(0, skip=0)

    @property
    def workers(self) -> Sequence[BaseProcess | Thread]:
        """The worker processes or threads."""
        return self._source.workers

    @property
    def copies(self) -> CopyChecks | None:
        """What workers say about their copies of the dataset."""
        return self._source.copies

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._source.closed

    @property
    def steady(self) -> bool:
        """See `Runner`."""
        return self._reading and self._source.steady

    def _start_epoch(self, epoch: int, *, skip: int) -> None:
        """Begin an epoch, whose first `skip` batches (repeats included) were yielded before."""
        self._epoch, self._skip = epoch, skip
        self._order = self._echoes(epoch)
        self._due: tuple[int, int] | None = None  # the copy that comes next: its batch, and which copy
        self._held: dict[int, tuple[SlotBatch | CollatedBatch, Batch]] = {}
        self._ended: EndOfEpoch | None = None
        self._read = self._step = 0
        self._reading = False

    def _echoes(self, epoch: int) -> Iterator[tuple[int, int]]:
        return echoed_stream(self._factor, self._buffer, seed=self._seed, turn=epoch)

    def next(self) -> CollatedBatch | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        while True:
            self._due = number, repeat = self._due or next(self._order)
            while self._ended is None and number not in self._held and self._read <= number:
                self._read_one()
            if self._ended is not None and number >= self._read and not self._held:
                ended = self._ended
                self._start_epoch(self._epoch + 1, skip=0)
                return ended
            self._due = None
            if number >= self._read:  # There are no more batches than that.
                continue
            echo = self._echo(number, repeat)
            if echo is not None:
                return echo

    def poll(self) -> None:
        """Never a batch: the next one may have to be read first, which waits."""

    def _read_one(self) -> None:
        self._reading = True
        ready = self._source.next()
        self._reading = False
        if isinstance(ready, EndOfEpoch):
            self._ended = ready
        else:
            self._held[ready.order.step] = ready, unpack(ready)
            self._read = ready.order.step + 1

    def _echo(self, number: int, repeat: int) -> CollatedBatch | None:
        """One of the copies of a batch; None if it was yielded before this epoch was resumed."""
        step, self._step = self._step, self._step + 1
        if number not in self._held:  # All of its copies were.
            return None
        last = repeat + 1 == copies_of(number, self._factor)
        ready, batch = self._held.pop(number) if last else self._held[number]
        if step < self._skip:
            return None
        value = batch if last else copy.deepcopy(batch)
        fresh = [repeat == 0] * len(ready.order.indices)
        order = ready.order._replace(step=step)
        return CollatedBatch(order, ready.ids, value, ready.bad, ready.worker, fresh=fresh)

    def close(self) -> None:
        """End the runner."""
        self._source.close()


class EchoedMapBatches(_EchoedBatches):
    """Batches of a map-style dataset, echoed."""

    def __init__(self, runner: MapRunner, factor: float, buffer: int, seed: int) -> None:
        super().__init__(runner, factor, buffer, seed)
        self._runner = runner

    def begin_planned(
        self,
        orders_from: Callable[[int, Collection[int]], Orders],
        worker_seed: Callable[[int], int],
        epoch: int,
        step: int,
    ) -> None:
        """Resume after `step` batches of an epoch; `orders_from` gives orders from a step, without some."""
        self._start_epoch(epoch, skip=0)
        # The order has copies of more batches than the epoch has: only those of real ones were yielded.
        batches = _batches(orders_from(0, ()))
        yielded = islice((one for one in self._order if one[0] < batches), step) if batches else ()
        done = {number for number, repeat in yielded if repeat + 1 == copies_of(number, self._factor)}
        self._step = step
        self._runner.begin(orders_from(0, done), worker_seed)


class EchoedIterableBatches(_EchoedBatches):
    """Batches of an iterable dataset, echoed."""

    def __init__(self, runner: IterableRunner, factor: float, buffer: int, seed: int) -> None:
        super().__init__(runner, factor, buffer, seed)
        self._runner = runner

    def begin_iterable(self, orders: Orders, batch_size: int, position: IterablePosition) -> None:
        """Resume behind the batches made; the dataset always starts from its beginning."""
        made, base_seed = position.made, position.base_seed
        assert made is not None
        self._start_epoch(base_seed, skip=sum(made))
        start = IterablePosition(base_seed=base_seed, made=(0,) * len(made))
        self._runner.begin_iterable(orders, batch_size, start)


def _batches(orders: Orders) -> int:
    """How many batches a planned epoch has, in all."""
    first = next(orders)
    if isinstance(first, EndOfEpoch):
        return 0
    assert first.plan is not None
    return first.plan.steps
