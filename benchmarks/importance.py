"""Training with chosen samples.

Question: How much training time does each way of choosing samples save, and what does it cost in accuracy?

Method: a small CNN is trained with each method and several seeds, on the same data, for the same number of
epochs, with a learning rate that follows the part of the training that is done (so it does not depend on the
number of steps), with one thread of torch. RS2 gets the budget that Buckets took with the same seed. The
time is that of the training loop, without the test after each training. Each training is a line of the JSON
file as soon as it has ended; a second run goes on where the first was stopped.

    python -m benchmarks.importance --data FOLDER-OF-IDX-FILES --out fashion.jsonl
    python -m benchmarks.importance --data cifar10.tar.xz --samples 20000 --out cifar.jsonl

Reading: accuracy on the test images, mean and standard deviation over the seeds; ΔAcc is to `uniform`;
speed-ups are `uniform`'s seconds over the method's, of the clock and of the processor. One thread does all of
the work, so on a quiet machine these are the same; other programs disturb the clock's.
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

import rekindle as rk
from benchmarks.importance_data import Images, near_duplicates, read

BATCH_SIZE, RATE = 128, 0.05


def methods(epochs: int, groups: rk.RedundantGroups, budget: float | None) -> dict[str, Callable[[], Any]]:
    """What makes each method; the buckets' rates are scaled to the length of the training."""
    scaled = {"warmup": max(1, round(0.15 * epochs)), "rate": min(0.5, 2 / epochs)}

    def buckets(**more: Any) -> Callable[[], Any]:
        return lambda: rk.Buckets(**scaled, **more)

    def published(name: str, **more: Any) -> Callable[[], Any]:
        return lambda: rk.Buckets.preset(name, **scaled, **more)

    return {
        "uniform": rk.Uniform,
        "Buckets without recall": buckets(recall=None),
        "Buckets": buckets(),
        "Buckets, copies removed": buckets(groups=groups, copies="remove"),
        "Buckets, copies repeated": buckets(groups=groups, copies="repeat"),
        "BS-norecall": published("BS-norecall"),
        "BS-random": published("BS-random"),
        "BS-random-RRemove": published("BS-random-RRemove", groups=groups),
        "BS-random-RRepeat": published("BS-random-RRepeat", groups=groups),
        "InfoBatch": lambda: rk.InfoBatch(epochs=epochs),
        "RS2 (the budget of Buckets)": lambda: rk.RandomSubset(keep=budget or 0.5),
        "SelectiveBackprop": rk.SelectiveBackprop,
        "Kakurenbo": lambda: rk.Kakurenbo(epochs=epochs),
        "OnlineBatchSelection": lambda: rk.OnlineBatchSelection(epochs=epochs),
        "ActiveBias": rk.ActiveBias,
    }


def network(shape: tuple[int, ...]) -> nn.Module:
    """A small CNN for images of this height, width and number of channels."""
    height, _, channels = shape
    first, second, hidden = (8, 16, 64) if channels == 1 else (16, 32, 64)
    side = (height + 1) // 2 // 2
    return nn.Sequential(
        nn.Conv2d(channels, first, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(second * side * side, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    )  # fmt: skip


def datasets(train: Images, test: Images) -> tuple[Any, Any]:
    """What is trained and tested on: colour images flipped and shifted at random, others as they are."""
    T = rk.transforms  # noqa: N806 - as in the README
    if train.images.shape[-1] == 3:
        normal = [T.ToTensor(), T.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))]
        shaken = [T.RandomCrop(train.images.shape[1], padding=4), T.RandomHorizontalFlip(), *normal]
        return rk.ArrayImages(train.images, train.labels, shaken), rk.ArrayImages(*test, normal)
    mean, spread = train.images.mean(), train.images.std()

    def tensors(data: Images) -> Any:
        pixels = torch.from_numpy(data.images.copy()).permute(0, 3, 1, 2).float()
        return torch.utils.data.TensorDataset((pixels - mean) / spread, torch.from_numpy(data.labels))

    return tensors(train), tensors(test)


def run(method: Any, train: Any, test: Any, shape: tuple[int, ...], epochs: int, seed: int) -> dict[str, Any]:
    """One training: accuracy, seconds, and the samples trained on, as a share of `uniform`'s."""
    torch.manual_seed(seed)
    model = network(shape)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=5e-4)
    loader = rk.DataLoader(train, BATCH_SIZE, shuffle=True, seed=seed, importance=method)
    clock, processor, samples = time.perf_counter(), time.process_time(), 0
    for epoch in range(epochs):
        steps = len(loader)
        for step, (images, labels) in enumerate(loader):
            optimizer.param_groups[0]["lr"] = RATE * _factor((epoch + step / steps) / epochs)
            logits = model(images)
            losses = nn.functional.cross_entropy(logits, labels, reduction="none")
            optimizer.zero_grad()
            (losses * loader.batch.weights).mean().backward()
            optimizer.step()
            loader.feedback(logits=logits, targets=labels)
            samples += len(labels)
    seconds = time.perf_counter() - clock, time.process_time() - processor
    return {
        "accuracy": accuracy(model, test),
        "seconds": seconds[0],
        "processor_seconds": seconds[1],
        "share": samples / (epochs * len(train)),
        "report": loader.report().importance,
    }


def _factor(done: float) -> float:
    """The learning rate's factor when so much of the training is done: up, then down to nothing."""
    return min(1.0, 0.1 + done * 9) * (1 + float(np.cos(np.pi * done))) / 2


@torch.no_grad()
def accuracy(model: nn.Module, test: Any) -> float:
    """The share of the test samples that the model has right."""
    model.eval()
    right = [(model(images).argmax(1) == labels).sum().item() for images, labels in rk.DataLoader(test, 1000)]
    model.train()
    return sum(right) / len(test)


def table(results: list[dict[str, Any]]) -> Table:
    """Accuracy, its difference to uniform, and the speed-up, for each method."""
    out = Table("method", "seeds", "accuracy", "ΔAcc", "samples", "speed-up (clock)", "speed-up (processor)")
    by_method: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_method.setdefault(result["method"], []).append(result)
    base = {result["seed"]: result for result in by_method.get("uniform", [])}
    for name, found in by_method.items():
        both = [(result, base[result["seed"]]) for result in found if result["seed"] in base]
        right = [100 * result["accuracy"] for result in found]
        spread = statistics.stdev(right) if len(right) > 1 else 0.0
        columns = ["", "", ""]
        if both:
            gain = statistics.mean(100 * (a["accuracy"] - b["accuracy"]) for a, b in both)
            faster = [
                statistics.mean(b[key] for _, b in both) / statistics.mean(a[key] for a, _ in both)
                for key in ("seconds", "processor_seconds")
            ]
            columns = [f"{gain:+.2f}", f"{faster[0]:.2f}×", f"{faster[1]:.2f}×"]
        share = statistics.mean(result["share"] for result in found)
        out.add_row(
            name, str(len(found)), f"{statistics.mean(right):.2f} ± {spread:.2f}", columns[0], f"{share:.0%}",
            *columns[1:],
        )  # fmt: skip
    return out


def main() -> None:
    """Train what is missing from the file, then show the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder of IDX files, or a tar of images")
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines, added to")
    parser.add_argument("--samples", type=int, help="how many training images (all)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", help="some of them (all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = (
        [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    )
    images, test_images = read(options.data, options.samples)
    groups = near_duplicates(images)
    train, test = datasets(images, test_images)
    console = Console()
    console.print(f"{len(train)} samples, {groups.samples} of them in {len(groups)} groups")
    for seed in range(options.seeds):
        for name in options.methods or methods(options.epochs, groups, None):
            if any((result["method"], result["seed"]) == (name, seed) for result in results):
                continue
            like = [r["share"] for r in results if (r["method"], r["seed"]) == ("Buckets", seed)]
            method = methods(options.epochs, groups, like[0] if like else None)[name]()
            result = run(method, train, test, images.images.shape[1:], options.epochs, seed)
            results.append({"method": name, "seed": seed, "epochs": options.epochs, **result})
            with options.out.open("a") as out:
                out.write(json.dumps(results[-1]) + "\n")
    console.print(table(results))


if __name__ == "__main__":
    main()
