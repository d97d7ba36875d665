"""A folder of images, a file a sample: class folders as torchvision's ImageFolder has, or a labels file."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import DataError
from rekindle.fetch.labels import LABEL_FILES, Labels, numbered, read_labels
from rekindle.fetch.listing import Listing, Names, check_folder, list_files

# As torchvision's ImageFolder has them.
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_MOST_AT_ONCE = 256 << 10  # bytes: more than most photographs of data sets have


class LabelledFiles(ABC):
    """Files of classes, as torchvision's `ImageFolder` has them: here, or behind a URL."""

    classes: list[str]
    _files: Names
    _targets: NDArray[np.int64]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name."""
        return {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self._files)

    @abstractmethod
    def path(self, index: int) -> str:
        """Where a sample's file is."""

    def target(self, index: int) -> int:
        """The number of a sample's class."""
        return int(self._targets[index])

    @property
    def targets(self) -> list[int]:
        """The number of each sample's class."""
        targets: list[int] = self._targets.tolist()
        return targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Path and class number of each sample."""
        return [(self.path(index), target) for index, target in enumerate(self.targets)]


class Folder(LabelledFiles):
    """The samples of a folder: `read(index)` gives the bytes of one.

    With class folders, `classes`, `class_to_idx`, `samples` and `targets` are those of torchvision's
    `ImageFolder`, in its order. With `labels` (a CSV or JSON file, or a mapping, from file names relative
    to the folder to labels; a labels.csv or labels.json in the folder is found by itself), samples are
    sorted by name; labels that are whole numbers are the targets, others are numbered in sorted order.

    Args:
        root: The folder.
        labels: Where labels come from, if not from class folders.
        extensions: What the names of images end in, capital letters or not.
        keep_listing: Whether large listings are kept in the user's cache folder.

    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        labels: str | os.PathLike[str] | Labels | None = None,
        *,
        extensions: tuple[str, ...] = IMAGE_EXTENSIONS,
        keep_listing: bool = True,
    ) -> None:
        self.root = Path(root)
        check_folder(self.root)
        listing = list_files(self.root, extensions, keep=keep_listing)
        if labels is None:
            labels = next((self.root / name for name in LABEL_FILES if (self.root / name).is_file()), None)
        self._files = listing.files
        if labels is None:
            self.classes, self._targets, kept = from_folders(self.root, listing, extensions)
            self._files = kept
        else:
            given = labels if isinstance(labels, Mapping) else read_labels(_beside(self.root, labels))
            self.classes, self._targets = from_labels(self.root, listing, given, extensions)
        self._prefix = os.path.join(os.fsencode(self.root), b"")

    def read(self, index: int) -> bytes:
        """The bytes of a sample's file."""
        # Half the time, with the lock held, of Python's own file objects. Nothing more after the first piece
        # is the end of the file; a piece that is short is not.
        file = os.open(self._prefix + self._files[index], os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(file, _MOST_AT_ONCE)
            more = os.read(file, 1)
            if not more:
                return data
            parts = [data, more]
            while parts[-1]:
                parts.append(os.read(file, 16 * _MOST_AT_ONCE))
            return b"".join(parts)
        finally:
            os.close(file)

    def nbytes(self, index: int) -> int:
        """How large a sample's file is."""
        return os.stat(self._prefix + self._files[index]).st_size

    def path(self, index: int) -> str:
        """Where a sample's file is."""
        return os.fsdecode(self._prefix + self._files[index])

    def lengths(self) -> NDArray[np.int64]:
        """How many bytes each sample's file has, 0 if it is gone: one look at each, when it is asked for."""
        sizes = (_state(self._prefix + self._files[index])[0] for index in range(len(self)))
        return np.fromiter(sizes, dtype=np.int64, count=len(self))

    def version(self) -> str:
        """Changes with the size or the time of change of any sample's file: one look at each."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(b"%d %d\n" % _state(self._prefix + self._files[index]))
        return digest.hexdigest()


def _state(path: bytes) -> tuple[int, int]:
    """Size and time of the last change of a file."""
    try:
        state = os.stat(path)
    except OSError:  # Whoever reads the sample is told.
        return 0, 0
    return state.st_size, state.st_mtime_ns


def _beside(root: Path, labels: str | os.PathLike[str]) -> Path:
    """The labels file, which may be named relative to the folder."""
    path = Path(labels)
    return path if path.exists() or path.is_absolute() else root / path


def from_folders(
    root: str | Path, listing: Listing, extensions: tuple[str, ...]
) -> tuple[list[str], NDArray[np.int64], Names]:
    """The classes that are the folders right below; files beside them belong to none and are left out."""
    folders = listing.folders
    names = {folders[number].split(b"/", 1)[0] for number in range(len(folders))} - {b""}
    # Sorted as torchvision sorts: as text.
    classes = sorted(map(os.fsdecode, names))
    files = listing.files
    if not classes:
        found = f"{len(files):,} images" if len(files) else f"no files that end in {', '.join(extensions)}"
        raise DataError(
            f"{str(root)!r} has no class folders and no labels, but {found}. Put the images of each class "
            "into a folder of its own, or give labels= (a CSV or JSON file of names and labels)."
        )
    number_of = {os.fsencode(name): number for number, name in enumerate(classes)}
    order: list[list[bytes]] = [[] for _ in classes]
    start, joined = 0, files.joined.tobytes()
    for end in files.ends.tolist():
        name = joined[start:end]
        start = end
        folder, separator, _ = name.partition(b"/")
        if separator:
            order[number_of[folder]].append(name)
    empty = [name for name, inside in zip(classes, order, strict=True) if not inside]
    if empty:
        raise DataError(
            f"{str(root)!r}: no images in the class folders {', '.join(empty[:5])}{' …' if empty[5:] else ''}"
            f" (names end in {', '.join(extensions)}). Put some there or remove the folders."
        )
    sizes = [len(inside) for inside in order]
    targets = np.repeat(np.arange(len(classes), dtype=np.int64), sizes)
    return classes, targets, Names.of([name for inside in order for name in inside])


def from_labels(
    root: str | Path, listing: Listing, labels: Labels, extensions: tuple[str, ...]
) -> tuple[list[str], NDArray[np.int64]]:
    """The classes and targets of all files, from labels that name each of them."""
    names = [os.fsdecode(listing.files[number]) for number in range(len(listing.files))]
    if not names:
        raise DataError(
            f"{str(root)!r} holds no images, that is no files that end in {', '.join(extensions)}."
        )
    _check_complete(root, names, labels)
    return numbered([labels[name] for name in names], str(root))


def _check_complete(root: str | Path, names: list[str], labels: Labels) -> None:
    unlabelled = [name for name in names if name not in labels]
    if unlabelled:
        raise DataError(
            f"{str(root)!r}: {len(unlabelled):,} of {len(names):,} images have no label, the first is "
            f"{unlabelled[0]!r}. Label them or move them away."
        )
    if len(labels) > len(names):
        there = set(names)
        missing = [name for name in labels if name not in there]
        raise DataError(
            f"{str(root)!r}: {len(missing):,} labels are for files that are not there, the first is "
            f"{missing[0]!r}."
        )
