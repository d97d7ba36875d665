"""Small datasets of torchvision's, each made from files in its own format."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from light_torchvision import torchvision
from photographs import photographs

datasets = torchvision.datasets
SAMPLES = 10
GENERATOR = np.random.default_rng(7)


def _pixels(*shape: int) -> np.ndarray:
    """Random blocks of 4 × 4: images that a resize does not make all grey."""
    coarse = GENERATOR.integers(0, 256, (*shape[:1], *(side // 4 for side in shape[1:3]), *shape[3:]))
    return coarse.repeat(4, axis=1).repeat(4, axis=2).astype(np.uint8)


def class_folders(root: Path, extension: str = ".png") -> Path:
    for number in range(SAMPLES):
        folder = root / "images" / f"class-{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.ascontiguousarray(photographs()[number % 8][:90, :120]))
        image.save(folder / f"{number:02}{extension}")
    return root / "images"


def image_folder(root: Path, transform: Any) -> Any:
    return datasets.ImageFolder(class_folders(root), transform)


def images_of_all_modes(root: Path, transform: Any) -> Any:
    """Files that Pillow opens in other modes than RGB."""
    folder = root / "modes"
    (folder / "a").mkdir(parents=True)
    photograph = Image.fromarray(np.ascontiguousarray(photographs()[2][:80, :100]))
    for mode in ("L", "LA", "RGBA", "P", "1"):
        photograph.convert(mode).save(folder / "a" / f"{mode}.png")
    photograph.convert("CMYK").save(folder / "a" / "cmyk.jpg", quality=95)
    photograph.convert("L").save(folder / "a" / "grey.jpg", quality=95)
    grey = np.asarray(photograph.convert("L"), dtype=np.uint16) * 257
    Image.fromarray(grey).save(folder / "a" / "sixteen.png")
    photograph.save(folder / "a" / "bitmap.bmp")
    photograph.save(folder / "a" / "lossless.webp", lossless=True)
    photograph.save(folder / "a" / "tagged.tiff")
    return datasets.ImageFolder(folder, transform)


def imagenet(root: Path, transform: Any) -> Any:
    """ImageNet wants its archives; it is an ImageFolder with names for its classes."""
    made = datasets.ImageNet.__new__(datasets.ImageNet)
    datasets.ImageFolder.__init__(made, class_folders(root), transform)
    made.split, made.wnids = "train", made.classes
    made.classes = [("tench", "Tinca tinca"), ("goldfish",), ("shark", "man-eater")]
    return made


def food101(root: Path, transform: Any) -> Any:
    base, listed = root / "food-101", {}
    for name in ("pizza", "apple_pie"):
        (base / "images" / name).mkdir(parents=True)
        listed[name] = [f"{name}/{number}" for number in range(4)]
        for number in range(4):
            image = Image.fromarray(np.ascontiguousarray(photographs()[number][:90, :110]))
            image.save(base / "images" / name / f"{number}.jpg", quality=95)
    (base / "meta").mkdir()
    (base / "meta" / "train.json").write_text(json.dumps(listed))
    return datasets.Food101(root, "train", transform)


def cifar(kind: type, key: str) -> Callable[[Path, Any], Any]:
    def make(root: Path, transform: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "_check_integrity", lambda self: True)
            patch.setattr(kind, "_load_meta", lambda self: setattr(self, "classes", [*"abcdefghij"]))
            folder = root / kind.base_folder
            folder.mkdir(parents=True)
            for name, _ in kind.train_list:
                batch = {
                    "data": _pixels(SAMPLES, 32, 32, 3).transpose(0, 3, 1, 2).reshape(SAMPLES, -1),
                    key: GENERATOR.integers(0, 10, SAMPLES).tolist(),
                }
                (folder / name).write_bytes(pickle.dumps(batch))
            return kind(root, train=True, transform=transform)

    return make


def _write_idx(path: Path, array: np.ndarray, kind: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([kind * 256 + array.ndim, *array.shape], dtype=">i4").tobytes()
    path.write_bytes(header + array.tobytes())


def mnist(kind: type, **options: Any) -> Callable[[Path, Any], Any]:
    def make(root: Path, transform: Any) -> Any:
        raw = root / kind.__name__ / "raw"
        names = {
            "EMNIST": ("emnist-letters-train-images-idx3-ubyte", "emnist-letters-train-labels-idx1-ubyte"),
            "QMNIST": ("qmnist-train-images-idx3-ubyte", "qmnist-train-labels-idx2-int"),
        }
        usual = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
        images, labels = names.get(kind.__name__, usual)
        for other in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):  # must be there as well
            _write_idx(raw / other, np.zeros((1, 28, 28) if "images" in other else 1, dtype=np.uint8))
        _write_idx(raw / images, _pixels(SAMPLES, 28, 28))
        found = GENERATOR.integers(0, 10, SAMPLES)
        if kind is datasets.QMNIST:
            table = np.concatenate([found[:, None], GENERATOR.integers(0, 9, (SAMPLES, 7))], axis=1)
            _write_idx(raw / labels, table.astype(">i4"), kind=12)
        else:
            _write_idx(raw / labels, found.astype(np.uint8))
        return kind(root, transform=transform, **options)

    return make


def stl10(root: Path, transform: Any) -> Any:
    folder = root / "stl10_binary"
    folder.mkdir()
    images = _pixels(SAMPLES, 96, 96, 3).transpose(0, 3, 2, 1)  # stored with columns first
    (folder / "train_X.bin").write_bytes(np.ascontiguousarray(images).tobytes())
    (folder / "train_y.bin").write_bytes(np.arange(1, SAMPLES + 1, dtype=np.uint8).tobytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.STL10, "_check_integrity", lambda self: True)
        return datasets.STL10(root, "train", transform=transform)


def svhn(root: Path, transform: Any) -> Any:
    import scipy.io

    images = _pixels(SAMPLES, 32, 32, 3).transpose(1, 2, 3, 0)
    scipy.io.savemat(root / "train_32x32.mat", {"X": images, "y": np.arange(1, SAMPLES + 1)[:, None]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
        return datasets.SVHN(root, "train", transform=transform)


def usps(root: Path, transform: Any) -> Any:
    import bz2

    lines = []
    for label, image in enumerate(_pixels(SAMPLES, 16, 16)):
        values = " ".join(f"{n}:{v / 127.5 - 1:.4f}" for n, v in enumerate(image.ravel().tolist(), start=1))
        lines.append(f"{label + 1} {values}\n")
    (root / "usps.bz2").write_bytes(bz2.compress("".join(lines).encode()))
    return datasets.USPS(root, transform=transform)


COLOURED: dict[str, Callable[[Path, Any], Any]] = {
    "ImageFolder": image_folder,
    "all modes": images_of_all_modes,
    "ImageNet": imagenet,
    "Food101": food101,
    "CIFAR10": cifar(datasets.CIFAR10, "labels"),
    "CIFAR100": cifar(datasets.CIFAR100, "fine_labels"),
    "STL10": stl10,
    "SVHN": svhn,
}
GREY: dict[str, Callable[[Path, Any], Any]] = {
    "MNIST": mnist(datasets.MNIST),
    "FashionMNIST": mnist(datasets.FashionMNIST),
    "KMNIST": mnist(datasets.KMNIST),
    "EMNIST": mnist(datasets.EMNIST, split="letters"),
    "QMNIST": mnist(datasets.QMNIST),
    "USPS": usps,
}
