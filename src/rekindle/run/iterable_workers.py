"""Iterable datasets with workers: each has its own samples, and ends on its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from rekindle.choose.position import DatasetState, IterablePosition, later
from rekindle.run.messages import Done, StartStream


@dataclass(slots=True)
class Streams:
    """Which workers still have samples, whose turn it is, and how far each has got with what it prefetches.

    Batches come from the workers in turn, as in torch; one that is exhausted is skipped.
    """

    workers: int
    active: list[int]  # that have samples left
    base_seed: int = 0
    batch_size: int = 1
    turn: int = 0
    made: list[int] = field(default_factory=list)
    datasets: list[DatasetState] = field(default_factory=list)

    def start(self, batch_size: int, position: IterablePosition) -> list[StartStream]:
        """A new pass from a position on: the message for each worker."""
        assert position.made is not None
        self.base_seed, self.batch_size = position.base_seed, batch_size
        self.made, self.turn = list(position.made), position.turn
        self.datasets = [position.dataset(worker) for worker in range(self.workers)]
        self.active = list(range(self.workers))
        if position.is_live:
            return [StartStream(self.base_seed, batch_size, DatasetState(None))] * self.workers
        return [self.start_message(worker) for worker in range(self.workers)]

    def start_message(self, worker: int) -> StartStream:
        """The message with which a worker, or its replacement, continues after the batches made so far."""
        return StartStream(self.base_seed, self.batch_size, self.datasets[worker])

    def next(self) -> int:
        """The worker whose turn it is."""
        while self.turn not in self.active:
            self.turn = (self.turn + 1) % self.workers
        worker = self.turn
        self.turn = (worker + 1) % self.workers
        return worker

    def finished(self, worker: int, done: Done) -> DatasetState | None:
        """Record that a worker has made a batch, or has none left; returns its dataset's state behind it."""
        if done.ended:
            if worker in self.active:
                self.active.remove(worker)
            return None
        self.made[worker] += 1
        state = later(self.datasets[worker], done.dataset_state)
        can_load = state is not None and not isinstance(state.value, str)
        behind = later(self.datasets[worker], b"") or self.datasets[worker]
        self.datasets[worker] = state if state and can_load else behind
        return state
