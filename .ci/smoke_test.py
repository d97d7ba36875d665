"""Tries an installed Rekindle, without its source tree and without any extra: run it in the new environment.

It loads with processes and with threads, resumes, reuses, reads a folder of images natively, and packs it by
the command line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk


class Squares(Dataset[torch.Tensor]):
    """Small tensors, and random numbers in them."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index * index]) + torch.rand(2)


def write_images(root: Path) -> None:
    """Twelve images of two classes."""
    for number in range(12):
        folder = root / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")


def try_any_dataset() -> None:
    """The same bytes for any number of workers, and after a resume."""
    alone = torch.cat(list(rk.DataLoader(Squares(), 8, shuffle=True, seed=1)))
    loader = rk.DataLoader(Squares(), 8, shuffle=True, seed=1, num_workers=2)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(5)]
    resumed = rk.DataLoader(Squares(), 8, shuffle=True, seed=1, num_workers=1)
    resumed.load_state_dict(loader.state_dict())
    assert torch.equal(torch.cat([*first, *resumed]), alone)
    assert loader.report().samples == 40
    loader.close()


def try_images(root: Path) -> None:
    """Native steps, partly reused; packed by the command line and read back."""
    steps = [
        rk.transforms.RandomResizedCrop(32),
        rk.transforms.RandomHorizontalFlip(),
        rk.transforms.ToTensor(),
    ]
    command = Path(sys.executable).with_name("rekindle")
    write_images(root / "train")
    subprocess.run(
        [command, "pack", root / "train", root / "train.tar"], check=True, stdout=subprocess.DEVNULL
    )
    for path in ("train", "train.tar"):
        images = rk.open(root / path, transform=steps)
        reuse = rk.Refurbish(factor=2, split="RandomHorizontalFlip")
        loader = rk.DataLoader(images, 4, shuffle=True, num_workers=2, seed=1, reuse=reuse)
        for _ in range(2):
            assert [tuple(batch.shape) for batch, _ in loader] == [(4, 3, 32, 32)] * 3
        loader.close()


def main() -> None:
    """Raises whatever is wrong."""
    installed = Path(rk.__file__)
    assert Path(sys.prefix) in installed.parents, f"{installed} is not of this environment"
    assert rk.__version__ == version("rekindle")
    assert installed.with_name("py.typed").exists()
    try_any_dataset()
    with tempfile.TemporaryDirectory() as folder:
        try_images(Path(folder))
    print(
        f"rekindle {rk.__version__} works with torch {torch.__version__} and Python {sys.version.split()[0]}"
    )


if __name__ == "__main__":
    main()
