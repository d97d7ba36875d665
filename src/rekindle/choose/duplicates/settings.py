"""What users ask for near-duplicates."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rekindle.choose.duplicates.groups_file import RedundantGroups
from rekindle.errors import ArgumentError

_NO_BOUND = 2**62  # until it is known how many samples there are
Mode = Literal["remove", "replace"]


@dataclass(frozen=True)
class Redundancy:
    """What to do with near-duplicates: `DataLoader(redundancy=Redundancy(…))`.

    Args:
        groups: What `find_redundancy` returned, or the file that `rekindle dedupe --out` wrote; or lists of
            indices.
        mode: "remove": an epoch has one sample of each group, and `len(loader)` follows. The members take
            turns, epoch by epoch. "replace" (with `reuse=Refurbish(…)`): an epoch has all samples, but only
            one member of a group is computed, and is substituted for the others with views of its own. When
            it has been used in as many epochs as `Refurbish` allows, the next member has its turn. For slow
            storage.
        correct: "remove" only: the sample that remains has the weight of its whole group (of those that
            `importance=` chose). In "replace" every group has the weight it had anyway.

    >>> Redundancy([[0, 3], [1, 2, 5]]).mode
    'remove'

    """

    groups: str | os.PathLike[str] | RedundantGroups | Sequence[Sequence[int]]
    mode: Mode = "remove"
    correct: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("remove", "replace"):
            raise ArgumentError(f"mode must be 'remove' or 'replace', but got {self.mode!r}")
        if not isinstance(self.correct, bool):
            raise ArgumentError(f"correct must be True or False, but got {self.correct!r}")
        if isinstance(self.groups, str | os.PathLike):
            object.__setattr__(self, "groups", RedundantGroups.load(self.groups))
        elif not isinstance(self.groups, RedundantGroups):
            RedundantGroups.of(self.groups, _NO_BOUND)

    def groups_of(self, size: int) -> RedundantGroups:
        """The groups of a dataset of `size` samples; ArgumentError if they belong to another one."""
        groups = self.groups
        assert not isinstance(groups, str | os.PathLike)  # loaded by __post_init__
        if not isinstance(groups, RedundantGroups):
            return RedundantGroups.of(groups, size)
        if groups.size != size:
            raise ArgumentError(
                f"redundancy: the groups are of a dataset of {groups.size} samples, this one has {size}. "
                "Run `rekindle dedupe` on this dataset."
            )
        return groups

    def identity(self, size: int) -> str:
        """What a checkpoint must agree with."""
        members = np.concatenate([[-1, *group.ids] for group in self.groups_of(size).groups] or [[]])
        checksum = zlib.crc32(members.astype("<i8").tobytes())
        return f"{self.mode} {checksum:08x}{' corrected' if self.correct else ''}"
