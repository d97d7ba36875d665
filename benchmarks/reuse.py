"""Data refurbishing beside torch and beside ourselves without it.

Question: What does caching partly augmented samples gain?

Method: photographs, RandomResizedCrop(224), RandAugment(2, 9), flip, normalise, batched by 64 by 2 workers;
Refurbish(factor=3). Rates are those of three epochs (one round of the cache) after one that fills it, in an
interpreter of its own; torch's and our standard mode have the same epoch before. `unchanged` is torchvision's
transforms on PIL images in processes, split before RandAugment. `cached to batch` is one thread that looks up
64 samples of 224×224, flips and normalises them into a float batch, against copying a float batch of that
size.

    python -m benchmarks reuse --data images.tar

Reading: samples/s, more is better. The bars: ≥ 5× torch and ≥ 2.2× our standard mode with diversity ≥ 0.9;
unchanged ≥ 1.5× torch; ≥ 0.5 of a copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.peers import BATCH_SIZE, MEAN, SIZE, STD, WORKERS, torch_batches
from benchmarks.photographs import described, photographs

FACTOR, EPOCHS = 3, 3
COPIES = 40


def rekindle_loader(files: list[str], layers: int = 2, **settings: Any) -> Any:
    """Our loader on the native path with so many layers of RandAugment."""
    import rekindle as rk

    T = rk.transforms  # noqa: N806
    augment = [T.RandAugment(layers, 9)] if layers else []
    steps = [
        T.RandomResizedCrop(SIZE),
        *augment,
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize(MEAN, STD),
    ]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    labels = {file[len(folder) + 1 :]: number for number, file in enumerate(files)}
    dataset = rk.open(folder, transform=steps, labels=labels)
    return rk.DataLoader(
        dataset, **{"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS, "seed": 0, **settings}
    )


def _refurbished(files: list[str]) -> Any:
    import rekindle as rk

    return rekindle_loader(files, reuse=rk.Refurbish(FACTOR, split="RandAugment[1]"))


def _unchanged(files: list[str]) -> Any:
    import rekindle as rk
    from benchmarks.pil_pipeline import Photographs
    from benchmarks.torchvision_on_cpu import torchvision

    dataset = Photographs([Path(file) for file in files])
    dataset.transform.transforms.insert(1, torchvision.transforms.RandAugment(2, 9))
    return rk.DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=WORKERS, seed=0,
        reuse=rk.Refurbish(FACTOR, split="RandAugment"),
    )  # fmt: skip


CONTENDERS: dict[str, Callable[[list[str]], Iterable[Any]]] = {
    "torch": lambda files: torch_batches(files, "RandAugment"),
    "standard": rekindle_loader,
    "unchanged, refurbished": _unchanged,
    "refurbished": _refurbished,
}


def measure_rate(contender: str, files: list[str]) -> float:
    """Samples a second over a round of the cache, after the epoch that fills it."""
    loader = CONTENDERS[contender](files)
    for _ in loader:
        pass
    started = time.perf_counter()
    for _ in range(EPOCHS):
        for _ in loader:
            pass
    return EPOCHS * len(files) / (time.perf_counter() - started)


def measure_cached() -> dict[str, float]:
    """Batches a second: cached samples flipped and normalised, and a mere copy of the same size."""
    import rekindle as rk
    from rekindle.reuse import Store
    from rekindle.reuse.split_dataset import NativeSplit

    T = rk.transforms  # noqa: N806
    images = np.random.default_rng(0).integers(0, 256, (4 * BATCH_SIZE, SIZE, SIZE, 3), dtype=np.uint8)
    steps = [T.RandomCrop(SIZE), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    dataset = rk.ArrayImages(images, [0] * len(images), transform=steps)
    cut, store = NativeSplit(dataset, 1), Store(len(images), memory=1 << 30)
    for index in range(len(images)):
        store.put(index, 0, images[index])
    out = np.empty((BATCH_SIZE, 3, SIZE, SIZE), dtype=np.float32)
    source = np.random.default_rng(0).random((4, *out.shape), dtype=np.float32)
    numbers = np.random.default_rng(0).random((len(images), 1))

    def cached(turn: int) -> None:
        for row in range(BATCH_SIZE):
            index = turn % 4 * BATCH_SIZE + row
            found = store.peek(index, 0)
            cut.finish(index, found.value, numbers[index], out[row])
            assert found.still_there()

    def copied(turn: int) -> None:
        np.copyto(out, source[turn % 4])

    rates = {}
    for name, work in (("copy", copied), ("cached to batch", cached)) * 2:  # The first time does not count.
        started = time.perf_counter()
        for turn in range(COPIES):
            work(turn)
        rates[name] = COPIES / (time.perf_counter() - started)
    store.close()
    return rates


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Rates, then the time of a cached sample."""
    import rekindle as rk

    images = photographs(data)
    files = [str(path) for path in images]
    title = f"{described(data, images)}; RandAugment(2, 9); {WORKERS} workers"
    rates = alternate({name: _rate(name, files) for name in CONTENDERS}, rounds)
    share = rk.diversity(rekindle_loader(files).dataset, "RandAugment[1]", FACTOR, 90)
    found = [
        compare(
            f"{title}; steady state, diversity {float(share):.2f}",
            "samples/s",
            rates,
            {"refurbished": [Bar("≥", 5.0)], "unchanged, refurbished": [Bar("≥", 1.5)]},
        ),
        compare(
            f"{title}; against our standard mode",
            "samples/s",
            {name: rates[name] for name in ("standard", "refurbished")},
            {"refurbished": [Bar("≥", 2.2)]},
        ),
    ]
    cached = [in_fresh_process(measure_cached) for _ in range(rounds)]
    by_name = {name: [one[name] for one in cached] for name in ("copy", "cached to batch")}
    found.append(
        compare(f"{BATCH_SIZE} samples of {SIZE}×{SIZE} from the cache, one thread", "batches/s", by_name,
                {"cached to batch": [Bar("≥", 0.5)]})
    )  # fmt: skip
    return found


def _rate(name: str, files: list[str]) -> Callable[[], float]:
    return lambda: in_fresh_process(measure_rate, contender=name, files=files)
