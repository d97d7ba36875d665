"""What the loader takes from the training loop's own Python.

Question: How much longer does a step of pure Python take while 16 workers load?

Method: **cores are simulated**, as in `many_workers`: decoding sleeps, all else is real. A step is a Python
loop of about ten milliseconds; its time is measured alone, and between the batches of a loader with 16
workers, for the default executor and for `executor="threads"`, whose threads share the GIL with the step.
The time within `next()` does not count: that is waiting, or the loader's work. The workers' own Python
competes for two real cores with the step, which many cores would not show; so decoding sleeps for 30 ms, and
16 workers use about a twentieth of a core, and of the step's time by the clock the time is left out in which
it was ready to run and no core was free (Linux counts it, in `/proc/thread-self/schedstat`). What is left is
the CPU time, and the time in which the step's thread waited for the GIL. Linux only.

    python -m benchmarks interference

Reading: milliseconds a step, less is better; the bar: ≤ 1.03 times the step alone.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.simulated_cores import images, make_images, simulated

WORKERS, BATCH_SIZE, SLEEP, STEPS = 16, 4, 30e-3, 100
CONTENDERS = {"alone": None, "rekindle": "auto", "executor='threads'": "threads"}


def step() -> int:
    """Pure Python, which holds the GIL all the time."""
    total = 0
    for number in range(150_000):
        total += number & 7
    return total


def measure_steps(executor: str | None, folder: str) -> dict[str, float]:
    """Milliseconds of a step, by the clock and of the CPU: the medians of many."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
    if executor is None:
        return _timed(iter(range(STEPS)))
    import rekindle as rk

    with simulated("JPEG files", SLEEP, 4):
        loader = rk.DataLoader(
            images(folder, "JPEG files"),
            batch_size=BATCH_SIZE,
            num_workers=WORKERS,
            executor=executor,
            seed=0,
        )
        return _timed(chain.from_iterable(repeat(loader)))


def _timed(batches: Any) -> dict[str, float]:
    by_clock, of_cpu = [], []
    for _ in range(10):
        next(batches)
        step()
    for _, _ in zip(range(STEPS - 10), batches, strict=False):
        cpu, start, delayed = time.thread_time(), time.perf_counter(), _seconds_without_core()
        step()
        by_clock.append(time.perf_counter() - start - (_seconds_without_core() - delayed))
        of_cpu.append(time.thread_time() - cpu)
    return {"clock": 1e3 * statistics.median(by_clock), "cpu": 1e3 * statistics.median(of_cpu)}


def _seconds_without_core() -> float:
    """How long this thread has been ready to run and did not."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """The step alone and beside each executor; `data` is not used."""
    del data
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder))

        def contender(executor: str | None) -> Callable[[], dict[str, float]]:
            return lambda: in_fresh_process(measure_steps, executor=executor, folder=folder)

        found = alternate({name: contender(executor) for name, executor in CONTENDERS.items()}, rounds)
    return [
        compare(
            f"a step of pure Python while {WORKERS} simulated workers load; {what}",
            "ms a step",
            {name: [one[key] for one in each] for name, each in found.items()},
            {"rekindle": [Bar("≤", 1.03)]},
        )
        for key, what in (
            ("clock", "by the clock, less the time without a core"),
            ("cpu", "CPU time of its thread"),
        )
    ]
