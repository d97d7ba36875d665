"""The messages between this process and the one that HDF5's library runs in, as JSON.

A file may have made that library do anything, so what it answers is checked before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypedDict, cast

_DTYPES = re.compile(r"|[<>|][biuf][0-9]{1,2}|\|V[0-9]{1,9}")  # none, numbers, bytes of one length
READY = b'{"ready": true}\n'  # the process's first line: it has imported what it needs


class Request(TypedDict):
    """A question about one file."""

    path: str | None  # None: the other process sends the bytes
    size: int
    out: str  # where arrays are written
    seconds: float  # of CPU time
    images: str | None
    labels: str | None


class Hdf5DatasetInfo(TypedDict, total=False):
    """How a dataset is stored."""

    name: str
    kind: str  # see `_kind`
    dtype: str
    shape: list[int]
    offset: int  # if contiguous
    size: int
    chunk: list[int]  # if chunked: the shape of a chunk
    filters: list[tuple[str, int]]
    fill: float


class Answer(TypedDict, total=False):
    """What is in a file; `arrays` has the chunks of each dataset, or `ranges` of the samples."""

    unsupported: str
    corrupt: str
    base: int  # added to all addresses in the file
    images: Hdf5DatasetInfo
    labels: Hdf5DatasetInfo
    classes: list[str] | None
    keys: Hdf5DatasetInfo
    # A dataset a sample:
    names: list[str]
    shapes: list[list[int]]  # empty for encoded images
    sample_labels: list[int | str | None]


def checked_answer(given: object) -> Answer:
    """The answer; ValueError if one of its fields is unknown, or not of its type."""
    for name, value in _items(given):
        if name not in _ANSWER or not _ANSWER[name](value):
            raise ValueError(f"{name!r:.80} is {value!r:.80}")
    return cast("Answer", given)


def _items(given: object) -> list[tuple[object, object]]:
    if not isinstance(given, dict):
        raise ValueError(f"expected an object, got {given!r:.80}")
    return list(given.items())


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_dtype(value: object) -> bool:
    return isinstance(value, str) and _DTYPES.fullmatch(value) is not None


def _is_integer(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_label(value: object) -> bool:
    return value is None or _is_text(value) or _is_integer(value)


def _is_filter(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_text(value[0]) and _is_integer(value[1])


def _list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(check(one) for one in value)


def _is_dataset(value: object) -> bool:
    return isinstance(value, dict) and all(
        name in _DATASET and _DATASET[name](one) for name, one in value.items()
    )


_DATASET: dict[object, Callable[[object], bool]] = {
    "name": _is_text,
    "kind": _is_text,
    "dtype": _is_dtype,
    "shape": _list_of(_is_count),
    "offset": _is_count,
    "size": _is_count,
    "chunk": _list_of(lambda value: _is_count(value) and value != 0),
    "filters": _list_of(_is_filter),
    "fill": _is_number,
}
_ANSWER: dict[object, Callable[[object], bool]] = {
    "unsupported": _is_text,
    "corrupt": _is_text,
    "base": _is_count,
    "images": _is_dataset,
    "labels": _is_dataset,
    "classes": lambda value: value is None or _list_of(_is_text)(value),
    "keys": _is_dataset,
    "names": _list_of(_is_text),
    "shapes": _list_of(_list_of(_is_count)),
    "sample_labels": _list_of(_is_label),
}
