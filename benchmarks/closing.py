"""Closing a loader, and replacing a worker that is stopped.

Question: How long does a script wait when it closes a loader, and when one of its workers is stopped?

Method: two workers. *Busy*: a batch has come, both workers are in the middle of a sample that takes for ever,
and the loader is dropped. *Deaf*: the same, and the workers ignore SIGTERM. *Stopped*: a worker gets SIGSTOP
in the middle of an epoch; the longest wait for a batch after that counts. torch's loader takes part in the
first alone: it would leave deaf workers behind, and wait for a stopped one for ever.

    python -m benchmarks closing

Reading: seconds, less is better. The bars are 2 s to close and 5 s to replace a stopped worker.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare

FOR_EVER = 3600.0  # seconds


class Stuck(Dataset[torch.Tensor]):
    """From the ninth sample on, none is ever ready."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 8:
            time.sleep(FOR_EVER)
        return torch.tensor([index])


class Quick(Dataset[torch.Tensor]):
    """A millisecond a sample."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.tensor([index])


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Seconds to close with workers that are busy or deaf, and to go on after one is stopped; no `data`."""
    del data
    import rekindle as rk

    in_time, replaced = {"rekindle": [Bar("<", 2.0, "s")]}, {"rekindle": [Bar("<", 5.0, "s")]}
    busy = {
        "torch": lambda: seconds_to_close(torch.utils.data.DataLoader),
        "rekindle": lambda: seconds_to_close(rk.DataLoader),
    }
    deaf = {"rekindle": lambda: seconds_to_close(rk.DataLoader, ignore)}
    stopped = {"rekindle": lambda: longest_wait(rk.DataLoader)}
    return [
        compare("closing, workers busy for ever", "s", alternate(busy, rounds), in_time),
        compare("closing, workers that ignore SIGTERM", "s", alternate(deaf, rounds), in_time),
        compare("the longest wait after a worker was stopped", "s", alternate(stopped, rounds), replaced),
    ]


def ignore(_: int) -> None:
    """Makes a worker ignore the request to leave."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def seconds_to_close(make: Any, init: Callable[[int], None] | None = None) -> float:
    """How long it takes to drop a loader whose workers are in the middle of a sample."""
    loader = make(Stuck(), 4, num_workers=2, worker_init_fn=init)
    iterator = iter(loader)
    next(iterator)
    started = time.perf_counter()
    del iterator, loader
    gc.collect()
    return time.perf_counter() - started


def longest_wait(make: Any) -> float:
    """The longest wait for a batch of an epoch in which a worker is stopped."""
    iterator = iter(make(Quick(), 8, num_workers=2))
    next(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGSTOP)
    longest, asked = 0.0, time.perf_counter()
    for _ in iterator:
        now = time.perf_counter()
        longest, asked = max(longest, now - asked), now
    return longest
