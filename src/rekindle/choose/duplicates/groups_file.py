"""Groups of near-duplicates as plain data, and as a JSON file that people can read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from rekindle.core.atomic_file import atomic_write
from rekindle.core.json_input import parse_json
from rekindle.errors import ArgumentError, DataError, DataNotFoundError

_FORMAT, _VERSION = "rekindle redundancy", 1
_MAX_SIZE = 10**11  # samples


@dataclass(frozen=True)
class Member:
    """A sample of a group.

    `distance` is to the group's first sample (of the first: to the nearest), in the measure of `found_by`.
    """

    id: int
    path: str = ""
    distance: float | None = None


@dataclass(frozen=True)
class Group:
    """Near-duplicates of each other, all with the same label (−1 if there are none)."""

    members: tuple[Member, ...]
    label: int = -1
    class_name: str = ""

    @property
    def ids(self) -> list[int]:
        """The samples' indices."""
        return [member.id for member in self.members]


@dataclass(frozen=True)
class RedundantGroups:
    """What `find_redundancy` found in a dataset of `size` samples.

    >>> groups = RedundantGroups.of([[0, 3], [1, 2, 5]], size=6)
    >>> groups
    RedundantGroups(2 groups of 5 samples, of 6)
    >>> len(groups), groups.samples, groups.copies
    (2, 5, 3)
    >>> groups.numbers().tolist()
    [0, 1, 1, 0, -1, 1]
    """

    size: int
    groups: tuple[Group, ...]
    found_by: Mapping[str, object] = field(default_factory=dict)  # the measure, and the threshold
    data: str = ""  # what was searched, for people to read
    unreadable: tuple[str, ...] = ()  # which samples could not be read, and why: they are in no group

    def __post_init__(self) -> None:
        ids = np.array([id_ for group in self.groups for id_ in group.ids], dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.size):
            raise ArgumentError(
                f"groups: ids range from {ids.min()} to {ids.max()}, but the dataset has {self.size} samples"
            )
        if len(np.unique(ids)) < len(ids):
            values, counts = np.unique(ids, return_counts=True)
            raise ArgumentError(
                f"groups: sample {values[counts > 1][0]} occurs more than once. Put it in one group."
            )
        if any(len(group.members) < 2 for group in self.groups):
            raise ArgumentError("groups: every group needs at least two members, but one has fewer")

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], size: int) -> RedundantGroups:
        """Groups given as lists of indices."""
        try:
            found = tuple(Group(tuple(Member(int(id_)) for id_ in group)) for group in groups)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"groups must be lists of indices, but got {groups!r}") from error
        return cls(size, found)

    def __len__(self) -> int:
        return len(self.groups)

    def __repr__(self) -> str:
        return f"RedundantGroups({len(self):,} groups of {self.samples:,} samples, of {self.size:,})"

    @property
    def samples(self) -> int:
        """How many samples are in groups."""
        return sum(len(group.members) for group in self.groups)

    @property
    def copies(self) -> int:
        """How many samples could be left out, which is all but one of each group."""
        return self.samples - len(self.groups)

    def numbers(self) -> NDArray[np.int64]:
        """For each sample the number of its group, −1 for none: what `Buckets(groups=…)` takes."""
        if self.size >= _MAX_SIZE:
            raise ArgumentError(
                f"groups: no dataset has {self.size:,} samples. Is the file of groups corrupt?"
            )
        numbers = np.full(self.size, -1, dtype=np.int64)
        for number, group in enumerate(self.groups):
            numbers[group.ids] = number
        return numbers

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the groups as JSON, one group per line."""
        head = {
            "format": _FORMAT, "version": _VERSION, "data": self.data, "samples": self.size,
            "found_by": self.found_by, "unreadable": self.unreadable,
        }  # fmt: skip
        lines = ",\n  ".join(json.dumps(_as_json(group), ensure_ascii=False) for group in self.groups)
        text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "groups": [\n  {lines}\n ]\n}}\n'
        with atomic_write(path) as file:
            # Paths that are not valid Unicode are escaped, which JSON can express.
            file.write(text.encode("utf-8", "backslashreplace"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RedundantGroups:
        """The groups in a file that `save` wrote; DataError if it is not one."""
        try:
            content = parse_json(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataNotFoundError(
                f"there is no {os.fspath(path)!r}. Write a file of groups with `rekindle dedupe --out`."
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(
                f"{os.fspath(path)!r}: cannot read groups of near-duplicates from it: {error}"
            ) from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(
                f"{os.fspath(path)!r} is not a file of groups, as `rekindle dedupe --out` writes them"
            )
        if content.get("version") != _VERSION:
            raise DataError(
                f"{os.fspath(path)!r} has version {content.get('version')!r} of the groups format, "
                f"expected {_VERSION}. Run `rekindle dedupe` again."
            )
        try:
            groups = tuple(_from_json(group) for group in content["groups"])
            if not isinstance(content["found_by"], dict) or not isinstance(content["unreadable"], list):
                raise ValueError("found_by is not an object, or unreadable not a list")
            return cls(
                _integer(content["samples"]),
                groups,
                content["found_by"],
                str(content["data"]),
                tuple(map(str, content["unreadable"])),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{os.fspath(path)!r}: {error!r:.500}; is it truncated or edited?") from error


class _MemberJson(TypedDict):
    id: int
    path: str
    distance: float | None


_GroupJson = TypedDict("_GroupJson", {"label": int, "class": str, "samples": list[_MemberJson]})


def _as_json(group: Group) -> _GroupJson:
    members: list[_MemberJson] = [
        {"id": one.id, "path": one.path, "distance": one.distance} for one in group.members
    ]
    return {"label": group.label, "class": group.class_name, "samples": members}


def _from_json(saved: _GroupJson) -> Group:
    members = tuple(
        Member(_integer(one["id"]), str(one["path"]), _distance(one["distance"])) for one in saved["samples"]
    )
    return Group(members, _integer(saved["label"]), str(saved["class"]))


def _integer(value: object) -> int:
    """An integer that an array can hold; ValueError if it is none."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"expected an integer of 64 bits, got {value!r:.80}")
    return value


def _distance(value: object) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"expected a distance, got {value!r:.80}")
    return None if value is None else float(value)
