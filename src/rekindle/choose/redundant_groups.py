"""Groups of samples that are nearly the same, as plain data and as a file that one can read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError, DataError

_FORMAT, _VERSION = "rekindle redundancy", 1


@dataclass(frozen=True)
class Member:
    """A sample of a group.

    `distance` is to the group's first sample (of the first: to the nearest), in what `found_by` measures.
    """

    id: int
    path: str = ""
    distance: float | None = None


@dataclass(frozen=True)
class Group:
    """Near-copies of each other, all of one label (−1 if there are none)."""

    members: tuple[Member, ...]
    label: int = -1
    class_name: str = ""

    @property
    def ids(self) -> list[int]:
        """The samples' indices."""
        return [member.id for member in self.members]


@dataclass(frozen=True)
class RedundantGroups:
    """What `find_redundancy` found in a data set of `size` samples.

    >>> groups = RedundantGroups.of([[0, 3], [1, 2, 5]], size=6)
    >>> len(groups), groups.samples, groups.copies
    (2, 5, 3)
    >>> groups.numbers().tolist()
    [0, 1, 1, 0, -1, 1]
    """

    size: int
    groups: tuple[Group, ...]
    found_by: dict[str, Any] = field(default_factory=dict)  # the measure, and the threshold
    data: str = ""  # what was searched, for people to read
    unreadable: tuple[str, ...] = ()  # which samples could not be looked at, and why: they are in no group

    def __post_init__(self) -> None:
        ids = np.array([id_ for group in self.groups for id_ in group.ids], dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.size):
            raise ArgumentError(
                f"groups of samples: ids from {ids.min()} to {ids.max()}, but there are {self.size} samples"
            )
        if len(np.unique(ids)) < len(ids):
            values, counts = np.unique(ids, return_counts=True)
            raise ArgumentError(f"groups of samples: {values[counts > 1][0]} is there more than once")
        if any(len(group.members) < 2 for group in self.groups):
            raise ArgumentError("groups of samples: one has fewer than two members")

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], size: int) -> RedundantGroups:
        """Groups given as lists of indices."""
        try:
            found = tuple(Group(tuple(Member(int(id_)) for id_ in group)) for group in groups)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"groups of samples are lists of indices, but got {groups!r}") from error
        return cls(size, found)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def samples(self) -> int:
        """How many samples are in groups."""
        return sum(len(group.members) for group in self.groups)

    @property
    def copies(self) -> int:
        """How many samples could be spared: all but one of each group."""
        return self.samples - len(self.groups)

    def numbers(self) -> NDArray[np.int64]:
        """For each sample the number of its group, −1 for none: what `Buckets(groups=…)` takes."""
        numbers = np.full(self.size, -1, dtype=np.int64)
        for number, group in enumerate(self.groups):
            numbers[group.ids] = number
        return numbers

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the groups as JSON, a group a line."""
        head = {
            "format": _FORMAT, "version": _VERSION, "data": self.data, "samples": self.size,
            "found_by": self.found_by, "unreadable": self.unreadable,
        }  # fmt: skip
        lines = ",\n  ".join(json.dumps(_as_json(group), ensure_ascii=False) for group in self.groups)
        text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "groups": [\n  {lines}\n ]\n}}\n'
        part = Path(f"{os.fspath(path)}.part")
        part.write_text(
            text, encoding="utf-8", errors="backslashreplace"
        )  # JSON's own way to write what is odd
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RedundantGroups:
        """The groups of a file; DataError if it holds none."""
        try:
            told = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{os.fspath(path)!r}: no groups of samples can be read from it: {error}"
            ) from error
        if not isinstance(told, dict) or told.get("format") != _FORMAT or told.get("version") != _VERSION:
            raise DataError(
                f"{os.fspath(path)!r} is no file of groups of version {_VERSION}, as `rekindle dedupe --out` "
                "writes them"
            )
        try:
            groups = tuple(_from_json(group) for group in told["groups"])
            return cls(
                int(told["samples"]),
                groups,
                told["found_by"],
                str(told["data"]),
                tuple(map(str, told["unreadable"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{os.fspath(path)!r}: {error!r}; was it cut short or edited?") from error


def _as_json(group: Group) -> dict[str, Any]:
    members = [{"id": one.id, "path": one.path, "distance": one.distance} for one in group.members]
    return {"label": group.label, "class": group.class_name, "samples": members}


def _from_json(told: dict[str, Any]) -> Group:
    members = tuple(Member(int(one["id"]), str(one["path"]), one["distance"]) for one in told["samples"])
    return Group(members, int(told["label"]), str(told["class"]))
