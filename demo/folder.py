"""Reads an image folder: class folders of images, split into training and validation images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.colours import MADE_UP_CLASSES, group_by_colour

IMAGE_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}
VALIDATION_NAMES = ("val", "valid", "validation", "test")

Labelled = tuple[Path, int]  # an image file and the number of its class


class FolderError(ValueError):
    """The folder cannot be trained on; the message says why and what to do."""


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder: `classes[label]` is the name of a class."""

    classes: list[str]
    train: list[Labelled]
    val: list[Labelled]


def read_image_folder(folder: Path, most: int) -> ImageFolder:
    """The images in `folder`, at most about `most` of them, four fifths of those for training.

    With `folder/train` and `folder/val` those are the two parts; otherwise every fifth image of
    each class, in the order of their names, is for validation. Without class folders, images get labels
    by their colours.
    """
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}: give one that holds a folder a class.")
    if not _has_classes(folder):
        return _labelled_by_colour(folder, most)
    val_folder = next((folder / n for n in VALIDATION_NAMES if (folder / n).is_dir()), None)
    if (folder / "train").is_dir() and val_folder:
        classes = _class_names(folder / "train")
        train = _labelled(folder / "train", classes)
        unknown = set(_class_names(val_folder)) - set(classes)
        if unknown:
            names = ", ".join(sorted(unknown)[:5])
            raise FolderError(f"{val_folder} has classes that {folder / 'train'} lacks: {names}.")
        val = _labelled(val_folder, classes)
    else:
        classes = _class_names(folder)
        train, val = [], []
        for number, name in enumerate(classes):
            for i, path in enumerate(_images(folder / name)):
                (val if i % 5 == 4 else train).append((path, number))
    if not train or not val:
        raise FolderError(
            f"{folder} has {len(train)} images to train on and {len(val)} to validate with: "
            "it needs some of both, so at least five images in a class."
        )
    return ImageFolder(classes, _thin(train, most * 4 // 5), _thin(val, most // 5))


def _has_classes(folder: Path) -> bool:
    """Whether at least two folders, here or in `train`, hold images."""
    inside = folder / "train" if (folder / "train").is_dir() else folder
    return sum(any(_images(path)) for path in inside.iterdir() if path.is_dir()) >= 2


def _labelled_by_colour(folder: Path, most: int) -> ImageFolder:
    paths = _images(folder)
    if len(paths) < MADE_UP_CLASSES * 5:
        raise FolderError(
            f"{folder} holds {len(paths)} images: it needs at least {MADE_UP_CLASSES * 5}, with names that "
            f"end in {', '.join(sorted(IMAGE_ENDINGS))}, and a folder a class if they have labels."
        )
    labelled = [
        (path, label) for path, label in zip(paths, group_by_colour(paths), strict=True) if label >= 0
    ]
    parts: tuple[list[Labelled], list[Labelled]] = ([], [])
    for number, sample in enumerate(labelled):
        parts[number % 5 == 4].append(sample)
    classes = [f"colours {number + 1}" for number in range(MADE_UP_CLASSES)]
    return ImageFolder(classes, _thin(parts[0], most * 4 // 5), _thin(parts[1], most // 5))


def _class_names(folder: Path) -> list[str]:
    names = [p.name for p in sorted(folder.iterdir()) if p.is_dir() and any(_images(p))]
    if len(names) < 2:
        raise FolderError(
            f"{folder} has {len(names)} folders with images: it needs one folder a class, at "
            f"least two, with files that end in {', '.join(sorted(IMAGE_ENDINGS))}."
        )
    return names


def _labelled(folder: Path, classes: Sequence[str]) -> list[Labelled]:
    return [(path, i) for i, name in enumerate(classes) for path in _images(folder / name)]


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_ENDINGS)


def _thin(samples: list[Labelled], most: int) -> list[Labelled]:
    """At most `most` of the samples, evenly spread over them and so over the classes."""
    if len(samples) <= most:
        return samples
    return [samples[i * len(samples) // most] for i in range(most)]
