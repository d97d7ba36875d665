"""The plan of a large epoch.

Question: How long does it take to plan an epoch of 10,000,000 samples?

Method: all batches of `rekindle.choose.plan_epoch`, shuffled, batches of 256; a new epoch each
round. The peer is what torch does for the same: its `RandomSampler` and `BatchSampler`, iterated to
the end. Both spread that over the epoch; the sum is what compares.

    python -m benchmarks planning

Reading: seconds, less is better. The bar is 1 s. A plan is evaluated some batches at a time, so no
epoch waits for all of it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque

from torch.utils.data import BatchSampler, RandomSampler

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare

SAMPLES, BATCH_SIZE = 10_000_000, 256


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Seconds for a plan, and for torch's samplers; `data` is not used."""
    del data
    from rekindle.choose import plan_epoch

    epochs = itertools.count()

    def plan() -> float:
        start = time.perf_counter()
        plan = plan_epoch(
            size=SAMPLES,
            epoch=next(epochs),
            seed=0,
            shuffle=True,
            batch_size=BATCH_SIZE,
            drop_last=False,
        )
        for step in range(plan.steps):
            plan.batch(step)
        return time.perf_counter() - start

    def samplers() -> float:
        start = time.perf_counter()
        deque(BatchSampler(RandomSampler(range(SAMPLES)), BATCH_SIZE, drop_last=False), maxlen=0)
        return time.perf_counter() - start

    found = alternate({"torch": samplers, "rekindle": plan}, rounds)
    title = f"an epoch of {SAMPLES:,} samples, shuffled; batch {BATCH_SIZE}"
    return [compare(title, "s", found, {"rekindle": [Bar("<", 1.0, "s")]})]
