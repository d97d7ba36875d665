"""The recipe of the demo, as many scripts have it, and the rows of its table: each goes one step further."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from benchmarks.torchvision_on_cpu import torchvision, transforms
from demo.folder import ImageFolder, Labelled

import rekindle as rk

PIXELS = 112
SEED = 0
MEAN, DEVIATION = (0.45, 0.45, 0.45), (0.25, 0.25, 0.25)

Loader = torch.utils.data.DataLoader[Any]


def training_steps() -> Any:
    """A crop, a flip, RandAugment: nothing of Rekindle in it."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(PIXELS, scale=(0.25, 1)),
            transforms.RandomHorizontalFlip(),
            transforms.RandAugment(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, DEVIATION),
        ]
    )


def validation_steps() -> Any:
    """The middle of the image."""
    return transforms.Compose(
        [
            transforms.Resize(PIXELS),
            transforms.CenterCrop(PIXELS),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, DEVIATION),
        ]
    )


class Recipe:
    """The datasets that are trained on and validated with: torchvision's ImageFolder, of links to images."""

    def __init__(self, data: ImageFolder, scratch: Path) -> None:
        self._scratch = scratch
        self.classes = len(data.classes)
        self.train = self._folder(data.train, "train", training_steps())
        self.val = self._folder(data.val, "val", validation_steps())

    def _folder(self, samples: list[Labelled], name: str, steps: Any) -> Any:
        root = self._scratch / name
        for label in range(self.classes):
            (root / f"{label:04}").mkdir(parents=True)
        for number, (path, label) in enumerate(samples):
            link = root / f"{label:04}" / f"{number:06}{path.suffix.lower()}"
            link.symlink_to(path.resolve())
        # Whatever Pillow opens; some classes may have no image to validate with.
        return torchvision.datasets.ImageFolder(root, steps, is_valid_file=os.path.isfile, allow_empty=True)

    @cached_property
    def packed(self) -> rk.ImageDataset:
        """The training images in one file, as pixels, behind the same steps."""
        file = self._scratch / "train.tar"
        rk.pack(rk.native(self.train), file, raw_share=1.0, progress=False)
        return rk.open(file, rk.transforms.from_torchvision(self.train.transform))


@dataclass(frozen=True)
class Row:
    """A row of the table: `make_loader` takes the recipe and torch's arguments."""

    name: str
    make_loader: Callable[..., Loader]
    native: bool = False  # whether validation images are loaded natively as well


def _torch(recipe: Recipe, **settings: Any) -> Loader:
    return torch.utils.data.DataLoader(recipe.train, **settings)


def _imported(recipe: Recipe, **settings: Any) -> Loader:
    return rk.DataLoader(recipe.train, seed=SEED, **settings)


def _native(recipe: Recipe, **settings: Any) -> Loader:
    return rk.DataLoader(recipe.train, seed=SEED, native="auto", **settings)


def _refurbished(recipe: Recipe, **settings: Any) -> Loader:
    return rk.DataLoader(recipe.train, seed=SEED, native="auto", reuse=rk.Refurbish(3), **settings)


def _packed(recipe: Recipe, **settings: Any) -> Loader:
    return rk.DataLoader(recipe.packed, seed=SEED, reuse=rk.Refurbish(3), **settings)


# To add a row to the table, add a line here.
ROWS = [
    Row("torch", _torch),
    Row("import rekindle", _imported),
    Row('native="auto"', _native, native=True),
    Row("+ Refurbish(3)", _refurbished, native=True),
    Row("+ packed", _packed, native=True),
]


def validation_loader(recipe: Recipe, row: Row, **settings: Any) -> Loader:
    """The validation images, loaded as the row does it."""
    if row.name == "torch":
        return torch.utils.data.DataLoader(recipe.val, **settings)
    return rk.DataLoader(recipe.val, seed=SEED, native="auto" if row.native else False, **settings)
