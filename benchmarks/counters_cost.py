"""The cost of the counters.

Question: What do the loader's counters, which are always on, cost?

Method: a difference of less than 1 % is lost in the noise of a throughput, so the cost is counted, not
subtracted. In a run of its own, every reading of the clock and every addition to a counter is
counted, in all processes. Their number for each batch times what one takes (measured in a loop)
is the counters' time. It is divided by the time of a batch, measured in runs without the counting.

    python -m benchmarks counters_cost

Reading: percent of a batch's time, less is better; the bar is 1 %. It is a bound from above: work
in several processes is counted as if it were done in one. Batches of one sample, without workers,
are the extreme, where a batch takes a few microseconds; there is no bar for them.
"""

from __future__ import annotations

import multiprocessing
import time
import timeit
from collections.abc import Callable
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process

CASES: dict[str, tuple[dict[str, Any], list[Bar]]] = {
    "small arrays, batch 128, 2 workers": (
        {"batch_size": 128, "num_workers": 2, "multiprocessing_context": "fork"},
        [Bar("<", 1.0, "%")],
    ),
    "TensorDataset, batch 256, no workers": ({"batch_size": 256}, [Bar("<", 1.0, "%")]),
    "TensorDataset, batch 1, no workers": ({"batch_size": 1}, []),
}


def _make_dataset(case: str) -> Any:
    if case.startswith("small arrays"):
        from benchmarks.small_arrays import SmallArrays

        return SmallArrays()
    from benchmarks.tensor_dataset import make_dataset

    return make_dataset(CASES[case][0]["batch_size"] * 400)


def _run_an_epoch(case: str) -> tuple[float, int]:
    """Seconds of an epoch, and its batches."""
    import rekindle as rk

    loader = rk.DataLoader(_make_dataset(case), seed=0, shuffle=True, **CASES[case][0])
    start = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start, len(loader)


def batch_seconds(case: str) -> float:
    """What a batch takes at best: whatever else the machine does can only add to it."""
    return min(seconds / batches for seconds, batches in (_run_an_epoch(case) for _ in range(3)))


def counted_a_batch(case: str) -> tuple[float, float]:
    """Readings of the clock and additions to counters, for each batch, in all processes."""
    clock, additions = multiprocessing.Value("q"), multiprocessing.Value("q")
    # Before Rekindle is imported, so that it takes the counting clock whichever way it imports it.
    time.perf_counter = _counting(time.perf_counter, clock)
    from rekindle.core.counters import Stage

    Stage.add = _counting(Stage.add, additions)  # type: ignore[method-assign]
    _, batches = _run_an_epoch(case)
    return clock.value / batches, additions.value / batches


def _counting(function: Callable[..., Any], total: Any) -> Callable[..., Any]:
    def counted(*arguments: Any, **named: Any) -> Any:
        with total.get_lock():
            total.value += 1
        return function(*arguments, **named)

    return counted


def _seconds_of_one_each() -> tuple[float, float]:
    """What reading the clock and adding to a counter take at best, with the call."""
    from rekindle.core.counters import Stage

    calls, names = 20_000, {"clock": time.perf_counter, "stage": Stage()}
    reading = timeit.repeat("clock()", number=calls, repeat=10, globals=names)
    adding = timeit.repeat("stage.add(1e-6, 4096, 128)", number=calls, repeat=10, globals=names)
    return min(reading) / calls, min(adding) / calls


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Percent of a batch's time, for each case; `data` is not used."""
    del data
    comparisons = []
    for case, (_, bars) in CASES.items():
        readings, additions = in_fresh_process(counted_a_batch, case=case)

        def share(case: str = case, clock: float = readings, adds: float = additions) -> float:
            reading, adding = _seconds_of_one_each()
            return 100 * (clock * reading + adds * adding) / batch_seconds(case)

        found = alternate({"counters": share}, rounds)
        title = f"{case}: {readings:.1f} clock readings and {additions:.1f} additions a batch"
        comparisons.append(compare(title, "%", found, {"counters": bars}))
    return comparisons
