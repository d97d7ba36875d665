"""Batch echo: every batch is handed over several times, shuffled by a buffer of batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

from rekindle.choose import EndOfEpoch, Orders
from rekindle.choose.echo import copies_of, echoed_stream
from rekindle.run.tickets import Made
from rekindle.ship.unpack import unpack


class EchoedBatches:
    """A runner that hands over what another one makes, `factor` times each.

    A repeat is a copy: what the training loop does to a batch is not seen in the next one.
    """

    def __init__(self, runner: Any, factor: float, buffer: int, seed: int) -> None:
        self._runner, self._factor, self._buffer, self._seed = runner, factor, buffer, seed
        self._epoch = self._skip = 0
        self._start_epoch()

    @property
    def crew(self) -> Any:
        return getattr(self._runner, "crew", None)

    @property
    def closed(self) -> bool:
        closed: bool = self._runner.closed
        return closed

    def begin_planned(
        self,
        orders_from: Callable[[int, Collection[int]], Orders],
        worker_seed: Callable[[int], int],
        position: Any,
    ) -> None:
        """Go on from a position; `orders_from` gives orders from a step on, without some steps."""
        self._epoch, self._skip = position.epoch, position.step
        self._start_epoch()
        order = echoed_stream(self._factor, self._buffer, seed=self._seed, turn=self._epoch)
        first = islice(order, position.step)
        done = {number for number, repeat in first if repeat + 1 == copies_of(number, self._factor)}
        self._runner.begin(orders_from(0, done), worker_seed)

    def begin_stream(
        self, orders: Orders, base_seed: int, batch_size: int, made: list[int], turn: int
    ) -> None:
        """The same for an iterable data set, which always starts from its beginning."""
        self._epoch, self._skip = base_seed, sum(made)
        self._start_epoch()
        self._runner.begin_stream(orders, base_seed, batch_size, [0] * len(made), 0)

    def _start_epoch(self) -> None:
        self._order = echoed_stream(self._factor, self._buffer, seed=self._seed, turn=self._epoch)
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._ended: EndOfEpoch | None = None
        self._read = self._step = 0

    def next(self) -> Made | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        while True:
            number, repeat = next(self._order)
            while self._ended is None and number not in self._kept and self._read <= number:
                self._read_one()
            if self._ended is not None and number >= self._read and not self._kept:
                ended, self._epoch, self._skip = self._ended, self._epoch + 1, 0
                self._start_epoch()
                return ended
            if number >= self._read:  # There are no more batches than that.
                continue
            made = self._hand_over(number, repeat)
            if made is not None:
                return made

    def poll(self) -> None:
        """What comes next may have to be read first: it is never handed over before it is asked for."""

    def _read_one(self) -> None:
        ready = self._runner.next()
        if isinstance(ready, EndOfEpoch):
            self._ended = ready
        else:
            self._kept[ready.order.step] = ready, unpack(ready)
            self._read = ready.order.step + 1

    def _hand_over(self, number: int, repeat: int) -> Made | None:
        """One of the copies of a batch; None if it was handed over before this pass."""
        step, self._step = self._step, self._step + 1
        if number not in self._kept:  # All of its copies were.
            return None
        last = repeat + 1 == copies_of(number, self._factor)
        ready, batch = self._kept.pop(number) if last else self._kept[number]
        if step < self._skip:
            return None
        value = batch if last else copy.deepcopy(batch)
        order = ready.order._replace(step=step, repeat_of=number if repeat else ready.order.step)
        fresh = [repeat == 0] * len(order.indices)
        return Made(order, ready.ids, value, ready.bad, ready.worker, fresh=fresh)

    def close(self) -> None:
        """End the runner."""
        self._runner.close()
