"""Balanced batches with refurbishing.

Question: Does every batch take the same work, though some samples are cached and others recomputed?

Method: photographs, RandomResizedCrop(224), RandAugment(2, 9), flip, normalise, batches of 64;
Refurbish(factor=3), split between the two layers. The spread is the coefficient of variation of the CPU time
of a batch over three epochs, computed in the training loop's own thread, with the cache misses of every batch
balanced by predicted cost, by number, or not at all (`balance=None`). Clock rates vary, so each time is
divided by that of decoding one photograph just before and after; of each batch, the least of five runs with
the same seed counts. For the waiting, a simulated accelerator sleeps 1.1 times the mean time of a batch, and
two workers are 4 or 2 batches ahead (prefetch_factor 2 and 1). The loaders share one process and alternate
every three epochs; the time of a batch is measured in every turn, and the median of six turns counts.

    python -m benchmarks balance --data images.tar

Reading: spread and waiting, less is better. The bars: at most half the spread; the accelerator waits ≤ 5 % of
the epoch, and less than without balancing. It waits at least for as long as yielding a batch takes, about a
millisecond; with 4 batches ahead, hardly longer.
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
from benchmarks.peers import BATCH_SIZE, WORKERS
from benchmarks.photographs import described, photographs
from benchmarks.reuse import EPOCHS, FACTOR, rekindle_loader

BALANCES = {"unbalanced": None, "misses": "misses", "cost": "cost"}
SAME_RUNS = 5
TURNS = 6


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


def measure_waiting(files: list[str], prefetch_factor: int) -> dict[str, float]:
    """The share of an epoch that a simulated accelerator waits, whose step takes 1.1 times a batch."""
    loaders = {name: _loader(how, files, prefetch_factor=prefetch_factor) for name, how in BALANCES.items()}
    shares: dict[str, list[float]] = {name: [] for name in loaders}
    order = list(loaders)
    for _ in range(TURNS):
        taken = [_run(loaders[name], 0.0)[1] for name in order]
        step = 1.1 * sum(taken) / (len(order) * EPOCHS * len(loaders[order[0]]))
        for name in order:
            waited, took = _run(loaders[name], step)
            shares[name].append(waited / took)
        order.reverse()
    return {name: float(np.median(values)) for name, values in shares.items()}


def _run(loader: Any, step: float) -> tuple[float, float]:
    """Seconds waited, and seconds in all, of some epochs with steps that take so long."""
    waited, started = 0.0, time.perf_counter()
    for _ in range(EPOCHS):
        batches, more = iter(loader), True
        while more:
            asked = time.perf_counter()
            more = next(batches, None) is not None
            waited += time.perf_counter() - asked
            if more and step:
                time.sleep(step)
    return waited, time.perf_counter() - started


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """How even the work is, then how long an accelerator waits."""
    images = photographs(data)
    files = [str(path) for path in images]
    title = f"{described(data, images)}; RandAugment(2, 9)"
    spread = alternate(
        {name: _in_process(measure_spread, how, files) for name, how in BALANCES.items()}, rounds
    )
    found = [compare(f"{title}; CPU time of a batch", "spread", spread, {"cost": [Bar("≤", 0.5)]})]
    for prefetch_factor in (2, 1):
        rows = [
            in_fresh_process(measure_waiting, files=files, prefetch_factor=prefetch_factor)
            for _ in range(rounds)
        ]
        ahead = f"prefetch_factor={prefetch_factor}, {prefetch_factor * WORKERS} batches ahead"
        found.append(
            compare(
                f"{title}; an accelerator that takes 1.1 times as long; {ahead}",
                "share of the epoch waited",
                {name: [row[name] for row in rows] for name in BALANCES},
                {"cost": [Bar("≤", 0.05, "of the epoch"), Bar("≤", 1.0)]},
            )
        )
    return found


def _in_process(function: Callable[..., float], balance: str | None, files: list[str]) -> Callable[[], float]:
    return lambda: in_fresh_process(function, balance=balance, files=files)
