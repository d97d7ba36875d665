"""Where the time goes, counted always: a handful of additions a batch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


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


@dataclass(slots=True)
class Counters:
    """All that a loader counts, since it was made.

    Seconds of `load`, `collate` and `idle` are the workers' own, added up over all of them; those of `wait`,
    `ship` and `consume` are the training loop's.
    """

    load: Stage = field(default_factory=Stage)  # in the data set
    collate: Stage = field(default_factory=Stage)  # from samples to the batch's memory
    ship: Stage = field(default_factory=Stage)  # from the batch's memory to tensors
    wait: Stage = field(default_factory=Stage)  # the training loop waits for a batch
    consume: Stage = field(default_factory=Stage)  # the training loop works on a batch
    idle: Stage = field(default_factory=Stage)  # workers wait for something to do
    samples: int = 0
    batches: int = 0
    replaced_workers: int = 0
    started: float = field(default_factory=time.perf_counter)
