"""Trains a small network five times, from torch's DataLoader to all of Rekindle, one step further each time.

    make demo                          # or: python -m demo.train
    make demo DATA=path/to/folder      # your images: a folder a class; train/ and val/ if you like

Everything is the same in all rows but how the images are loaded: the dataset (torchvision's ImageFolder with
RandAugment), the batch size, the workers, the network and its initial weights. The table at the end shows how
fast the training was, how long it waited for data, and how accurate the network became. Images without class
folders get labels by their colours, so that there is something to learn.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from demo.folder import FolderError, ImageFolder, read_image_folder
from demo.images import demo_images
from demo.recipe import PIXELS, ROWS, SEED, Loader, Recipe, Row, validation_loader
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn

BATCH_SIZE = 32
WORKERS = 2


# The training.


@dataclass(frozen=True)
class Result:
    """What one row's training took and reached, and what the loader says of it."""

    name: str
    rates: list[float]  # samples/s of each epoch
    seconds: float
    waited: float
    accuracy: float
    report: str

    @property
    def rate(self) -> float:
        """That of the median epoch: other work on the machine spoils some epochs, and seldom most."""
        return statistics.median(self.rates)


def make_network(classes: int) -> nn.Module:
    """A small convolutional network on patches of 4 × 4 pixels, with the same weights each time."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = []
    for channels, wider, size, stride in ((3, 16, 4, 4), (16, 32, 3, 2), (32, 64, 3, 2)):
        layers += [nn.Conv2d(channels, wider, size, stride, padding=size % 2, bias=False)]
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


def train(row: Row, recipe: Recipe, epochs: int, console: Console) -> Result:
    """Trains a new network on the row's batches, then measures its accuracy."""
    settings = {"batch_size": BATCH_SIZE, "num_workers": WORKERS}
    random.seed(SEED)
    np.random.seed(SEED)
    network = make_network(recipe.classes)
    loader = row.make_loader(recipe, shuffle=True, persistent_workers=True, **settings)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=epochs * len(loader))
    waiting = Waiting()
    if not console.is_terminal:
        console.print(f"{row.name}: {epochs} epochs of {len(loader)} batches", markup=False)
    with progress_bar(console) as bar:
        task = bar.add_task(row.name, total=epochs * len(loader), loss=math.nan)
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
                console.print(f"{row.name}: epoch {epoch + 1} of {epochs}, loss {mean:.3f}", markup=False)
        seconds = time.perf_counter() - start
    report = first_lines(loader)
    del loader  # ends the training workers before the validation workers start
    validation = validation_loader(recipe, row, **settings)
    return Result(
        name=row.name,
        rates=[len(recipe.train) / one for one in lasted],
        seconds=seconds,
        waited=waiting.seconds,
        accuracy=accuracy(network, validation),
        report=report,
    )


@torch.no_grad()
def accuracy(network: nn.Module, loader: Loader) -> float:
    """The share of the loader's images that the network classifies correctly."""
    network.eval()
    right = [network(images).argmax(dim=1) == labels for images, labels in loader]
    return torch.cat(right).float().mean().item()


def warm_up(data: ImageFolder, recipe: Recipe) -> None:
    """Do once, untimed, what otherwise only one of the rows would pay for."""
    for path, _ in data.train + data.val:
        path.read_bytes()  # into the page cache
    network = make_network(recipe.classes)
    for _ in range(3):
        network(torch.zeros(BATCH_SIZE, 3, PIXELS, PIXELS)).sum().backward()
    next(iter(ROWS[2].make_loader(recipe, batch_size=BATCH_SIZE)))  # Code is compiled once on a machine.
    _ = recipe.packed


def first_lines(loader: Any) -> str:
    """What the loader reports, without its table of stages; nothing for torch's."""
    if not hasattr(loader, "report"):
        return ""
    lines = str(loader.report()).splitlines()
    return " ".join(line.strip() for line in lines[: next(n for n, one in enumerate(lines) if "┏" in one)])


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
    """The comparison, and how many times torch's speed each row has."""
    out = Table(title=title, title_justify="left")
    out.add_column("loader", no_wrap=True)
    for heading in ("samples/s", "range", "to torch", "waited", "accuracy"):
        out.add_column(heading, justify="right")
    for r in results:
        waited = f"{r.waited:.1f} s, {r.waited / r.seconds:.0%}"
        times, spread = f"{r.rate / results[0].rate:.1f}×", f"{min(r.rates):,.0f}–{max(r.rates):,.0f}"
        out.add_row(r.name, f"{r.rate:,.0f}", spread, times, waited, f"{r.accuracy:.1%}")
    out.caption = (
        "samples/s: the median epoch's, and the slowest and the fastest one's. Where these are far apart, "
        "the machine had other work, and so may have whole rows; or the first epoch filled Refurbish's cache."
    )
    out.caption_justify = "left"
    return out


def main() -> None:
    """Reads the command line, trains row by row, prints the table and the last row's report."""
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
    with tempfile.TemporaryDirectory(prefix="rekindle-demo-") as scratch:
        recipe = Recipe(data, Path(scratch))
        console.print("reading the images once, and packing them, before anything is timed")
        warm_up(data, recipe)
        results = [train(row, recipe, options.epochs, console) for row in ROWS]
    title = f"Training speed, and accuracy on {len(data.val):,} images that were not trained on"
    console.print(table(results, title=title))
    console.print(f"loader.report() of the last row begins: {results[-1].report}", markup=False)


if __name__ == "__main__":
    main()
