"""Files that people write and read: groups of near-duplicates, and labels."""

import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from rekindle.choose.duplicates.groups_file import Group, Member, RedundantGroups
from rekindle.errors import RekindleError
from rekindle.fetch.labels import number_classes, parse_labels

_FEW = 10**6  # samples


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def check_groups(data: bytes) -> None:
    path = Path(_folder().name) / "groups.json"
    path.write_bytes(data)
    with suppress(RekindleError):
        found = RedundantGroups.load(path)
        assert found.copies < max(1, found.samples)
        if found.size < _FEW:
            assert (found.numbers() >= 0).sum() == found.samples
        found.save(path)
        again = RedundantGroups.load(path)
        assert repr(again.groups) == repr(found.groups)  # NaN is not equal to itself.


def groups() -> list[bytes]:
    path = Path(_folder().name) / "seed.json"
    pair = Group((Member(0, "a.png", 0.5), Member(2, "\udc80é", None)), 1, "cat")
    RedundantGroups(
        5, (pair, Group((Member(3), Member(4)))), {"measure": "phash"}, "data", ("1: broken",)
    ).save(path)
    return [path.read_bytes(), b'{"format": "rekindle redundancy", "version": 1}']


def _check_labels(name: str, data: bytes) -> None:
    with suppress(RekindleError):
        found = parse_labels(Path(name), data)
        classes, numbers = number_classes(list(found.values()), name)
        assert len(numbers) == len(found)
        assert not len(numbers) or 0 <= numbers.min() <= numbers.max() < len(classes)


def check_labels_csv(data: bytes) -> None:
    _check_labels("labels.csv", data)
    _check_labels("labels.tsv", data)


def labels_csv() -> list[bytes]:
    return [
        b"name,label\na.png,0\nb.png,1\n",
        b'"a,1.png",cat\n"b""2.png","dog"\n',
        b"a.png\t3\r\nb.png\t4",
        b"\xef\xbb\xbfa.png,7",
    ]


def check_labels_json(data: bytes) -> None:
    _check_labels("labels.json", data)


def labels_json() -> list[bytes]:
    return [
        b'{"a.png": 0, "b.png": 1}',
        b'{"labels": [["a.png", 5], ["b.png", 2]]}',
        b'[["a.png", "cat"]]',
        b'"\\ud800"',
    ]
