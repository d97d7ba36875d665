"""What a data set of images reads from: samples by number, as bytes or as arrays, with their labels.

`Folder` (a file a sample) and `Packed` (many samples a file) are the two sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# An encoded image: bytes, or a view of them that costs no copy.
Encoded = bytes | memoryview
# An encoded image, or pixels that need no decoding.
Stored = Encoded | NDArray[Any]


class Source(Protocol):
    """Samples by number. All of it may be called from any thread and from forked processes."""

    @property
    def root(self) -> str | os.PathLike[str]:
        """What was opened."""

    @property
    def classes(self) -> list[str]:
        """The name of each class, by its number."""

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name."""

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Name and class number of each sample."""

    @property
    def targets(self) -> list[int]:
        """The class number of each sample; -1 where there is no label."""

    def __len__(self) -> int:
        """How many samples there are."""

    def read(self, index: int) -> Stored:
        """A sample as it is stored."""

    def target(self, index: int) -> int:
        """The number of a sample's class; -1 if it has no label."""

    def path(self, index: int) -> str:
        """Where a sample is, for people to read."""

    def lengths(self) -> NDArray[np.int64]:
        """How many bytes each sample takes as it is stored: what it costs to load, without a clock."""

    def version(self) -> str:
        """A text that changes when the content of a sample does, as far as can be seen without reading it."""


def copied(source: Source, index: int) -> bytes | NDArray[Any]:
    """A sample in memory of its own, read while other threads run; pixels may still lie in their file."""
    copy: Callable[[int], Stored] | None = getattr(source, "copy", None)
    stored = source.read(index) if copy is None else copy(index)
    return bytes(stored) if isinstance(stored, memoryview) else stored
