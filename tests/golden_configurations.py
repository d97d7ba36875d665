"""Loaders of every kind, for hashes of their batches that must not change by accident.

Run as a program, it records the hashes: `PYTHONPATH=. python tests/golden_configurations.py`. Do
that only when the batches are meant to change, and say so in the change log.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import rekindle as rk

HASHES = Path(__file__).parent / "fixtures" / "golden_batches.json"
SAMPLES = 22
T = rk.transforms
CROP = [T.RandomResizedCrop(40), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.25,) * 3)]
RECIPE = [T.RandomResizedCrop(40), T.RandAugment(2, 9), T.RandomHorizontalFlip(), T.PILToTensor()]


class Augmented(Dataset):
    """Draws from all three global generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return index, random.random(), np.random.rand(2), torch.rand(3)


class Texts(Dataset):
    """Samples that only a collate function understands."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"name": f"sample {index}", "tokens": torch.arange(index + 1)}


class Numbers(IterableDataset):
    """Each worker has every second number."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 31, step):
            yield number, torch.rand(2)


def padded(samples: list[dict[str, Any]]) -> tuple[list[str], torch.Tensor]:
    """Names, and tokens of equal length."""
    tokens = torch.nn.utils.rnn.pad_sequence([sample["tokens"] for sample in samples], batch_first=True)
    return [sample["name"] for sample in samples], tokens


def add_noise(sample: Any) -> Any:
    """A final transform that draws."""
    index, *rest = sample
    return index, *rest, torch.rand(2)


def make_images(folder: Path) -> Path:
    """PNG files of three classes: smooth shapes with some noise, from integers alone."""
    rows, columns = np.mgrid[0:64, 0:80]
    for number in range(SAMPLES):
        noise = np.random.RandomState(number).randint(0, 40, (64, 80, 3))
        shape = np.stack([(rows * (number + 1)) % 200, (columns * 3 + number) % 200, rows + columns], -1)
        kind = folder / f"class-{number % 3}"
        kind.mkdir(parents=True, exist_ok=True)
        Image.fromarray((shape + noise).astype(np.uint8)).save(kind / f"{number:03}.png")
    return folder


def packed(images: Path, ending: str) -> Path:
    """The same images in one file."""
    target = images.parent / f"packed.{ending}"
    if not target.exists():
        command = [sys.executable, "-m", "rekindle", "pack", str(images), str(target)]
        subprocess.run(command, check=True, capture_output=True)
    return target


def arrays() -> Any:
    """Images in memory."""
    pixels = np.random.RandomState(0).randint(0, 256, (SAMPLES, 32, 32, 3)).astype(np.uint8)
    steps = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.PILToTensor()]
    return rk.ArrayImages(pixels, np.arange(SAMPLES) % 3, steps)


def tensors() -> Any:
    """A dataset of tensors."""
    return TensorDataset(torch.arange(SAMPLES * 6).view(SAMPLES, 6), torch.arange(SAMPLES) % 4)


def image_folder(images: Path) -> Any:
    """torchvision's dataset, unchanged."""
    from light_torchvision import torchvision  # Not in workers that import this for other datasets.

    tv = torchvision.transforms
    steps = tv.Compose([tv.RandomCrop(40), tv.RandomHorizontalFlip(), tv.ColorJitter(0.3), tv.PILToTensor()])
    return torchvision.datasets.ImageFolder(str(images), steps)


def reporter(loader: Any) -> Callable[[], None]:
    """Reports logits and targets that depend on the samples alone."""

    def report() -> None:
        ids = loader.batch.ids
        logits = torch.stack([(ids * 37) % 11, (ids * 17) % 13, (ids * 7) % 5], 1).float() / 4
        loader.feedback(logits=logits, targets=ids % 3)

    return report


Configuration = Callable[[Path], Any]
GROUPS = [[0, 3], [1, 4, 7], [9, 12]]  # near-duplicates
LOAD: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}


def configurations() -> dict[str, Configuration]:
    """What is hashed: a name, and what makes the loader from a folder of images."""
    load = rk.DataLoader

    def native(images: Path, steps: Any = CROP, **settings: Any) -> Any:
        return load(rk.open(images, steps), **{**LOAD, **settings})

    def foreign(**settings: Any) -> Any:
        return load(Augmented(), **{**LOAD, **settings})

    refurbish = rk.Refurbish(factor=3, split=2)
    return {
        "tensors, sequential": lambda _: load(tensors(), batch_size=4),
        "tensors, shuffled, 2 workers": lambda _: load(tensors(), num_workers=2, **LOAD),
        "tensors, drop_last": lambda _: load(tensors(), drop_last=True, **LOAD),
        "tensors, no batches": lambda _: load(tensors(), batch_size=None, shuffle=True, seed=3),
        "sampler": lambda _: load(
            tensors(),
            batch_size=5,
            seed=3,
            num_workers=2,
            sampler=WeightedRandomSampler([1.0] * SAMPLES, 17, generator=torch.Generator().manual_seed(1)),
        ),
        "batch_sampler": lambda _: load(tensors(), seed=3, batch_sampler=[[3, 1], [2, 2, 9], [21]]),
        "generator": lambda _: load(
            tensors(), batch_size=5, shuffle=True, seed=3, generator=torch.Generator().manual_seed(5)
        ),
        "foreign, inline": lambda _: foreign(),
        "foreign, processes": lambda _: foreign(num_workers=2),
        "foreign, spawn": lambda _: foreign(num_workers=2, multiprocessing_context="spawn"),
        "foreign, threads": lambda _: foreign(num_workers=2, executor="threads"),
        "foreign, persistent workers": lambda _: foreign(num_workers=2, persistent_workers=True),
        "foreign, final_transform": lambda _: foreign(num_workers=2, final_transform=add_noise),
        "collate_fn": lambda _: load(Texts(), collate_fn=padded, num_workers=2, **LOAD),
        "native, inline": native,
        "native, threads": lambda images: native(images, num_workers=2, executor="threads"),
        "native, processes": lambda images: native(images, num_workers=2, executor="processes"),
        "native, RandAugment": lambda images: native(images, RECIPE, num_workers=2),
        "native, subset": lambda images: load(
            Subset(rk.open(images, CROP), list(range(1, 20, 2))), num_workers=2, **LOAD
        ),
        "native, uint8": lambda images: load(
            rk.open(images, CROP, dtype=torch.uint8, channels_last=True), **LOAD
        ),
        "images in memory": lambda _: load(arrays(), num_workers=2, **LOAD),
        "torchvision": lambda images: load(image_folder(images), num_workers=2, **LOAD),
        "tar": lambda images: load(rk.open(packed(images, "tar"), RECIPE), num_workers=2, **LOAD),
        "tfrecord": lambda images: load(rk.open(packed(images, "tfrecord"), RECIPE), **LOAD),
        "hdf5": lambda images: load(rk.open(packed(images, "h5"), RECIPE), num_workers=2, **LOAD),
        "lmdb": lambda images: load(rk.open(packed(images, "lmdb"), RECIPE), **LOAD),
        "device": lambda images: load(
            rk.open(images, CROP, place="device"), device="cpu", num_workers=2, **LOAD
        ),
        "batch_transform": lambda images: load(
            rk.open(images, CROP), device="cpu", batch_transform=T.MixUp(num_classes=3), **LOAD
        ),
        "refurbish, native": lambda images: native(images, RECIPE, reuse=refurbish, num_workers=2),
        "refurbish, inline": lambda images: native(images, RECIPE, reuse=refurbish),
        "refurbish, unbalanced": lambda images: native(
            images, RECIPE, reuse=rk.Refurbish(factor=2, split=1, balance=None)
        ),
        "refurbish, torchvision": lambda images: load(
            image_folder(images), reuse=rk.Refurbish(factor=2, split=1), num_workers=2, **LOAD
        ),
        "refurbish, final_transform": lambda _: foreign(
            reuse=rk.Refurbish(factor=3), final_transform=add_noise, num_workers=2
        ),
        "refurbish, sampler": lambda images: load(
            rk.open(images, RECIPE),
            batch_size=5,
            seed=3,
            reuse=refurbish,
            sampler=torch.utils.data.SequentialSampler(range(SAMPLES)),
        ),
        "echo samples": lambda images: native(
            images, RECIPE, reuse=rk.Echo(factor=2, after="decode", shuffle=8), num_workers=2
        ),
        "echo batches": lambda images: native(
            images, RECIPE, reuse=rk.Echo(factor=1.5, after="batch"), num_workers=2
        ),
        "stream": lambda _: load(Numbers(), batch_size=4, seed=3),
        "stream, 2 workers": lambda _: load(Numbers(), batch_size=4, seed=3, num_workers=2),
        "stream, echo": lambda _: load(
            Numbers(), batch_size=4, seed=3, num_workers=2, reuse=rk.Echo(factor=2, after="augment")
        ),
        "importance, InfoBatch": lambda _: foreign(importance=rk.InfoBatch(epochs=8), num_workers=2),
        "importance, RandomSubset": lambda _: foreign(importance=rk.RandomSubset(0.5)),
        "importance, SelectiveBackprop": lambda _: foreign(importance=rk.SelectiveBackprop()),
        "importance, OnlineBatchSelection": lambda _: foreign(importance=rk.OnlineBatchSelection(epochs=4)),
        "redundancy, remove": lambda _: foreign(redundancy=rk.Redundancy(GROUPS), num_workers=2),
        "redundancy, replace": lambda images: native(
            images, RECIPE, reuse=refurbish, redundancy=rk.Redundancy(GROUPS, mode="replace")
        ),
        "redundancy and importance": lambda _: foreign(
            redundancy=rk.Redundancy(GROUPS, correct=True), importance=rk.InfoBatch(epochs=8)
        ),
        "buckets, remove": lambda _: foreign(
            importance=rk.Buckets(warmup=1, groups=rk.RedundantGroups.of(GROUPS, SAMPLES), copies="remove")
        ),
        "buckets, repeat": lambda _: foreign(
            importance=rk.Buckets(warmup=1, groups=rk.RedundantGroups.of(GROUPS, SAMPLES), copies="repeat")
        ),
        "importance and refurbish": lambda images: native(
            images, RECIPE, reuse=refurbish, importance=rk.InfoBatch(epochs=8), num_workers=2
        ),
    }


def batches_hash(loader: Any, epochs: int = 4) -> str:
    """SHA-256 of all batches of some epochs, with what `loader.batch` says of each."""
    digest = hashlib.sha256()
    report = reporter(loader) if loader.importance is not None else None
    for _ in range(epochs):
        for batch in loader:
            _update(digest, batch)
            info = loader.batch
            fresh = _planned_fresh(loader)
            _update(digest, [info.ids, info.weights, fresh, info.epoch, info.step])
            if report is not None:
                report()
        digest.update(b"end of epoch")
    return digest.hexdigest()


def _planned_fresh(loader: Any) -> torch.Tensor:
    """Which samples were to be recomputed: with workers that run ahead, what was depends on timing."""
    if isinstance(loader.reuse, rk.Refurbish):
        return torch.from_numpy(loader._progress.last.order.fresh.copy())
    return loader.batch.fresh


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)} {value.stride()}".encode())
        digest.update(value.contiguous().numpy().tobytes())
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)}".encode())
        for one in value:
            _update(digest, one)
    elif isinstance(value, dict):
        _update(digest, list(value.items()))
    else:
        digest.update(repr(value).encode())


def main() -> None:
    """Write the hashes of all configurations."""
    hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        images = make_images(Path(folder) / "images")
        for name, make in configurations().items():
            torch.manual_seed(0)
            hashes[name] = batches_hash(make(images))
            print(hashes[name][:12], name)
    HASHES.write_text(json.dumps(hashes, indent=1) + "\n")


if __name__ == "__main__":
    main()
