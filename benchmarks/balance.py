"""Whether refurbishing keeps the work even.

Question: Does every batch take the same work, though some samples are cached and others made anew?

Method: photographs, RandomResizedCrop(224), RandAugment(2, 9), flip, normalise, batched by 64;
Refurbish(factor=3), cut between the layers. The spread is the coefficient of variation of the CPU time of a
batch over three epochs, made in the training loop's own thread, with the misses of every batch balanced by
predicted cost, by number, or as they fall (`balance=None`). Processors change their pace, so each time is
divided by that of decoding one photograph just before and after; of each batch, the least of five runs with
the same seed counts. For the waiting, a simulated accelerator sleeps 1.1 times the mean time of a batch, with
2 workers and prefetch 2.

    python -m benchmarks balance --data ../shared/data/imagenet-sample.tar

Reading: spread and waiting, less is better. The bars: at most half the spread; the accelerator waits ≤ 5 % of
the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.peers import BATCH_SIZE
from benchmarks.photographs import described, photographs
from benchmarks.reuse import EPOCHS, FACTOR, rekindle_loader

BALANCES = {"as they fall": None, "misses": "misses", "cost": "cost"}
SAME_RUNS = 5


def _loader(balance: str | None, files: list[str], **settings: Any) -> Any:
    """A loader after the epoch that fills its cache."""
    import rekindle as rk

    reuse = rk.Refurbish(FACTOR, split="RandAugment[1]", balance=balance)
    loader = rekindle_loader(files, reuse=reuse, **settings)
    for _ in loader:
        pass
    return loader


def measure_spread(balance: str | None, files: list[str]) -> float:
    """The coefficient of variation of the CPU time of a full batch."""
    least = np.min([_batch_times(balance, files) for _ in range(SAME_RUNS)], axis=0)
    return float(np.std(least) / np.mean(least))


def _batch_times(balance: str | None, files: list[str]) -> list[float]:
    """The CPU time of each full batch, in units of one photograph's decoding."""
    loader = _loader(balance, files, num_workers=0)
    photograph = Path(files[0]).read_bytes()
    spent = []
    for _ in range(EPOCHS):
        batches, pace = iter(loader), _seconds_to_decode(photograph)
        while True:
            started = time.thread_time()
            batch = next(batches, None)
            took = time.thread_time() - started
            if batch is None:
                break
            pace_before, pace = pace, _seconds_to_decode(photograph)
            if len(batch[0]) == BATCH_SIZE:
                spent.append(2 * took / (pace_before + pace))
    return spent


def _seconds_to_decode(photograph: bytes) -> float:
    import simplejpeg

    started = time.thread_time()
    for _ in range(3):
        simplejpeg.decode_jpeg(photograph)
    return (time.thread_time() - started) / 3


def measure_waiting(balance: str | None, files: list[str]) -> float:
    """The share of an epoch that a simulated accelerator waits, whose step takes 1.1 times a batch."""
    loader = _loader(balance, files, prefetch_factor=2)
    started = time.perf_counter()
    for _ in range(EPOCHS):
        for _ in loader:
            pass
    step = 1.1 * (time.perf_counter() - started) / (EPOCHS * len(loader))
    waited, started = loader.report().wait_seconds, time.perf_counter()
    for _ in range(EPOCHS):
        for _ in loader:
            time.sleep(step)
    return (loader.report().wait_seconds - waited) / (time.perf_counter() - started)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """How even the work is, then how long an accelerator waits."""
    images = photographs(data)
    files = [str(path) for path in images]
    title = f"{described(data, images)}; RandAugment(2, 9)"
    spread = alternate(
        {name: _in_process(measure_spread, how, files) for name, how in BALANCES.items()}, rounds
    )
    waiting = alternate(
        {name: _in_process(measure_waiting, how, files) for name, how in BALANCES.items()}, rounds
    )
    return [
        compare(f"{title}; CPU time of a batch", "spread", spread, {"cost": [Bar("≤", 0.5)]}),
        compare(
            f"{title}; an accelerator that takes 1.1 times as long",
            "share of the epoch waited",
            waiting,
            {"cost": [Bar("≤", 0.05, "of the epoch"), Bar("≤", 1.0)]},
        ),
    ]


def _in_process(function: Callable[..., float], balance: str | None, files: list[str]) -> Callable[[], float]:
    return lambda: in_fresh_process(function, balance=balance, files=files)
