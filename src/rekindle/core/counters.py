"""Where the time goes, counted always: a few additions a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Stage:
    """One stage's totals."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int = 0

    def add(self, seconds: float, nbytes: int = 0, calls: int = 1) -> None:
        self.calls += calls
        self.seconds += seconds
        self.nbytes += nbytes


class SampleCosts:
    """The cost of loading each sample, where it is asked for."""

    def __init__(self) -> None:
        self._ids: list[NDArray[np.int64]] = []
        self._costs: list[tuple[float, int]] = []

    def add(self, ids: NDArray[np.int64], costs: Sequence[tuple[float, int]]) -> None:
        """Record seconds and bytes of the first of these samples, as many as were loaded."""
        self._ids.append(ids[: len(costs)])
        self._costs += costs

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """Ids, seconds and sizes so far; there are none afterwards."""
        ids, costs = self._ids, self._costs
        self._ids, self._costs = [], []
        return (
            np.concatenate([np.empty(0, np.int64), *ids]),
            np.array([seconds for seconds, _ in costs], dtype=np.float32),
            np.array([nbytes for _, nbytes in costs], dtype=np.int64),
        )


@dataclass(slots=True)
class Counters:
    """All that a loader counts since it was constructed.

    Seconds of `load`, `collate` and `idle` are the workers' own, added up over all of them; those of `start`,
    `wait`, `ship` and `consume` are the training loop's.
    """

    start: Stage = field(default_factory=Stage)  # the training loop is within `iter()`
    load: Stage = field(default_factory=Stage)  # in the dataset
    collate: Stage = field(default_factory=Stage)  # from samples to the batch's memory
    ship: Stage = field(default_factory=Stage)  # from the batch's memory to tensors
    wait: Stage = field(default_factory=Stage)  # the training loop waits for a batch
    consume: Stage = field(default_factory=Stage)  # the training loop works on a batch
    idle: Stage = field(default_factory=Stage)  # workers wait for something to do
    samples: int = 0
    batches: int = 0
    replaced_workers: int = 0
    costs: SampleCosts | None = None  # of single samples, if they are timed
    started: float = field(default_factory=time.perf_counter)

    def add_worker_time(
        self, samples: int, load_seconds: float, collate_seconds: float, idle_seconds: float, nbytes: int
    ) -> None:
        """Add where the workers' time went for a batch."""
        self.load.add(load_seconds, calls=samples)
        self.collate.add(collate_seconds, nbytes, samples)
        self.idle.add(idle_seconds)
