"""Throughput against the amount of augmentation.

Question: How much does every layer of RandAugment cost, and what do the cures save?

Method: photographs, RandomResizedCrop(224), n layers of RandAugment, flip, normalise, batched by 64 by 2
workers. `standard` does all of it for every sample; `simplified` leaves out every other layer; `echo` repeats
each augmented sample three times (Echo(3, after="augment"), per sample of the training loop); `refurbish` is
Refurbish(3), split before the last layer of RandAugment (or before the flip, where there is none). Rates are
those of one epoch after one that fills the cache (echo: of one epoch, which has three times as many samples).

    python -m benchmarks layers --data images.tar --keep
    python -m benchmarks.plot_layers            # draws docs/layers.svg from the kept numbers

Reading: samples/s, more is better.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.answer import Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.photographs import described, photographs
from benchmarks.reuse import FACTOR, rekindle_loader

LAYERS = range(5)
WAYS = ("standard", "simplified", "echo", "refurbish")


def measure_rate(way: str, layers: int, files: list[str]) -> float:
    """Samples a second that the training loop gets."""
    import rekindle as rk

    settings: dict[str, Any] = {}
    if way == "simplified":
        layers = (layers + 1) // 2
    elif way == "echo":
        settings["reuse"] = rk.Echo(FACTOR, after="augment", shuffle=1024)
    elif way == "refurbish":
        last = "RandomHorizontalFlip" if layers == 0 else "RandAugment"
        split = f"RandAugment[{layers - 1}]" if layers > 1 else last
        settings["reuse"] = rk.Refurbish(FACTOR, split=split)
    loader = rekindle_loader(files, layers, **settings)
    if way != "echo":
        for _ in loader:
            pass
    samples, started = 0, time.perf_counter()
    for images, _ in loader:
        samples += len(images)
    return samples / (time.perf_counter() - started)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """One comparison for each number of layers."""
    images = photographs(data)
    files = [str(path) for path in images]
    found = []
    for layers in LAYERS:
        contenders = {
            way: lambda way=way, layers=layers: in_fresh_process(  # type: ignore[misc]
                measure_rate, way=way, layers=layers, files=files
            )
            for way in WAYS
        }
        rates = alternate(contenders, rounds)
        found.append(compare(f"{described(data, images)}; {layers} layers", "samples/s", rates, {}))
    return found
