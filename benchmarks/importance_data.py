"""Data for the importance benchmark: IDX files (Fashion-MNIST) or a tar of class folders (CIFAR-10)."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

HASH_SIDE = 8
HASH_BYTES = HASH_SIDE * HASH_SIDE // 8


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


def near_copies(data: Images) -> NDArray[np.int64]:
    """For each sample the number of its group of near-copies, −1 for none.

    Copies have the same label and the same difference hash: of the image scaled to few grey pixels, which
    of two neighbours is brighter.
    """
    hashes = np.empty((len(data.labels), HASH_BYTES + 1), np.uint8)
    for row, image in enumerate(data.images):
        grey = image[..., 0] if image.shape[-1] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        small = cv2.resize(grey, (HASH_SIDE + 1, HASH_SIDE), interpolation=cv2.INTER_AREA)
        hashes[row, :-1] = np.packbits(small[:, 1:] > small[:, :-1])
    hashes[:, -1] = data.labels
    _, inverse, counts = np.unique(hashes, axis=0, return_inverse=True, return_counts=True)
    return np.where(counts[inverse] > 1, inverse, -1).astype(np.int64)
