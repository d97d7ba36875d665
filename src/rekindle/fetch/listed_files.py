"""Files in a list of paths and labels, wherever they lie: what a dataset of another library has listed."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.folder import Folder


class ListedFiles(Folder):
    """The files of a list, in its order: `read(index)` gives the bytes of one.

    Args:
        paths: The files; relative paths start from the working directory, as with `open`.
        targets: The class number of each.
        classes: The name of each class, by its number, where they are known.
        root: The folder that the list is of, for messages.
        limits: How many bytes a file may have.

    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        targets: NDArray[np.int64],
        classes: Sequence[str] = (),
        *,
        root: str | os.PathLike[str] = "",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if len(paths) != len(targets):
            raise ValueError(f"{len(paths)} files, but {len(targets)} labels")
        self._limits = limits
        self.root = root  # type: ignore[assignment]
        self.classes = list(classes)
        self._files = BytesArray.from_list([*map(os.fsencode, paths)])
        self._targets = targets
        self._prefix = b""

    def lists_the_same(self, other: ListedFiles) -> bool:
        """Whether another list has the same paths and labels in the same order."""
        mine, others = self._files, other._files
        return (
            np.array_equal(self._targets, other._targets)
            and np.array_equal(mine.ends, others.ends)
            and np.array_equal(mine.data, others.data)
        )
