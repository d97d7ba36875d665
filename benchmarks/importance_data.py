"""Data for the importance benchmark: IDX files (Fashion-MNIST) or a tar of class folders (CIFAR-10)."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

import rekindle as rk


class Images(NamedTuple):
    """Images as bytes, samples × height × width × channels, and their labels."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read(path: Path, samples: int | None, seed: int = 0) -> tuple[Images, Images]:
    """Training (a random part, if `samples` are fewer) and test images of a folder of IDX files or a tar."""
    train, test = _of_tar(path) if path.is_file() else _of_idx(path)
    if samples is not None and samples < len(train.labels):
        rows = np.sort(np.random.default_rng(seed).permutation(len(train.labels))[:samples])
        train = Images(train.images[rows], train.labels[rows])
    return train, test


def _of_idx(folder: Path) -> tuple[Images, Images]:
    def one(name: str) -> NDArray[np.uint8]:
        found = sorted(folder.glob(f"{name}*"))
        if not found:
            raise SystemExit(f"{folder} has no {name}…: --data is a folder of IDX files, or a tar of images")
        data = found[0].read_bytes()
        data = gzip.decompress(data) if found[0].suffix == ".gz" else data
        shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)

    train, test = (
        Images(_with_channels(one(f"{part}-images")), one(f"{part}-labels").astype(np.int64))
        for part in ("train", "t10k")
    )
    return train, test


def _with_channels(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return images[..., None] if images.ndim == 3 else images


def _of_tar(path: Path) -> tuple[Images, Images]:
    """Images in train/CLASS/ and test/CLASS/."""
    images: dict[str, list[NDArray[np.uint8]]] = {"train": [], "test": []}
    classes: dict[str, list[str]] = {"train": [], "test": []}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                part, name, _ = member.name.split("/")[-3:]
                encoded = np.frombuffer(tar.extractfile(member).read(), np.uint8)  # type: ignore[union-attr]
                images[part].append(cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB))
                classes[part].append(name)
    names = sorted(set(classes["train"]))
    train, test = (
        Images(np.stack(images[part]), np.array([names.index(name) for name in classes[part]]))
        for part in ("train", "test")
    )
    return train, test


def near_duplicates(data: Images) -> rk.RedundantGroups:
    """The groups of near-duplicates, as `rekindle dedupe` finds them."""
    colours = np.repeat(data.images, 3 // data.images.shape[-1], axis=-1)
    return rk.find_redundancy(rk.ArrayImages(colours, data.labels))
