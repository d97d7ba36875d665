"""Many workers, on cores that are simulated.

Question: How does throughput grow with the number of workers, beside torch's loader on the same dataset?

Method: **cores are simulated.** Decoding is a sleep of 1.5 ms (reading raw pixels one of 0.15 ms), so that
any number of workers "decode" at once on two cores; files, random numbers, crops, messages and batches are
real, so the Python of all workers shares the real cores, which is what binds from some number on. Therefore
three comparisons for each kind of images: the rate as measured; the same with everything that is simulated
ten times slower, where Python's share is small and what is left is the structure (queues, windows, GIL); and
the CPU that a sample takes, in all workers and in the main process. From the last follows what many cores
would do: see docs/performance.md. Batches of 64 images, 32 × 32 floats. `rekindle` has 4 threads a process,
as it would choose for photographs, and 1 for raw pixels; `torch` is torch's loader with the same
dataset, so its samples cost the same. Each measurement runs in an interpreter of its own: some batches to
start with, then about two seconds.

    python -m benchmarks many_workers

Reading: samples/s, more is better; microseconds of CPU a sample, less is better. The bars: 16 workers ≥ 3.5×
of 4, 64 ≥ 12× of 4 (in the slower simulation, where two cores suffice for the Python of 64 workers), and
never below torch's.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare, list_values
from benchmarks.fresh_process import in_fresh_process
from benchmarks.loaders import LOADERS
from benchmarks.simulated_cores import KINDS, images, make_images, simulated

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
BATCH_SIZE, SECONDS = 64, 2.0
SLEEPS = {"JPEG files": 1.5e-3, "raw packed": 0.15e-3}
THREADS = {"JPEG files": 4, "raw packed": 1}


def measure_workers(loader: str, folder: str, kind: str, workers: int, seconds: float) -> dict[str, float]:
    """Samples a second, and microseconds of CPU a sample in the workers and in the main process."""
    import psutil

    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
    with simulated(kind, seconds, THREADS[kind]):
        made = LOADERS[loader](
            images(folder, kind),
            batch_size=BATCH_SIZE,
            shuffle=True,
            num_workers=workers,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
        batches = chain.from_iterable(repeat(made))
        for _ in range(2 * workers + 8):
            next(batches)
        children = psutil.Process().children(recursive=True)
        in_workers, in_main = _cpu_seconds(children), time.process_time()
        samples, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            next(batches)
            samples += BATCH_SIZE
        took = time.perf_counter() - start
        in_workers, in_main = _cpu_seconds(children) - in_workers, time.process_time() - in_main
    return {
        "rate": samples / took,
        "workers": 1e6 * in_workers / samples,
        "main": 1e6 * in_main / samples,
    }


def _cpu_seconds(processes: list[Any]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Every number of workers, for both kinds of images; `data` is not used."""
    del data
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder))
        for kind in KINDS:
            for slower in (1, 10):
                found += _measured(folder, kind, SLEEPS[kind] * slower, rounds)
    return found


def _measured(folder: str, kind: str, sleep: float, rounds: int) -> list[Comparison]:
    def contender(loader: str, workers: int) -> Callable[[], dict[str, float]]:
        settings = {"folder": folder, "kind": kind, "workers": workers, "seconds": sleep}
        return lambda: in_fresh_process(measure_workers, loader=loader, **settings)

    contenders = {(loader, n): contender(loader, n) for n in WORKERS for loader in LOADERS}
    measured = alternate({f"{loader} {n}": run for (loader, n), run in contenders.items()}, rounds)
    rates = {name: [one["rate"] for one in each] for name, each in measured.items()}
    title = f"{kind}, a sleep of {1e3 * sleep:g} ms"
    is_slower = sleep > SLEEPS[kind]
    growth = {f"rekindle {n}": rates[f"rekindle {n}"] for n in (4, *(n for n in WORKERS if n != 4))}
    bars = {"rekindle 16": [Bar("≥", 3.5)], "rekindle 64": [Bar("≥", 12)]} if is_slower else {}
    beside = [
        compare(
            f"{title}; {n} workers",
            "samples/s",
            {loader: rates[f"{loader} {n}"] for loader in LOADERS},
            {"rekindle": [Bar("≥", 1.0)]},
        )
        for n in WORKERS
    ]
    cpu = {
        f"{name}, {where}": [one[where] for one in each]
        for name, each in measured.items()
        for where in ("workers", "main")
    }
    return [
        compare(f"{title}; against 4 workers", "samples/s", growth, bars),
        *beside,
        list_values(f"{title}; CPU", "µs a sample", cpu, {}),
    ]
