"""The four pipelines of the DALI study: files or one packed file, few operations or many.

Question: What does a packed file win, and what a native path, with few operations and with many?

Method: photographs as a file each, or in one HDF5 file (`rekindle pack`); "few" is RandomResizedCrop(224) and
RandomHorizontalFlip, "extensive" adds ColorJitter of brightness, contrast and saturation (0.4 each); both end
in ToTensor and Normalize. Torch's loader runs torchvision on PIL images, with h5py for the packed file, as is
usual; Rekindle runs `rk.open` and `rk.transforms`. Batches of 64, 2 workers, an epoch with a new loader each
round, the batches are not used. All files are in the page cache.

    python -m benchmarks pipelines --data images.tar

Reading: samples/s, more is better; ratios are to torch's loader on files. With files in the page cache,
opening one costs little next to decoding it: what packing wins on its own shows where storage is slow or far.
The promise is that no pipeline of ours is slower packed than from files.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk
from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.epoch_rate import seconds_of_an_epoch
from benchmarks.photographs import described, photographs
from benchmarks.torchvision_on_cpu import torchvision

WORKERS, BATCH_SIZE, CLASSES = 2, 64, 10
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Samples a second of each pipeline, with few operations and with many."""
    images = photographs(data)
    with tempfile.TemporaryDirectory() as scratch:
        folder, packed = _in_class_folders(images, Path(scratch) / "files"), Path(scratch) / "packed.h5"
        rk.pack(folder, packed)
        title = f"{described(data, images)}; batch {BATCH_SIZE}, {WORKERS} workers"
        return [
            comparison
            for name, extensive in (("few operations", False), ("extensive", True))
            for comparison in _compared(
                name, title, _contenders(extensive, folder, packed), len(images), rounds
            )
        ]


def _compared(
    name: str, title: str, contenders: dict[str, Callable[[], Any]], size: int, rounds: int
) -> list[Comparison]:
    """All four to torch's on files, and ours packed to ours on files."""

    def rate(make: Callable[[], Iterable[Any]]) -> Callable[[], float]:
        return lambda: size / seconds_of_an_epoch(make())

    rates = alternate({name: rate(make) for name, make in contenders.items()}, rounds)
    ours = {name: found for name, found in rates.items() if name.startswith("rekindle")}
    return [
        compare(f"{name}: {title}", "samples/s", rates, {}),
        compare(f"{name}, packed to files", "samples/s", ours, {"rekindle, packed": [Bar("≥", 1.0)]}),
    ]


def _contenders(extensive: bool, folder: Path, packed: Path) -> dict[str, Callable[[], Any]]:
    foreign, native = steps(torchvision.transforms, extensive), steps(rk.transforms, extensive)
    samples = rk.open(folder).samples
    return {
        "torch, files": lambda: _torch(Files(samples, foreign)),
        "torch, packed": lambda: _torch(InHdf5(packed, len(samples), foreign)),
        "rekindle, files": lambda: _rekindle(rk.open(folder, native)),
        "rekindle, packed": lambda: _rekindle(rk.open(packed, native)),
    }


def steps(transforms: Any, extensive: bool) -> Any:
    """The operations, of torchvision or of ours: they have the same names."""
    more = [transforms.ColorJitter(0.4, 0.4, 0.4)] if extensive else []
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            *more,
            transforms.ToTensor(),
            transforms.Normalize(MEAN, DEVIATION),
        ]
    )


def _torch(dataset: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=WORKERS)


def _rekindle(dataset: Any) -> Any:
    return rk.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=WORKERS)


def _in_class_folders(images: list[Path], folder: Path) -> Path:
    for number, path in enumerate(images):
        copy = folder / f"class{number % CLASSES}" / f"{number:06}{path.suffix.lower()}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return folder


class Files(Dataset[tuple[Any, int]]):
    """Image files, opened with PIL."""

    def __init__(self, samples: list[tuple[str, int]], transform: Any) -> None:
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            return self.transform(file.convert("RGB")), label


class InHdf5(Dataset[tuple[Any, int]]):
    """The same in one HDF5 file, which each worker opens for itself with h5py."""

    def __init__(self, path: Path, size: int, transform: Any) -> None:
        self.path, self.size, self.transform = path, size, transform
        self.file: Any = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.file is None:
            import h5py

            self.file = h5py.File(self.path, "r")
        with Image.open(io.BytesIO(self.file["images"][index])) as file:
            return self.transform(file.convert("RGB")), int(self.file["labels"][index])
