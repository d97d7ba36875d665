"""An unchanged ImageFolder with torchvision's Compose, and `native=True`.

Question: What does one word bring to a dataset of torchvision's?

Method: photographs in class folders behind torchvision's ImageFolder and Compose: RandomResizedCrop(224),
RandomHorizontalFlip, ToTensor and Normalize; with RandAugment() after the flip in the second table. Torch's
loader, Rekindle's, and Rekindle's with native=True. Batches of 64, 2 workers, an epoch with a new loader each
round, from its making to the end; the batches are not used. Files are in the page cache. An epoch of 1,000
photographs is so short that starting counts, which takes a tenth of a second: processes, and the memory of
the first batches. So two more tables have four epochs of each loader, from its making too.

    python -m benchmarks native --data images.tar

Reading: samples/s, more is better; ratios are to torch's loader. The import alone saves what torch's own work
costs; natively, images are decoded no further than the crop needs, and threads share one process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rekindle as rk
from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.epoch_rate import seconds_of_an_epoch
from benchmarks.photographs import described, photographs
from benchmarks.torchvision_on_cpu import torchvision

WORKERS, BATCH_SIZE, CLASSES = 2, 64, 10
EPOCHS = 4


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Samples a second of each loader, with few operations and with RandAugment, in one epoch and in four."""
    images = photographs(data)
    with tempfile.TemporaryDirectory() as scratch:
        _in_class_folders(images, Path(scratch))
        title = f"{described(data, images)}; batch {BATCH_SIZE}, {WORKERS} workers"
        return [
            compare(
                f"{name}, {epochs} {'epoch' if epochs == 1 else 'epochs'}: {title}",
                "samples/s",
                alternate(_contenders(scratch, augment, epochs), rounds),
                {"native": [Bar("≥", 2.4)]},
            )
            for epochs in (1, EPOCHS)
            for name, augment in (("crop and flip", False), ("and RandAugment", True))
        ]


def _contenders(root: str, augment: bool, epochs: int) -> dict[str, Callable[[], float]]:
    T = torchvision.transforms  # noqa: N806
    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *([T.RandAugment()] if augment else [])]
    last = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    dataset = torchvision.datasets.ImageFolder(root, T.Compose([*steps, *last]))

    def rate(loader: Callable[..., Any], **options: Any) -> Callable[[], float]:
        settings = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS, **options}
        return lambda: epochs * len(dataset) / _seconds(loader(dataset, **settings), epochs)

    return {
        "torch": rate(torch.utils.data.DataLoader),
        "rekindle": rate(rk.DataLoader),
        "native": rate(rk.DataLoader, native=True),
    }


def _seconds(loader: Any, epochs: int) -> float:
    return sum(seconds_of_an_epoch(loader) for _ in range(epochs))


def _in_class_folders(images: list[Path], folder: Path) -> None:
    for number, path in enumerate(images):
        copy = folder / f"class{number % CLASSES}" / f"{number:06}{path.suffix.lower()}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
