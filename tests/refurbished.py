"""Datasets to refurbish and loaders that do, for tests."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk
from light_torchvision import torchvision
from photographs import image_folder

T = rk.transforms
SIZE, BATCH = 26, 6
STEPS = [T.RandomResizedCrop(40), T.RandAugment(2, 9), T.RandomHorizontalFlip(), T.ToTensor()]
WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "2 processes": {"num_workers": 2, "executor": "processes"},
    "2 of a server": {  # They share nothing with this process, as spawned ones, but start faster.
        "num_workers": 2,
        "executor": "processes",
        "multiprocessing_context": "forkserver",
        "persistent_workers": True,
    },
}


def make_images(folder: Path) -> Path:
    return image_folder(folder, SIZE)


class Folder(Dataset[Any]):
    """A dataset as torchvision's are: samples, a loader, a transform that is a Compose."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.samples = sorted(str(path) for path in root.rglob("*.jpg"))
        self.transform = transform
        self.loaded = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.loaded += 1
        with Image.open(self.samples[index]) as image:
            return self.transform(image.convert("RGB")), index


def ours(root: Path) -> Any:
    return rk.open(root, transform=STEPS)


def foreign(root: Path) -> Folder:
    V = torchvision.transforms  # noqa: N806
    return Folder(
        root,
        V.Compose([V.RandomResizedCrop(40), V.RandAugment(2, 9), V.RandomHorizontalFlip(), V.ToTensor()]),
    )


def load(dataset: Any, **settings: Any) -> Any:
    reuse = rk.Refurbish(factor=3, split=2)
    return rk.DataLoader(
        dataset, **{"batch_size": BATCH, "shuffle": True, "seed": 3, "reuse": reuse, **settings}
    )


def epochs(loader: Any, count: int = 5) -> list[Any]:
    return [[part.clone() for part in batch] for _ in range(count) for batch in loader]


class Words(Dataset[Any]):
    """No steps, and samples that are dicts."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return {
            "index": index,
            "noise": np.random.rand(3),
            "name": f"sample {index}",
            "draw": random.random(),
        }


def add_noise(sample: Any) -> Any:
    return {**sample, "late": torch.rand(2)}
