"""Choosing samples where loading is the bottleneck.

Question: Do buckets that know what a sample costs to load reach the same accuracy in less time?

Method: 5,000 images of a folder of IDX files (Fashion-MNIST, say) behind a source with simulated latency:
every fifth sample takes 20 times as long as the others, whatever is in it. The same small CNN as in
`benchmarks.importance` is trained with all samples, with buckets that look at the model only
(`bottleneck="cpu"`) and with buckets that find out by themselves that loading is the bottleneck (`"auto"`);
eight workers load. Methods take turns, seed after seed.

    python -m benchmarks.importance_io --data FOLDER-OF-IDX-FILES

Reading: accuracy on the test images, and the seconds of the training by the clock, which is mostly waiting;
means over the seeds, and the spread. `found` is the bottleneck that was found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import Dataset

import rekindle as rk
from benchmarks.importance import BATCH_SIZE, RATE, accuracy, datasets, network
from benchmarks.importance_data import read

SAMPLES, EPOCHS, WORKERS = 5_000, 10, 8
QUICK, SLOW = 0.001, 0.02  # seconds a sample


class Latent(Dataset[Any]):
    """Samples in memory that take as long as if they came from somewhere else."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        slow = np.random.default_rng(0).random(len(dataset)) < 0.2
        self.seconds = np.where(slow, SLOW, QUICK)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds[index])
        return self.dataset[index]


METHODS: dict[str, Callable[[], Any]] = {
    "uniform": rk.Uniform,
    "buckets, I/O-blind": lambda: rk.Buckets(warmup=2, rate=0.15, bottleneck="cpu"),
    "buckets, I/O-aware": lambda: rk.Buckets(warmup=2, rate=0.15, bottleneck="auto"),
}


def run(method: Any, train: Any, test: Any, seed: int) -> dict[str, Any]:
    """One training: accuracy, seconds by the clock, share of the samples, and what was found."""
    torch.manual_seed(seed)
    model = network((28, 28, 1))
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=5e-4)
    loader = rk.DataLoader(train, BATCH_SIZE, shuffle=True, seed=seed, num_workers=WORKERS, importance=method)
    started, samples = time.perf_counter(), 0
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - epoch / EPOCHS)
        for images, labels in loader:
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loader.feedback(logits=logits, targets=labels)
            samples += len(labels)
    seconds = time.perf_counter() - started
    reported = loader.report().importance or {}
    loader.close()
    return {
        "accuracy": accuracy(model, test),
        "seconds": seconds,
        "share": samples / (EPOCHS * len(train)),
        "found": reported.get("bottleneck", ""),
    }


def main() -> None:
    """Train with each method and seed, and show the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder of IDX files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the trainings here, a JSON line each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, test_images = read(options.data, SAMPLES)
    plain, test = datasets(images, test_images)
    train = Latent(plain)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for seed in range(options.seeds):
        for name, make in METHODS.items():
            results[name].append({"method": name, "seed": seed, **run(make(), train, test, seed)})
    if options.out:
        lines = [json.dumps(one) for found in results.values() for one in found]
        options.out.write_text("\n".join(lines) + "\n")
    table = Table("method", "accuracy", "seconds", "speed-up", "samples", "found")
    base = statistics.mean(one["seconds"] for one in results["uniform"])
    for name, found in results.items():
        right, seconds = [100 * one["accuracy"] for one in found], [one["seconds"] for one in found]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (right, seconds)]
        table.add_row(
            name,
            f"{statistics.mean(right):.2f} ± {spreads[0]:.2f}",
            f"{statistics.mean(seconds):.1f} ± {spreads[1]:.1f}",
            f"{base / statistics.mean(seconds):.2f}×",
            f"{statistics.mean(one['share'] for one in found):.0%}",
            ", ".join(sorted({one["found"] for one in found})),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
