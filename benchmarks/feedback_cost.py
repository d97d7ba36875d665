"""The cost of feedback and of choosing samples.

Question: What share of a training step does `importance=` cost in all?

Method: a small CNN (a step of a few milliseconds: any real one takes longer) on 28×28 images in memory, one
thread. In one loop, the step, `loader.feedback` and, at the end of an epoch, processing the feedback and
planning the next epoch are timed separately: medians of 200 steps; of the two plannings the longer, divided
by the number of steps of an epoch.

    python -m benchmarks feedback_cost

Reading: percent of a step's time, less is better; the bar is 1 %.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.answer import Bar, Comparison, compare

SAMPLES, BATCH_SIZE = 12_800, 128


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Percent of a step, for feedback by losses and by logits; `data` is not used."""
    del data
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind in ("losses", "logits"):
            found.setdefault(f"feedback by {kind}, and choosing", []).append(_share(kind))
    bars = {name: [Bar("<", 1.0, "%")] for name in found}
    title = f"{SAMPLES:,} samples, batch {BATCH_SIZE}: percent of a step of a small CNN"
    return [compare(title, "%", {name: values}, bars) for name, values in found.items()]


def _share(kind: str) -> float:
    import rekindle as rk

    images, labels = torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    method = rk.Buckets(warmup=1, rate=0.0)
    loader = rk.DataLoader(TensorDataset(images, labels), BATCH_SIZE, shuffle=True, seed=0, importance=method)
    adaptive: Any = loader._parts.importance
    step_seconds, feedback_seconds, choosing_seconds = [], [], []
    planned = adaptive.choose

    def choose(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        choice = planned(*arguments, **named)
        choosing_seconds.append(time.perf_counter() - started)
        return choice

    adaptive.choose = choose
    for _ in range(2):
        for inputs, targets in loader:
            started = time.perf_counter()
            logits = model(inputs)
            losses = nn.functional.cross_entropy(logits, targets, reduction="none")
            optimizer.zero_grad()
            (losses * loader.batch.weights).mean().backward()
            optimizer.step()
            stepped = time.perf_counter()
            if kind == "losses":
                loader.feedback(losses=losses)
            else:
                loader.feedback(logits=logits, targets=targets)
            feedback_seconds.append(time.perf_counter() - stepped)
            step_seconds.append(stepped - started)
    steps = SAMPLES // BATCH_SIZE
    chosen = float(np.max(choosing_seconds)) / steps
    return 100 * (statistics.median(feedback_seconds) + chosen) / statistics.median(step_seconds)
