"""Refurbishing on several ranks: what is recomputed, and what each rank caches.

Question: What do `Refurbish(3)` and `shard="ranks"` save on 1 to 8 ranks, against a DistributedSampler?

Method: gloo processes, one a rank, each with one loader and a cache of its own, epochs 3 to 6 of 1,536
samples whose first part takes some arithmetic (about 0.3 ms). Three loaders: `shard="ranks"`; a
DistributedSampler that is followed index by index, with private caches, as a loader has to that does not know
it (hidden within another sampler); and torch's, without reuse. Counted are the samples recomputed and the
entries in a rank's cache (those it has ever made); timed is the slowest rank.

    python -m benchmarks ranks

Reading: the share recomputed stays 1/3, and a rank caches 1/world of the dataset, for any number of ranks.
Samples a second say how ranks compete for the cores of this machine, beyond as many ranks as it has.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler, Sampler

from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import results_of

SIZE, BATCH_SIZE, FACTOR, WARMUP, EPOCHS = 1536, 16, 3, 3, 4
WORLDS = (1, 2, 4, 8)
SHARED, PRIVATE, TORCH = 'shard="ranks"', "DistributedSampler, private caches", "torch"


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """The share recomputed, entries a rank and samples a second, for each number of ranks."""
    del data
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for _ in range(rounds):
        for world in WORLDS:
            for contender in (TORCH, PRIVATE, SHARED):
                for what, value in _run(contender, world).items():
                    found.setdefault((what, world), {}).setdefault(contender, []).append(value)
    return [_compared(what, world, values) for (what, world), values in found.items()]


def _compared(what: str, world: int, values: dict[str, list[float]]) -> Comparison:
    title = f"{world} ranks, Refurbish({FACTOR}): {what}"
    if what == "samples/s":
        return compare(title, what, values, {})
    limit = 34.0 if what == "% recomputed" else 102.0
    unit = what.partition(" ")[0]
    ours = {name: values[name] for name in (PRIVATE, SHARED)}
    return compare(title, unit, ours, {SHARED: [Bar("<", limit, unit)]})


def _run(contender: str, world: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(contender, rank, world, folder, results))
            for rank in range(world)
        ]
        ranks = results_of(processes, results)
    recomputed, entries, seconds = (list(column) for column in zip(*ranks, strict=True))
    return {
        "% recomputed": 100 * sum(recomputed) / (SIZE * EPOCHS),
        "% of 1/world cached by a rank": 100 * max(entries) * world / SIZE,
        "samples/s": SIZE * EPOCHS / max(seconds),
    }


def _rank(contender: str, rank: int, world: int, folder: str, results: Any) -> None:
    import rekindle as rk

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    data, reuse = Work(), rk.Refurbish(FACTOR, balance=None)
    sampler = DistributedSampler(data, seed=0)
    loader: Any
    if contender == TORCH:
        loader = torch.utils.data.DataLoader(data, BATCH_SIZE, sampler=sampler)
    elif contender == PRIVATE:
        loader = rk.DataLoader(
            data, BATCH_SIZE, sampler=Hidden(sampler), seed=0, reuse=reuse, final_transform=_same
        )
    else:
        loader = rk.DataLoader(
            data, BATCH_SIZE, shuffle=True, seed=0, shard="ranks", reuse=reuse, final_transform=_same
        )
    for epoch in range(0 if contender == TORCH else WARMUP):
        sampler.set_epoch(epoch)
        for _ in loader:
            pass
    dist.barrier()
    started, made = time.perf_counter(), 0
    for epoch in range(WARMUP, WARMUP + EPOCHS):
        sampler.set_epoch(epoch)
        for ids, _ in loader:
            made += len(ids) if contender == TORCH else int(loader.batch.fresh.sum())
    seconds = time.perf_counter() - started
    held = 0 if contender == TORCH else loader.report().reuse.store.entries
    results.put((made, held, seconds))
    dist.barrier()  # The end of one may wait for another's thread for ever.
    dist.destroy_process_group()


class Work(Dataset[Any]):
    """Samples whose first part takes some arithmetic."""

    def __init__(self) -> None:
        self._values = np.linspace(0, 1, 200_000)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(np.sqrt(self._values + index).sum())


class Hidden(Sampler[int]):
    """A sampler that no loader knows to divide its samples among ranks."""

    def __init__(self, sampler: DistributedSampler[Any]) -> None:
        self._of = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def _same(sample: Any) -> Any:
    return sample
