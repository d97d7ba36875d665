"""Photographs that are packed as pixels: a second worker, and batches of bytes.

Question: What do a second worker and `dtype=torch.uint8` bring where nothing has to be decoded?

Method: up to 1,000 photographs, shrunk to 400 pixels and packed as pixels in an HDF5 file that is in the
page cache; RandomResizedCrop(224), RandomHorizontalFlip, ToTensor and Normalize, batches of 64. Each
contender has a loader of its own with workers that persist, has had one epoch, and is timed over 20.
With `dtype=torch.uint8`, batches are a quarter of the bytes, and the normalization is left to the
device.

    python -m benchmarks raw_images --data images.tar

Reading: samples/s, more is better. Two workers share the memory's bandwidth, and on two cores the main
process, which takes a twenty-fifth of a worker's time, is a third one that wants to run: 1.84 is about the
most there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import rekindle as rk
from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.jobs import links
from benchmarks.photographs import described, photographs

PHOTOGRAPHS, LONGEST, EPOCHS, BATCH_SIZE = 1000, 400, 20, 64


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Samples a second of one worker and of two, as floats and as bytes."""
    images = photographs(data)[:PHOTOGRAPHS]
    title = f"{described(data, images)}, {LONGEST} pixels, packed as pixels; batch {BATCH_SIZE}"
    with tempfile.TemporaryDirectory() as scratch:
        folder, packed = Path(scratch) / "images", Path(scratch) / "images.h5"
        folder.mkdir()
        links(images, folder)
        labels = {image.name: 0 for image in folder.iterdir()}
        small = Path(scratch) / "small.h5"
        rk.pack(rk.open(folder, labels=labels), small, resize=LONGEST, progress=False)
        rk.pack(rk.open(small), packed, raw_share=1.0, progress=False)
        found = alternate(
            {
                "1 worker": _rate(packed, None, 1),
                "2 workers": _rate(packed, None, 2),
                "2 workers, uint8": _rate(packed, torch.uint8, 2),
            },
            rounds,
        )
    one, two, as_bytes = found
    return [
        compare(title, "samples/s", {name: found[name] for name in (one, two)}, {two: [Bar("≥", 1.8)]}),
        compare(
            title, "samples/s", {name: found[name] for name in (two, as_bytes)}, {as_bytes: [Bar("≥", 1.2)]}
        ),
    ]


def _rate(packed: Path, dtype: torch.dtype | None, workers: int) -> Callable[[], float]:
    T = rk.transforms  # noqa: N806
    last = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *last]
    dataset = rk.open(packed, steps, dtype=dtype)

    def rate() -> float:
        settings = {"batch_size": BATCH_SIZE, "shuffle": True, "persistent_workers": True}
        with rk.DataLoader(dataset, num_workers=workers, **settings) as loader:
            _epoch(loader)
            began = time.perf_counter()
            for _ in range(EPOCHS):
                _epoch(loader)
            return EPOCHS * len(dataset) / (time.perf_counter() - began)

    return rate


def _epoch(loader: rk.DataLoader[object]) -> None:
    for _ in loader:
        pass
