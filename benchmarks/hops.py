"""The path of a batch through the package's files.

Question: How often does the path of a batch change from one file of the package to another?

Method: `sys.setprofile` sees every call in the training process. A hop is a call of a function of the package
that is in another file than the function of the package that was called before it; returns do not count, nor
does what happens in workers. 320 JPEGs of 60×60 are made on the fly and opened as a folder with
RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize, in batches of 32, by 2 workers, with
Refurbish(3, split=1). Another loader runs first, so that everything is imported. Each round counts, in an
interpreter of its own, the hops of the first `iter(loader)`, of each `next()` of three epochs (but for those
that end an epoch), of the later `iter(loader)` and of `report()`.

    python -m benchmarks hops

Reading: hops, fewer are better: whoever reads the code follows each of them. The aims are 250 for the first
`iter()` and 60 for `next()`. `next()` varies: it also takes in whatever the workers have finished by then.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.answer import Bar, Comparison, list_values
from benchmarks.fresh_process import in_fresh_process

SAMPLES, CLASSES, SIDE = 320, 4, 60
BATCH_SIZE, WORKERS, EPOCHS = 32, 2, 3
AIMS = {
    "first iter()": [Bar("≤", 250, "hops", aim=True)],
    "next(), median": [Bar("≤", 60, "hops", aim=True)],
    "next(), max": [Bar("≤", 60, "hops", aim=True)],
}


class HopCounter:
    """Counts changes from one file of a package to another, in this thread, while it is `counting`."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}{os.sep}"
        self._last = ""
        self.hops = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count from 0 within this context."""
        self.hops, self._last = 0, ""
        gc.disable()  # What it would call is not the loader's.
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            gc.enable()

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(self._prefix):
            self.hops += bool(self._last) and file != self._last
            self._last = file


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Hops of each operation; `data` is not used."""
    del data
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for operation, hops in in_fresh_process(count_hops).items():
            found.setdefault(operation, []).append(hops)
    title = f"{SAMPLES} images in a folder, batch {BATCH_SIZE}, {WORKERS} workers, Refurbish(3, split=1)"
    return [list_values(title, "hops", found, AIMS)]


def count_hops() -> dict[str, float]:
    """Hops of each operation, in this process."""
    import rekindle as rk

    with tempfile.TemporaryDirectory(prefix="rekindle-hops-") as folder:
        _make_images(Path(folder))
        list(_loader(folder))
        loader = _loader(folder)
        counter = HopCounter(Path(rk.__file__).parent)
        first, *later = _count_epochs(loader, counter)
        steps = [hops for epoch in (first, *later) for hops in epoch[1:]]
        with counter.counting():
            loader.report()
        loader.close()
    return {
        "first iter()": first[0],
        "next(), median": statistics.median(steps),
        "next(), max": max(steps),
        "later iter()": max(epoch[0] for epoch in later),
        "report()": counter.hops,
    }


def _count_epochs(loader: Any, counter: HopCounter) -> Iterator[list[int]]:
    """For each epoch, the hops of `iter()` and of every `next()` that returns a batch."""
    for _ in range(EPOCHS):
        hops = []
        with counter.counting():
            batches = iter(loader)
        try:
            while True:
                hops.append(counter.hops)
                with counter.counting():
                    next(batches)
        except StopIteration:
            yield hops


def _make_images(folder: Path) -> None:
    for number in range(SAMPLES):
        path = folder / f"class{number % CLASSES}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)


def _loader(folder: str) -> Any:
    import rekindle as rk

    T = rk.transforms  # noqa: N806
    steps = [
        T.RandomResizedCrop(32),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.5,) * 3, (0.5,) * 3),
    ]
    return rk.DataLoader(
        rk.open(folder, steps),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=WORKERS,
        seed=0,
        reuse=rk.Refurbish(3, split=1),
    )
