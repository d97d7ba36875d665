"""What a larger dataset costs before the first batch.

Question: Does a billion samples cost more to start on than a thousand?

Method: a dataset that is nothing but a length, of 10^3 to 10^9 samples; batches of 256, no workers, each
measurement in an interpreter of its own that has had a loader of 1,000 samples before, so that nothing is
imported or compiled in it. From the loader's making to its first batch, in CPU time (so that a busy machine
matters less): in order, shuffled, with Refurbish(3), and resumed in the middle of a shuffled epoch. Peak
memory of the process; bytes of a state, pickled. The plans of ranks alone, without a loader: rank 0 of 1 and
rank 5 of 64, Refurbish(3), to the first batch; and how many samples a second are planned (ids, generations,
which are recomputed) by one core. torch's loader beside it, shuffled, up to 10^8, where it takes gigabytes.

    python -m benchmarks growth
    python -m benchmarks.plot_growth

Reading: ms and MB, less is better. The bars are of 10^9 samples against 10^3: 1.5× the time, and 100 MB more;
20 million samples a second planned.
"""

from __future__ import annotations

import pickle
import resource
import statistics
import time
import warnings
from collections.abc import Sized
from typing import Any

from benchmarks.answer import Bar, Comparison, compare, list_values
from benchmarks.fresh_process import in_fresh_process

SIZES = (10**3, 10**5, 10**7, 10**9)
TORCH_SIZES = (10**3, 10**5, 10**7, 10**8)
BATCH_SIZE, REPEATS, TORCH_REPEATS, PLANNED = 256, 7, 2, 2_000_000
LOADERS = ("in order", "shuffled", "Refurbish(3)", "resumed", "torch, shuffled")
RANKS = {"rank 0 of 1": (0, 1), "rank 5 of 64": (5, 64)}


class Length(Sized):
    """A dataset that is nothing but a length: sample i is i."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def unchanged(sample: int) -> int:
    """A final transform."""
    return sample


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Time to the first batch, memory and bytes of a state for each size; `data` is not used."""
    del data
    answers = []
    for kind in LOADERS:
        sizes = TORCH_SIZES if kind.startswith("torch") else SIZES
        found = {
            f"{size:.0e}": [in_fresh_process(started, kind=kind, size=size) for _ in range(rounds)]
            for size in sizes
        }
        bounded = not kind.startswith("torch")
        times = {name: [one["ms"] for one in runs] for name, runs in found.items()}
        bar = {"1e+09": [Bar("≤", 1.5, "×")]} if bounded else {}
        answers.append(compare(f"first batch: {kind}", "ms of CPU", times, bar))
        memory = {name: [one["MB"] for one in runs] for name, runs in found.items()}
        most = statistics.median(memory["1e+03"]) + 100
        bar = {"1e+09": [Bar("≤", most, "MB")]} if bounded else {}
        answers.append(list_values(f"peak memory: {kind}", "MB", memory, bar))
        if bounded:
            states = {name: [one["state"] for one in runs] for name, runs in found.items()}
            answers.append(list_values(f"a state: {kind}", "bytes", states, {}))
    for name, (rank, world) in RANKS.items():
        runs = {
            f"{size:.0e}": [
                in_fresh_process(planned, size=size, rank=rank, world=world) for _ in range(rounds)
            ]
            for size in SIZES
        }
        firsts = {size: [one["ms"] for one in values] for size, values in runs.items()}
        answers.append(compare(f"first batch of a plan: Refurbish(3), {name}", "ms of CPU", firsts, {}))
        rates = {size: [one["rate"] for one in values] for size, values in runs.items()}
        bar = {"1e+09": [Bar("≥", 20, "million/s")]}
        answers.append(list_values(f"planned: Refurbish(3), {name}", "million/s", rates, bar))
    return answers


def started(kind: str, size: int) -> dict[str, float]:
    """CPU time to the first batch in ms (the least of some), peak memory, bytes of a state."""
    warnings.simplefilter("ignore")  # The cache has no room for all of a billion samples, and says so.
    _first(kind, 1000)
    times = []
    for _ in range(TORCH_REPEATS if kind.startswith("torch") else REPEATS):
        spent, state = _first(kind, size)
        times.append(spent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": 1000 * min(times), "MB": peak, "state": len(pickle.dumps(state))}


def _first(kind: str, size: int) -> tuple[float, Any]:
    from torch.utils.data import DataLoader

    import rekindle as rk
    from rekindle.core.keyed_permutation import keyed_permutation

    dataset: Any = Length(size)
    state = None
    if kind == "resumed":
        before = rk.DataLoader(dataset, BATCH_SIZE, shuffle=True, seed=1)
        next(iter(before))
        state = before.state_dict() | {"step": size // BATCH_SIZE // 2}
    keyed_permutation.cache_clear()  # What one loader has drawn is not there for the next.
    start = time.process_time()
    if kind.startswith("torch"):
        loader: Any = DataLoader(dataset, BATCH_SIZE, shuffle=True)
    elif kind == "Refurbish(3)":
        reuse = rk.Refurbish(3)
        loader = rk.DataLoader(
            dataset, BATCH_SIZE, shuffle=True, seed=1, reuse=reuse, final_transform=unchanged
        )
    else:
        loader = rk.DataLoader(dataset, BATCH_SIZE, shuffle=kind != "in order", seed=1)
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    spent = time.process_time() - start
    return spent, None if kind.startswith("torch") else loader.state_dict()


def planned(size: int, rank: int, world: int) -> dict[str, float]:
    """CPU time to the first batch of a rank's plan in ms, and the million samples planned a second."""
    from rekindle.choose import Refresh, Shard, plan_epoch

    times, rates = [], []
    for epoch in range(2, 2 + REPEATS):
        start = time.process_time()
        plan = plan_epoch(
            size=size, epoch=epoch, seed=1, shuffle=True, batch_size=BATCH_SIZE, drop_last=False,
            shard=Shard(rank, world), refresh=Refresh(size, 3, 1),
        )  # fmt: skip
        plan.batch(0)
        first = time.process_time()
        steps = min(plan.steps, PLANNED // BATCH_SIZE)
        for step in range(steps):
            plan.batch(step)
        times.append(first - start)
        rates.append(min(plan.samples, steps * BATCH_SIZE) / (time.process_time() - start) / 1e6)
    return {"ms": 1000 * min(times), "rate": max(rates)}
