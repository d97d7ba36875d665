"""A folder of images, a file a sample: class folders as in torchvision's ImageFolder, or a labels file."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import DataError
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.labels import LABEL_FILES, Labels, no_key_matches, number_classes, read_labels
from rekindle.fetch.listing import Listing, check_folder, list_files
from rekindle.fetch.regular_file import open_regular

# Those of torchvision's ImageFolder.
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# bytes: more than most images of datasets have. Memory of one size is reused, and not mapped page by page.
_READ_SIZE = 256 << 10


class LabelledFiles(ABC):
    """Files with class labels, as torchvision's `ImageFolder` presents them: local, or behind a URL."""

    reads_files = True  # that scripts may rewrite between two epochs

    classes: list[str]
    _files: BytesArray
    _targets: NDArray[np.int64]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name."""
        return {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self._files)

    @abstractmethod
    def path(self, index: int) -> str:
        """The path of a sample's file."""

    def target(self, index: int) -> int:
        """The class number of a sample."""
        return self._targets.item(index)

    @property
    def targets(self) -> list[int]:
        """The class number of each sample."""
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
    to the folder to labels; a labels.csv or labels.json in the folder is found without it), samples are
    sorted by name. Integer labels are the targets; others are numbered in sorted order.

    Args:
        root: The folder.
        labels: Where labels come from, if not from class folders.
        extensions: What the names of images end in, in upper or lower case.
        limits: How many bytes a sample may have.
        unlabelled: Whether images may have no label at all (their target is −1), if there are no class
            folders and no labels.

    """

    # To open a file costs as much as reading it ahead would save.
    is_worth_prefetching = False

    def __init__(
        self,
        root: str | os.PathLike[str],
        labels: str | os.PathLike[str] | Labels | None = None,
        *,
        extensions: tuple[str, ...] = IMAGE_EXTENSIONS,
        limits: Limits = DEFAULT_LIMITS,
        unlabelled: bool = False,
    ) -> None:
        self._limits = limits
        self.root = Path(root)
        check_folder(self.root)
        listing = list_files(self.root, extensions)
        if labels is None:
            labels = next((self.root / name for name in LABEL_FILES if (self.root / name).is_file()), None)
        self._files = listing.files
        if labels is None:
            self.classes, self._targets, self._files = from_folders(
                self.root, listing, extensions, unlabelled
            )
        else:
            given = labels if isinstance(labels, Mapping) else read_labels(_labels_path(self.root, labels))
            self.classes, self._targets = from_labels(self.root, listing, given, extensions, limits)
        self._prefix = os.path.join(os.fsencode(self.root), b"")

    def read(self, index: int) -> bytes:
        """The bytes of a sample's file."""
        # Holds the GIL half as long as Python's file objects do.
        file, state = open_regular(self._prefix + self._files[index])
        try:
            size = state.st_size
            self._limits.check_encoded(size)
            data = os.read(file, max(size, _READ_SIZE))
            while len(data) < size:  # A short read is not the end of a file; an empty one is.
                more = os.read(file, size - len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            os.close(file)

    copy = read

    def prefetch(self, indices: Sequence[int]) -> None:
        """Nothing: see `is_worth_prefetching`."""

    def nbytes(self, index: int) -> int:
        """The size of a sample's file."""
        return os.stat(self._prefix + self._files[index]).st_size

    encoded_nbytes = nbytes

    def path(self, index: int) -> str:
        """The path of a sample's file."""
        return os.fsdecode(self._prefix + self._files[index])

    def lengths(self) -> NDArray[np.int64]:
        """The size of each sample's file, 0 if it is gone: one `stat` each."""
        sizes = (state[0] for state in self._sizes_and_times())
        return np.fromiter(sizes, dtype=np.int64)

    def version(self) -> str:
        """Changes with the size of any sample's file, or when it was changed: one `stat` each."""
        digest = hashlib.sha256()
        for state in self._sizes_and_times():
            digest.update(b"%d %d %d\n" % state)
        return digest.hexdigest()

    def _sizes_and_times(self) -> Iterator[tuple[int, int, int]]:
        for names in self._files.chunks():
            for name in names:
                yield _size_and_times(self._prefix + name)


def _size_and_times(path: bytes) -> tuple[int, int, int]:
    """Size of a file, time of its content and of its last change; zeros if it is gone, as a read will report.

    The first time can be set, and is by archives and copies: then only the second one shows a new content.
    """
    try:
        state = os.stat(path)
    except OSError:
        return 0, 0, 0
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _labels_path(root: Path, labels: str | os.PathLike[str]) -> Path:
    """The labels file, which may be named relative to the folder."""
    path = Path(labels)
    return path if path.exists() or path.is_absolute() else root / path


def from_folders(
    root: str | Path, listing: Listing, extensions: tuple[str, ...], unlabelled: bool = False
) -> tuple[list[str], NDArray[np.int64], BytesArray]:
    """Classes, targets and files of class folders; files outside of them have no class and are left out."""
    folders = listing.folders
    names = {folders[number].split(b"/", 1)[0] for number in range(len(folders))} - {b""}
    # Sorted as torchvision sorts: as text.
    classes = sorted(map(os.fsdecode, names))
    files = listing.files
    if not classes and unlabelled and len(files):
        return [], np.full(len(files), -1, dtype=np.int64), files
    if not classes:
        if not len(files):
            raise DataError(
                f"{str(root)!r} has no class folders, and no files that end in {', '.join(extensions)}. "
                "Give a folder that holds a folder of images for each class."
            )
        raise DataError(
            f"{str(root)!r} has no class folders and no labels, but {len(files):,} images. "
            "Put those of each class into a folder of its own, or give labels= (a CSV or JSON file of names "
            "and labels)."
        )
    number_of = {os.fsencode(name): number for number, name in enumerate(classes)}
    order: list[list[bytes]] = [[] for _ in classes]
    start, data = 0, files.data.tobytes()
    for end in files.ends.tolist():
        name = data[start:end]
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
    return classes, targets, BytesArray.from_list([name for inside in order for name in inside])


def from_labels(
    root: str | Path,
    listing: Listing,
    labels: Labels,
    extensions: tuple[str, ...],
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[list[str], NDArray[np.int64]]:
    """The classes and targets of all files, each of which must have a label."""
    names = [os.fsdecode(listing.files[number]) for number in range(len(listing.files))]
    if not names:
        raise DataError(f"{str(root)!r} holds no images: no file ends in {', '.join(extensions)}.")
    _check_complete(root, names, labels)
    return number_classes([labels[name] for name in names], str(root), limits)


def _check_complete(root: str | Path, names: list[str], labels: Labels) -> None:
    unlabelled = [name for name in names if name not in labels]
    if unlabelled:
        advice = no_key_matches(names, unlabelled, labels) or " Label them or move them away."
        raise DataError(
            f"{str(root)!r}: {len(unlabelled):,} of {len(names):,} images have no label, the first is "
            f"{unlabelled[0]!r}.{advice}"
        )
    if len(labels) > len(names):
        existing = set(names)
        missing = [name for name in labels if name not in existing]
        raise DataError(
            f"{str(root)!r}: {len(missing):,} labels are for files that do not exist, the first is "
            f"{missing[0]!r}. Remove these labels, or add the files."
        )
