"""`rekindle.info`: what is in a dataset, without reading all of it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.core.printable import printable
from rekindle.core.progress import format_bytes
from rekindle.errors import DataError, FormatError
from rekindle.fetch.image_signatures import image_format
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.source import Source
from rekindle.tools.shared_arguments import Samples, as_source

_INSPECTED = 256  # samples whose image headers are read
_CLASSES_NAMED = 20


@dataclass(frozen=True)
class ValueRange:
    """The smallest, the median and the largest of some numbers; zeros if there are none."""

    min: int
    median: int
    max: int

    @classmethod
    def of(cls, values: NDArray[np.integer]) -> ValueRange:
        """The range of these numbers."""
        if not len(values):
            return cls(0, 0, 0)
        return cls(int(np.min(values)), int(np.median(values)), int(np.max(values)))


@dataclass(frozen=True, repr=False)
class DatasetInfo:
    """What `info` found; prints as a table.

    Attributes:
        path: What was opened.
        format: "folder", "hdf5", "tfrecord", "tar" or "lmdb".
        files: How many files there are.
        samples: How many samples they hold.
        nbytes: The size of all samples as they are stored.
        sample_bytes: The sizes of single samples.
        classes: How many classes have names.
        class_names: The first names, at most 20.
        samples_per_class: How many samples the classes have.
        unlabelled: How many samples have no label.
        inspected: How many images, evenly spread over the dataset, were looked at for what follows.
        image_formats: How many of them have which format.
        unreadable: How many of them have a header that cannot be read.
        height: The heights of the others, in pixels.
        width: Their widths.

    """

    path: str
    format: str
    files: int
    samples: int
    nbytes: int
    sample_bytes: ValueRange
    classes: int
    class_names: list[str]
    samples_per_class: ValueRange
    unlabelled: int
    inspected: int
    image_formats: dict[str, int]
    unreadable: int
    height: ValueRange
    width: ValueRange

    def to_dict(self) -> dict[str, object]:
        """Plain data, fit for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        size, per_class = self.sample_bytes, self.samples_per_class
        names = ", ".join(self.class_names[:8]) + (", …" if self.classes > 8 else "")
        formats = ", ".join(f"{count} {name}" for name, count in self.image_formats.items())
        lines = {
            "path": self.path,
            "format": f"{self.format}, {self.files:,} file{'' if self.files == 1 else 's'}",
            "samples": f"{self.samples:,}, {format_bytes(self.nbytes)}",
            "per sample": (
                f"{format_bytes(size.min)} to {format_bytes(size.max)}, median {format_bytes(size.median)}"
            ),
            "classes": f"{self.classes:,}: {names}" if self.classes else "none",
            "per class": f"{_between(per_class, ' to ')} samples",
            "unlabelled": f"{self.unlabelled:,}",
            "images": f"{formats} (of {self.inspected} inspected)",
            "pixels": f"{_between(self.width, '–')} × {_between(self.height, '–')}",
        }
        if self.unreadable:
            lines["unreadable"] = f"{self.unreadable} of them; `rekindle verify` names them"
        return "\n".join(f"{name:<11} {printable(value)}" for name, value in lines.items())


def _between(values: ValueRange, joint: str) -> str:
    """The smallest and the largest value, or the one value that there is."""
    return f"{values.min:,}" if values.min == values.max else f"{values.min:,}{joint}{values.max:,}"


def info(source: Samples) -> DatasetInfo:
    """Format, size, classes and image sizes of a dataset; of its images, at most 256 are looked at.

    Args:
        source: The path or URL of a folder or of packed files, or a dataset made by `rekindle.open`.

    Returns:
        What was found: it prints as a table, and `.to_dict()` gives plain data.

    Raises:
        DataError: There is nothing at that path, or it cannot be read.

    Example:
        >>> import os, tempfile
        >>> from PIL import Image
        >>> import rekindle as rk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat", "dog"):
        ...         os.makedirs(f"{folder}/{name}")
        ...         Image.new("RGB", (64, 48)).save(f"{folder}/{name}/0.png")
        ...     found = rk.info(folder)
        >>> found.samples, found.class_names, found.image_formats
        (2, ['cat', 'dog'], {'PNG': 2})
        >>> found.width
        ValueRange(min=64, median=64, max=64)

    """
    opened = as_source(source)
    lengths = opened.lengths()
    targets = np.asarray(opened.targets, dtype=np.int64)
    packed = opened if isinstance(opened, Packed) else None
    images = _inspect(opened)
    return DatasetInfo(
        path=os.fspath(opened.root),
        format="folder" if packed is None else packed.index.format,
        files=len(opened) if packed is None else len(packed.files),
        samples=len(opened),
        nbytes=int(lengths.sum()),
        sample_bytes=ValueRange.of(lengths),
        classes=len(opened.classes),
        class_names=list(opened.classes[:_CLASSES_NAMED]),
        samples_per_class=ValueRange.of(_samples_per_class(targets, len(opened.classes))),
        unlabelled=int((targets < 0).sum()),
        inspected=images.count,
        image_formats=dict(images.formats.most_common()),
        unreadable=images.count - len(images.sizes),
        height=ValueRange.of(np.array([height for height, _ in images.sizes])),
        width=ValueRange.of(np.array([width for _, width in images.sizes])),
    )


def _samples_per_class(targets: NDArray[np.int64], classes: int) -> NDArray[np.intp]:
    """How many samples each class has; a label without a class, however large, is a class of its own."""
    known = np.bincount(targets[(targets >= 0) & (targets < classes)], minlength=classes)
    _, others = np.unique(targets[targets >= classes], return_counts=True)
    return np.concatenate([known, others])


@dataclass(frozen=True)
class _Inspected:
    """Some images: how many, of which formats, and the height and width of those that can be read."""

    count: int
    formats: Counter[str]
    sizes: list[tuple[int, int]]


def _inspect(source: Source) -> _Inspected:
    """Look at some images, evenly spread over the source."""
    from rekindle.prepare.decode.decode import read_header

    formats: Counter[str] = Counter()
    sizes: list[tuple[int, int]] = []
    chosen = np.unique(np.linspace(0, len(source) - 1, min(len(source), _INSPECTED)).astype(int)).tolist()
    source.prefetch(chosen)
    for index in chosen:
        try:
            stored = source.read(index)
        except FormatError:  # one damaged record
            formats["unknown"] += 1
            continue
        if isinstance(stored, np.ndarray):
            formats[f"{stored.dtype} array"] += 1
            sizes.append((int(stored.shape[0]), int(stored.shape[1])) if stored.ndim >= 2 else (0, 0))
            continue
        data = bytes(stored)
        found = image_format(data)
        formats["unknown" if found is None else found.name] += 1
        try:
            header = read_header(data)
            sizes.append((header.height, header.width))
        except DataError:
            continue
    return _Inspected(len(chosen), formats, sizes)
