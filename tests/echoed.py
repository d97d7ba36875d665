"""Images, and loaders that echo them."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    Dataset,
)

import rekindle as rk
from photographs import image_folder

T = rk.transforms
SIZE, BATCH = 20, 6
STEPS = [T.RandomResizedCrop(40), T.RandomHorizontalFlip(), T.ToTensor()]
WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "2 processes": {"num_workers": 2, "executor": "processes"},
}
AFTER = ["read", "decode", "augment", "batch", "RandomResizedCrop"]


def make_images(folder: Path) -> Path:
    return image_folder(folder, SIZE)


def load(dataset: Any, **settings: Any) -> Any:
    return rk.DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True, "seed": 3, **settings})


def epochs(loader: Any, count: int = 2) -> list[Any]:
    return [[part.clone() for part in batch] for _ in range(count) for batch in loader]


def views(root: Path, after: str) -> list[list[bytes]]:
    """What each sample looked like in one epoch."""
    loader = load(rk.open(root, transform=STEPS), reuse=rk.Echo(4, after, shuffle=4))
    seen: dict[int, list[bytes]] = {}
    for images, _ in loader:
        for id_, image in zip(loader.batch.ids.tolist(), images, strict=True):
            seen.setdefault(id_, []).append(image.numpy().tobytes())
    return list(seen.values())


class Counted(Dataset[Any]):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        return torch.full((5,), index), torch.rand(1)
