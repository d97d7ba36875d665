"""Iterable data sets: every worker has its own part of the samples, and its own end."""

from __future__ import annotations

from dataclasses import dataclass, field

from rekindle.run.messages import Begin


@dataclass(slots=True)
class Streams:
    """Who still has samples, whose turn it is, and how many batches each worker has made.

    Batches come from the workers in turn, as torch has it; one that is exhausted is passed over.
    """

    workers: int
    base_seed: int = 0
    batch_size: int = 1
    turn: int = 0
    made: list[int] = field(default_factory=list)
    active: list[int] = field(default_factory=list)

    def start(self, base_seed: int, batch_size: int, made: list[int], turn: int) -> None:
        """A new pass, of which worker `n` has made `made[n]` batches already."""
        self.base_seed, self.batch_size = base_seed, batch_size
        self.made, self.turn = list(made), turn
        self.active = list(range(self.workers))

    def beginning(self, worker: int) -> Begin:
        """What a worker has to be told to go on where it is, or its predecessor was."""
        return Begin(self.base_seed, self.made[worker], self.batch_size)

    def next(self) -> int:
        """The worker whose turn it is."""
        while self.turn not in self.active:
            self.turn = (self.turn + 1) % self.workers
        worker = self.turn
        self.turn = (worker + 1) % self.workers
        return worker

    def came_back(self, worker: int, ended: bool) -> None:
        """Note that a worker has made a batch, or has none left."""
        if not ended:
            self.made[worker] += 1
        elif worker in self.active:
            self.active.remove(worker)
