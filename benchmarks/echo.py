"""Data echoing against its own arithmetic.

Question: Does the time of an echoed epoch follow max(t_up, e · t_down)?

Method: a source that sleeps 40 ms for every batch of 8, one worker that may be 4 batches ahead, and an
accelerator that sleeps 20 ms for every step: R = t_up / t_down = 2. Epochs of 60 batches, each repeated e
times, after the samples are read. Predicted: the longer of an epoch that is only read, without echoes, and
of e times as many steps without anything to read, both measured in the same round (a sleep lasts longer than
it should).

    python -m benchmarks echo

Reading: seconds an epoch, beside the prediction; the bar: within 15 % of it. Up to e = R, repeats are free.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare

BATCH_SIZE, BATCHES = 8, 60
UP, DOWN = 0.040, 0.020  # seconds a batch
FACTORS = (1, 1.5, 2, 3, 4)


class SlowSource(Dataset[torch.Tensor]):
    """Samples that take a while to read."""

    def __len__(self) -> int:
        return BATCH_SIZE * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(UP / BATCH_SIZE)
        return torch.zeros(16)


def measure_epoch(factor: float) -> float:
    """Seconds of an epoch with echoes, and with steps."""
    import rekindle as rk

    return _epoch(DOWN, reuse=rk.Echo(factor, after="read", shuffle=2 * BATCH_SIZE))


def predicted(factor: float) -> float:
    """The longer of reading an epoch, and of the steps of one."""
    started = time.perf_counter()
    for _ in range(int((BATCHES - 1) * factor)):
        time.sleep(DOWN)
    stepped = time.perf_counter() - started
    return max(_epoch(0), stepped)


def _epoch(step: float, **settings: Any) -> float:
    """Seconds of an epoch, without its first batch and the start of the worker."""
    import rekindle as rk

    loader = rk.DataLoader(
        SlowSource(), batch_size=BATCH_SIZE, shuffle=True, num_workers=1, prefetch_factor=4, seed=0,
        executor="processes",
        **settings,
    )  # fmt: skip
    batches = iter(loader)
    next(batches)
    started = time.perf_counter()
    for _ in batches:
        time.sleep(step)
    took = time.perf_counter() - started
    loader.close()
    return took


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """One comparison for each factor."""
    found = []
    for factor in FACTORS:
        took = alternate(
            {"predicted": partial(predicted, factor), "measured": partial(measure_epoch, factor)}, rounds
        )
        title = f"e = {factor}, R = {UP / DOWN:g}: {BATCHES} batches read, {int(BATCHES * factor)} steps"
        found.append(compare(title, "s", took, {"measured": [Bar("≤", 1.15), Bar("≥", 0.85)]}))
    return found
