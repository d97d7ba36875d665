"""Code counts as reading files unless it is known not to: what is loaded ahead is never stale."""

from __future__ import annotations

import importlib
import io
import os
import random
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset, Subset, TensorDataset

import rekindle as rk
from rekindle.core.analysis.look import Look

T = rk.transforms
LOAD = np.load
scipy: Any = None
ndimage: Any = None


class Holds(Dataset[Any]):
    """A dataset with something that it holds."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.held


class Tool:
    """One that is reached by name."""

    @staticmethod
    def image(path: str) -> Any:
        """Read a file."""
        return Image.open(path)


def imports_a_reader(path: str) -> Any:
    """Import what reads a file when it is called."""
    from scipy.io import loadmat

    return loadmat(path)


def computes(value: Any) -> Any:
    """Use much that reads no file."""
    image = ImageOps.mirror(Image.fromarray(np.asarray(value, dtype=np.uint8)))
    noise = np.random.rand() + random.random() + len(os.environ) + torch.rand(1).item()
    return ndimage.zoom(np.stack([np.asarray(image)]), 2) + noise, io.BytesIO(b"")


READ = {
    "open": lambda path: open(path),  # noqa: SIM115
    "a path's method": lambda path: Path(path).read_text(),
    "a function of NumPy": lambda path: np.load(path),
    "one by another name": lambda path: LOAD(path),
    "one that is held": np.load,
    "a function of torch": lambda path: torch.load(path),
    "a function of a library": lambda path: scipy.io.loadmat(path),
    "one that is held of a library": None,
    "one that is imported late": imports_a_reader,
    "a class of a library": lambda path: zipfile.ZipFile(path),
    "a class of C code": sqlite3.Connection,
    "a folder's files": lambda path: os.listdir(path),
    "within a class": lambda path: Tool.image(path),
    "a stream of C code": io.FileIO,
}
DO_NOT = {
    "values": [1, {"a": (2, "b")}],
    "arrays": (np.arange(4), torch.arange(3)),
    "computation": computes,
    "a library's function": ImageOps.mirror,
    "a function of C code": torch.stack,
    "a path": Path("a"),
}


@pytest.fixture(autouse=True, scope="module")
def _large_library() -> None:
    """Imported when these tests run, and not before others do: each of their forks would take longer."""
    global scipy, ndimage
    scipy, ndimage = importlib.import_module("scipy"), importlib.import_module("scipy.ndimage")
    READ["one that is held of a library"] = importlib.import_module("scipy.io").loadmat


@pytest.mark.parametrize("which", READ)
def test_what_may_read_files_is_told(which: str) -> None:
    look = Look(Holds(READ[which]))
    assert look.reads_files or not look.is_complete


@pytest.mark.parametrize("held", DO_NOT.values(), ids=DO_NOT)
def test_what_reads_no_files_is_told(held: Any) -> None:
    look = Look(Holds(held))
    assert look.is_complete, look.why_incomplete
    assert not look.reads_files


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.arange(8)),
        Subset(TensorDataset(torch.arange(8)), range(8)),
        rk.ArrayImages(np.zeros((8, 4, 4, 3), np.uint8), range(8), [T.RandomCrop(2), T.ToTensor()]),
    ],
    ids=["tensors", "subset", "images"],
)
def test_the_next_epoch_of_a_dataset_in_memory_is_loaded_ahead(dataset: Any) -> None:
    loader = rk.DataLoader(dataset, batch_size=2, num_workers=1, shuffle=True)
    list(loader)
    assert loader._epochs._idle.can_load_ahead
    loader.close()


def test_the_next_epoch_of_a_folder_is_not_loaded_ahead(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for name in range(4):
        Image.new("RGB", (2, 2)).save(tmp_path / "class" / f"{name}.png")
    loader = rk.DataLoader(rk.open(tmp_path, transform=T.ToTensor()), batch_size=2, num_workers=1)
    list(loader)
    assert not loader._epochs._idle.can_load_ahead
    loader.close()
