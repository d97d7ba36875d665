"""Trains a small network twice, with torch's DataLoader and with Rekindle's, and compares the two.

    make demo                          # or: python demo/train.py
    make demo DATA=path/to/folder      # your images: a folder a class; train/ and val/ if you like

Everything is the same for both but the class of the loader: the dataset, the batch size, the
workers, the network and its initial weights. The table at the end shows how fast the training was,
how long it waited for data, and how accurate the network became.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from torch.utils.data import Dataset

import rekindle as rk
from folder import FolderError, ImageFolder, Labelled, read_image_folder
from images import demo_images

PIXELS = 96
BATCH_SIZE = 32
WORKERS = 2
SEED = 0

Loader = torch.utils.data.DataLoader[Any]


# The dataset: what a user writes today, with nothing of Rekindle in it.


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """Images with their labels, cropped at random and flipped for training, from the middle otherwise.

    The random numbers come from Python's own `random`, as they do in many datasets. Both
    loaders seed it: torch's once a worker, Rekindle for each sample, so that its batches do not
    depend on the number of workers.
    """

    def __init__(self, samples: list[Labelled], training: bool) -> None:
        self.samples = samples
        self.training = training

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        box = random_box(*image.size) if self.training else middle_box(*image.size)
        small = image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, box=box)
        if self.training and random.random() < 0.5:
            small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(small, dtype=np.float32).transpose(2, 0, 1)
        return torch.from_numpy((pixels / 255 - 0.45) / 0.25), label


def random_box(width: int, height: int) -> tuple[float, float, float, float]:
    """A part of the image: 25 to 100 % of its area, 3:4 to 4:3 (left, top, right, bottom)."""
    area = random.uniform(0.25, 1) * width * height
    aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
    w, h = min(width, math.sqrt(area * aspect)), min(height, math.sqrt(area / aspect))
    left, top = random.uniform(0, width - w), random.uniform(0, height - h)
    return left, top, left + w, top + h


def middle_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The largest square in the middle of the image."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


# The contenders: to add a row to the table, add a line here.


@dataclass(frozen=True)
class Contender:
    """A row of the table: `make_loader` takes a dataset and torch's arguments."""

    name: str
    make_loader: Callable[..., Loader]


CONTENDERS = [
    Contender("torch", torch.utils.data.DataLoader),
    Contender("rekindle", lambda dataset, **settings: rk.DataLoader(dataset, seed=SEED, **settings)),
    Contender(
        "rekindle, native",
        lambda dataset, **settings: rk.DataLoader(native(dataset), seed=SEED, **settings),
    ),
    Contender("rekindle, refurbished", lambda dataset, **settings: refurbished(dataset, **settings)),
]


def native(dataset: Photographs) -> rk.ImageDataset:
    """The same images and the same steps, in Rekindle's own code."""
    T = rk.transforms  # noqa: N806
    if dataset.training:
        first: list[Any] = [T.RandomResizedCrop(PIXELS, scale=(0.25, 1)), T.RandomHorizontalFlip()]
    else:
        first = [T.Resize(PIXELS), T.CenterCrop(PIXELS)]
    root = Path(os.path.commonpath([path.parent for path, _ in dataset.samples]))
    labels = {str(path.relative_to(root)): label for path, label in dataset.samples}
    steps = [*first, T.ToTensor(), T.Normalize((0.45,) * 3, (0.25,) * 3)]
    return rk.open(root, transform=steps, labels=labels)


def refurbished(dataset: Photographs, **settings: Any) -> Loader:
    """The same, with the first steps' results cached for three epochs; the split point is measured."""
    reuse = rk.Refurbish(factor=3) if dataset.training else None
    return rk.DataLoader(native(dataset), seed=SEED, reuse=reuse, **settings)


# The training.


@dataclass(frozen=True)
class Result:
    """What one contender's training took and reached."""

    name: str
    rate: float  # samples/s of the median epoch: other work on the machine spoils some epochs, not most
    seconds: float
    waited: float
    accuracy: float


def make_network(classes: int) -> nn.Module:
    """A small convolutional network, with the same weights each time."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = []
    for channels, wider in ((3, 8), (8, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels, wider, 3, stride=2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(wider), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class Waiting:
    """The batches of a loader, and in `seconds` how long the caller waited for them in all."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def batches(self, loader: Loader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        start = time.perf_counter()
        batches = iter(loader)
        while (batch := next(batches, None)) is not None:
            self.seconds += time.perf_counter() - start
            yield batch
            start = time.perf_counter()
        self.seconds += time.perf_counter() - start


def train(contender: Contender, data: ImageFolder, epochs: int, console: Console) -> Result:
    """Trains a new network on the contender's batches, then measures its accuracy."""
    settings = {"batch_size": BATCH_SIZE, "num_workers": WORKERS}
    random.seed(SEED)
    np.random.seed(SEED)
    network = make_network(len(data.classes))
    loader = contender.make_loader(
        Photographs(data.train, training=True), shuffle=True, persistent_workers=True, **settings
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=epochs * len(loader))
    waiting = Waiting()
    with progress_bar(console) as bar:
        task = bar.add_task(contender.name, total=epochs * len(loader), loss=math.nan)
        start = time.perf_counter()
        lasted = []
        for epoch in range(epochs):
            losses, begun = [], time.perf_counter()
            for images, labels in waiting.batches(loader):
                loss = nn.functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
                bar.update(task, advance=1, loss=losses[-1])
            lasted.append(time.perf_counter() - begun)
            if not console.is_terminal:
                mean = sum(losses) / len(losses)
                console.print(f"{contender.name}: epoch {epoch + 1} of {epochs}, loss {mean:.3f}")
        seconds = time.perf_counter() - start
    del loader  # ends the training workers before the validation workers start
    validation = contender.make_loader(Photographs(data.val, training=False), **settings)
    return Result(
        name=contender.name,
        rate=len(data.train) / statistics.median(lasted),
        seconds=seconds,
        waited=waiting.seconds,
        accuracy=accuracy(network, validation),
    )


@torch.no_grad()
def accuracy(network: nn.Module, loader: Loader) -> float:
    """The share of the loader's images that the network classifies correctly."""
    network.eval()
    right = [network(images).argmax(dim=1) == labels for images, labels in loader]
    return torch.cat(right).float().mean().item()


def warm_up(data: ImageFolder) -> None:
    """Do once, untimed, what otherwise only the first contender would pay for."""
    for path, _ in data.train + data.val:
        path.read_bytes()  # into the page cache
    network = make_network(len(data.classes))
    for _ in range(3):
        network(torch.zeros(BATCH_SIZE, 3, PIXELS, PIXELS)).sum().backward()


# What the user sees.


def progress_bar(console: Console) -> Progress:
    """A bar on a terminal, nothing elsewhere."""
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def make_images(console: Console) -> Path:
    """The demo's image folder; made first if need be, which takes half a minute and is shown."""
    columns = (TextColumn("making images"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("images", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)
            if done % 500 == 0 and not console.is_terminal:
                console.print(f"making images: {done} of {total}")

        return demo_images(show)


def table(results: list[Result], title: str) -> Table:
    """The comparison, one row a contender."""
    out = Table(title=title, title_justify="left")
    out.add_column("loader")
    for heading in ("samples/s", "model waited", "share of the time", "accuracy"):
        out.add_column(heading, justify="right")
    for r in results:
        waited, share = f"{r.waited:.1f} s", f"{r.waited / r.seconds:.0%}"
        out.add_row(r.name, f"{r.rate:,.0f}", waited, share, f"{r.accuracy:.1%}")
    return out


def main() -> None:
    """Reads the command line, trains with each contender, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="your own image folder")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--most", type=int, default=1500, help="use at most this many images")
    options = parser.parse_args()
    if options.epochs < 1 or options.most < 10:
        parser.error("--epochs takes at least 1, --most at least 10.")

    console = Console()
    # One thread for the network, whoever feeds it: the other core is the workers'.
    torch.set_num_threads(1)
    try:
        data = read_image_folder(options.data or make_images(console), options.most)
    except FolderError as error:
        sys.exit(f"error: {error}")
    console.print(
        f"{len(data.train):,} training images of {len(data.classes)} classes, {len(data.val):,} "
        f"for validation; {options.epochs} epochs, batch size {BATCH_SIZE}, {WORKERS} workers"
    )
    warm_up(data)
    results = [train(contender, data, options.epochs, console) for contender in CONTENDERS]
    console.print(table(results, title="Training speed, and accuracy on the validation images"))


if __name__ == "__main__":
    main()
