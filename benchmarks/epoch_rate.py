"""Measures the throughput of a loader over an epoch whose batches are not used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.loaders import LOADERS


def epoch_rates(dataset: Any, rounds: int, **settings: Any) -> dict[str, list[float]]:
    """Samples a second of each loader in each round, over one epoch of `dataset`.

    Every round makes a new loader: a loader that is kept would work ahead for the next epoch
    during the other's turn. So starting the workers counts, as it does in a training.
    """

    def contender(make: Callable[..., Iterable[Any]]) -> Callable[[], float]:
        return lambda: len(dataset) / seconds_of_an_epoch(make(dataset, **settings))

    return alternate({name: contender(make) for name, make in LOADERS.items()}, rounds)


def seconds_of_an_epoch(loader: Iterable[Any]) -> float:
    """How long it takes to get all batches, starting the workers included."""
    start = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start
