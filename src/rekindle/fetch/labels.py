"""Labels of files from a CSV or JSON file, or from a mapping."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import DataError

LABEL_FILES = ("labels.csv", "labels.json")
Labels = Mapping[str, int | str]
_MOST_CLASSES = 10_000_000


def read_labels(path: Path) -> Labels:
    """The label of each file name.

    CSV: a file name and a label a line, with or without a line of headings. JSON: an object of names and
    labels, a list of pairs, or an object whose "labels" is one of these.
    """
    try:
        return parse_labels(path, path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read the labels {str(path)!r}: {error.strerror}") from error


def parse_labels(path: Path, content: bytes) -> Labels:
    """The label of each file name, from the content of the file that the path names."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the labels {str(path)!r} are not UTF-8 text: {error.reason}") from error
    if path.suffix.lower() == ".json":
        pairs = _from_json(path, text)
    elif path.suffix.lower() in (".csv", ".tsv"):
        pairs = _from_csv(path, text)
    else:
        raise DataError(f"labels come from a .csv or .json file, but got {str(path)!r}")
    labels: dict[str, int | str] = {}
    for name, label in pairs:
        if name in labels and labels[name] != label:
            raise DataError(f"{str(path)!r} labels {name!r} twice: {labels[name]!r} and {label!r}")
        labels[name] = label
    return labels


def _from_csv(path: Path, text: str) -> list[tuple[str, int | str]]:
    rows = [
        row for row in csv.reader(text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ",") if row
    ]
    for number, row in enumerate(rows, 1):
        if len(row) < 2:
            raise DataError(
                f"{str(path)!r}, entry {number}: expected a file name and a label, but got {row!r}"
            )
    if rows and "." not in rows[0][0]:  # Headings: no file name is without an extension.
        rows = rows[1:]
    names, labels = [row[0].strip() for row in rows], [row[1].strip() for row in rows]
    if all(label.isdecimal() for label in labels):
        return list(zip(names, map(int, labels), strict=True))
    return list(zip(names, labels, strict=True))


def _from_json(path: Path, text: str) -> list[tuple[str, int | str]]:
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        raise DataError(f"{str(path)!r} is not JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("labels"), dict | list):
        content = content["labels"]
    pairs = list(content.items()) if isinstance(content, dict) else content
    if not isinstance(pairs, list):
        raise DataError(
            f"{str(path)!r}: expected an object or a list of pairs, but got {type(content).__name__}"
        )
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise DataError(f"{str(path)!r}: expected [file name, label], but got {pair!r}")
        if isinstance(pair[1], bool) or not isinstance(pair[1], int | str):
            raise DataError(f"{str(path)!r}: a label is a whole number or a name, but got {pair[1]!r}")
    return [(name, label) for name, label in pairs]


def numbered(labels: Sequence[int | str], where: str) -> tuple[list[str], NDArray[np.int64]]:
    """Classes and their numbers: whole numbers are taken as they are, names numbered in sorted order."""
    if all(isinstance(label, int) for label in labels):
        numbers = [int(label) for label in labels]
        least = min(numbers, default=0)
        if least < 0:
            raise DataError(f"{where!r}: a label is negative, {least}. Number classes from 0.")
        return names_of_numbers(max(numbers, default=-1), where), np.array(numbers, dtype=np.int64)
    classes = sorted({str(label) for label in labels})
    number_of = {name: number for number, name in enumerate(classes)}
    return classes, np.array([number_of[str(label)] for label in labels], dtype=np.int64)


def names_of_numbers(most: int, where: str) -> list[str]:
    """The names of classes that have only numbers, up to this one; DataError if these are too large."""
    if most >= _MOST_CLASSES:
        raise DataError(
            f"{where!r}: a label is {most}, too large for the number of a class. Number classes from 0, or "
            f"make names of such labels, as in 'class {most}'."
        )
    return [str(number) for number in range(most + 1)]
