"""Labels of files from a CSV or JSON file, or from a mapping."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.core.json_input import parse_json
from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import DataError
from rekindle.fetch.regular_file import unreadable

_MAX_DIGITS = 1000  # of a label that is a number; Python itself converts no more than 4,300
_EXTENSIONS = (".csv", ".tsv", ".json")
LABEL_FILES = ("labels.csv", "labels.json")
Labels = Mapping[str, int | str]


def read_labels(path: Path) -> Labels:
    """The label of each file name.

    CSV: a file name and a label a line, with or without a header line. JSON: an object of names and
    labels, a list of pairs, or an object whose "labels" is one of these.
    """
    _check_is_label_file(path)
    try:
        return parse_labels(path, path.read_bytes())
    except OSError as error:
        raise unreadable(
            f"cannot read the labels {str(path)!r}: {error.strerror}. labels= takes the path of a .csv, .tsv "
            "or .json file, from here or from the dataset's folder, or a mapping of file names to labels.",
            error,
        ) from error


def parse_labels(path: Path, content: bytes) -> Labels:
    """The label of each file name, from the content of the file that the path names."""
    _check_is_label_file(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the labels {str(path)!r} are not UTF-8 text: {error.reason}") from error
    pairs = _from_json(path, text) if path.suffix.lower() == ".json" else _from_csv(path, text)
    labels: dict[str, int | str] = {}
    for name, label in pairs:
        if name in labels and labels[name] != label:
            raise DataError(
                f"{str(path)!r} labels {name!r:.200} twice: {labels[name]!r:.80} and {label!r:.80}"
            )
        labels[name] = label
    return labels


def _check_is_label_file(path: Path) -> None:
    if path.suffix.lower() not in _EXTENSIONS:
        raise DataError(f"labels come from a .csv, .tsv or .json file, but got {str(path)!r}")


def _from_csv(path: Path, text: str) -> list[tuple[str, int | str]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        rows = [row for row in csv.reader(text.splitlines(), delimiter=delimiter) if row]
    except csv.Error as error:
        raise DataError(f"{str(path)!r} is not a table of names and labels: {error}") from error
    for number, row in enumerate(rows, 1):
        if len(row) < 2:
            raise DataError(
                f"{str(path)!r}, entry {number}: expected a file name and a label, but got {row!r:.200}"
            )
    if rows and "." not in rows[0][0]:  # A header: every file name has an extension.
        rows = rows[1:]
    names, labels = [row[0].strip() for row in rows], [row[1].strip() for row in rows]
    if all(label.isdecimal() for label in labels):
        longest = max(labels, key=len, default="")
        if len(longest) > _MAX_DIGITS:
            raise DataError(f"{str(path)!r}: {longest[:20]}… has {len(longest):,} digits: no class number.")
        return list(zip(names, map(int, labels), strict=True))
    return list(zip(names, labels, strict=True))


def _from_json(path: Path, text: str) -> list[tuple[str, int | str]]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise DataError(f"{str(path)!r} is not JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("labels"), dict | list):
        content = content["labels"]
    pairs = list(content.items()) if isinstance(content, dict) else content
    if not isinstance(pairs, list):
        raise DataError(
            f"{str(path)!r}: expected an object or a list of pairs, but got {type(content).__name__}"
        )
    labels: list[tuple[str, int | str]] = []
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise DataError(f"{str(path)!r}: expected [file name, label], but got {pair!r:.200}")
        if isinstance(pair[1], bool) or not isinstance(pair[1], int | str):
            raise DataError(f"{str(path)!r}: a label is an integer or a name, but got {pair[1]!r:.200}")
        if isinstance(pair[1], int) and abs(pair[1]) >= 10**_MAX_DIGITS:
            raise DataError(f"{str(path)!r}: the label of {pair[0]!r:.80} has too many digits.")
        labels.append((pair[0], pair[1]))
    return labels


def no_key_matches(names: Sequence[str], unlabelled: Sequence[str], labels: Labels) -> str:
    """What to say besides where no name at all has a label: the two are then named in different ways."""
    if len(unlabelled) < len(names):
        return ""
    if not labels:
        return " labels= has no entries (nothing but a header?): give one for each name."
    return (
        f" None of the {len(labels):,} names in labels= is one of these, the first is "
        f"{next(iter(labels))!r:.200}: write them as {names[0]!r:.200} is written."
    )


def number_classes(
    labels: Sequence[int | str], where: str, limits: Limits = DEFAULT_LIMITS
) -> tuple[list[str], NDArray[np.int64]]:
    """Class names and the number of each label: integers are kept, names are numbered in sorted order."""
    if all(isinstance(label, int) for label in labels):
        numbers = [int(label) for label in labels]
        least = min(numbers, default=0)
        if least < 0:
            raise DataError(f"{where!r}: label {least} is negative. Number classes from 0.")
        return classes_up_to(max(numbers, default=-1), where, limits), np.array(numbers, dtype=np.int64)
    classes = sorted({str(label) for label in labels})
    number_of = {name: number for number, name in enumerate(classes)}
    return classes, np.array([number_of[str(label)] for label in labels], dtype=np.int64)


def classes_up_to(largest: int, where: str, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """Names for classes that only have numbers, from 0 to `largest`; DataError if that is too large."""
    if largest >= limits.classes:
        raise DataError(
            f"{where!r}: label {largest} is too large for a class number, of which there may be "
            f"{limits.classes:,}. Number classes from 0, make labels names, as in 'class {largest}', or open "
            f"the dataset with limits=rekindle.Limits(classes={largest + 1})."
        )
    return [str(number) for number in range(largest + 1)]
