"""The first batch, and the gap between epochs.

Question: How long does a training wait for its first batch, and between two epochs?

Method: a dataset whose samples take 2 ms each, asleep (as a read from a slow disk is, so that the
processor's other users matter little), batched by 16, by 2 workers of each loader; a training step
that takes 50 ms, asleep (as one on an accelerator is). Loading a batch takes less than a step, so
a loader can be ahead. Each round makes a new loader and trains 3 epochs of 8 batches. "First batch"
is the time from `iter(loader)` to the first batch of the first epoch. "Gap" is the time that the
training waits between the last step of an epoch and the first batch of the next, the mean of both.

    python -m benchmarks first_batch

Reading: seconds, less is better. The bars are torch's time (≤ 1.0×) and, for the gap, one step: a
loader that prepares the next epoch's first batches during this epoch's last steps has hardly any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.loaders import LOADERS

SAMPLE_SECONDS, STEP_SECONDS = 0.002, 0.05
EPOCHS, STEPS, BATCH_SIZE, WORKERS = 3, 8, 16, 2


class SlowReads(Dataset[torch.Tensor]):
    """Samples that take a while to arrive, and no work."""

    def __len__(self) -> int:
        return STEPS * BATCH_SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SAMPLE_SECONDS)
        return torch.full((64,), float(index))


def waits(loader: Iterable[Any]) -> tuple[float, float]:
    """Seconds until the first batch, and seconds of a gap between epochs."""
    before_epochs = []
    start = time.perf_counter()
    for _ in range(EPOCHS):
        batches = iter(loader)
        next(batches)
        before_epochs.append(time.perf_counter() - start)
        time.sleep(STEP_SECONDS)
        for _ in batches:
            time.sleep(STEP_SECONDS)
            start = time.perf_counter()  # so that it is, after the last step, the gap's start
    first, *gaps = before_epochs
    return first, sum(gaps) / len(gaps)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Seconds until the first batch and of a gap, with workers kept and not; `data` is not used."""
    del data
    comparisons = []
    for persistent in (False, True):

        def contender(
            make: Callable[..., Iterable[Any]], persistent: bool = persistent
        ) -> Callable[[], tuple[float, float]]:
            settings = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS}
            return lambda: waits(make(SlowReads(), persistent_workers=persistent, **settings))

        found = alternate({name: contender(make) for name, make in LOADERS.items()}, rounds)
        first = {name: [first for first, _ in values] for name, values in found.items()}
        gap = {name: [gap for _, gap in values] for name, values in found.items()}
        setting = f"persistent_workers={persistent}"
        bar = Bar("≤", 1.0)
        step = Bar("<", STEP_SECONDS, "s")
        comparisons += [
            compare(f"time to the first batch; {setting}", "s", first, {"rekindle": [bar]}),
            compare(f"gap between epochs; {setting}", "s", gap, {"rekindle": [bar, step]}),
        ]
    return comparisons
