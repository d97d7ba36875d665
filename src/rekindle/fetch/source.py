"""Samples by index, encoded or as arrays, with their labels: what an image dataset reads from.

`Folder` (a file a sample), `RemoteFolder` (an object a sample) and `Packed` (many samples a file) are
sources.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

# An encoded image: bytes, or a view of them that costs no copy.
Encoded = bytes | memoryview
# Most often pixels (uint8, height × width × 3), but HDF5 files hold arrays of any dtype.
Array = NDArray[Any]
# An encoded image, or an array that needs no decoding.
Stored = Encoded | Array


class MappedSamples(NamedTuple):
    """Where samples lie in files that are mapped into memory, in one row each; within them, for certain."""

    memory: dict[int, NDArray[np.uint8]]  # the files that are needed, by their numbers
    files: NDArray[np.int64]  # −1 for a sample that has to be read in another way
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    heights: NDArray[np.int64]  # of images that are pixels alone; 0 where a header says it
    widths: NDArray[np.int64]
    labels: NDArray[np.int64]


@runtime_checkable
class Source(Protocol):
    """Samples by index. Every method may be called from any thread and from forked processes."""

    @property
    def root(self) -> str | os.PathLike[str]:
        """The path or URL that was opened."""

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

    @property
    def is_worth_prefetching(self) -> bool:
        """Whether `prefetch` saves more time than it takes."""

    def __len__(self) -> int:
        """The number of samples."""

    def read(self, index: int) -> Stored:
        """A sample as it is stored; it may be a view of a mapped file."""

    def copy(self, index: int) -> bytes | Array:
        """A sample in memory of its own, read without holding the GIL; an array may still be a view."""

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to fetch samples that will be read soon; returns at once."""

    def target(self, index: int) -> int:
        """The class number of a sample; -1 if it has no label."""

    def path(self, index: int) -> str:
        """Where a sample is, for error messages."""

    def lengths(self) -> NDArray[np.int64]:
        """The stored size of each sample in bytes: what it costs to load, without a clock."""

    def version(self) -> str:
        """A string that changes when a sample does, as far as can be seen without reading it."""
