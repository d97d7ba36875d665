"""Patterns of shard names: `train-*.tfrecord`, `shards/{000..127}.tar`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

from rekindle.errors import ArgumentError, DataError, DataNotFoundError
from rekindle.fetch.remote.redact import text_without_secrets

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})")
_MAX_FILES = 1_000_000


def expand(path: str) -> list[str]:
    """The files that a path with braces or wildcards matches, in order; the path itself if it has none.

    >>> expand("shards/{008..010}.tar")
    ['shards/008.tar', 'shards/009.tar', 'shards/010.tar']
    """
    found: list[str] = []
    for name in [path] if os.path.exists(path) else expand_braces(path):
        if not glob.has_magic(name) or os.path.exists(name):
            found.append(name)
            continue
        matching = sorted(one for one in glob.glob(name) if not one.endswith((".rkindex", ".part")))
        if not matching:
            raise DataNotFoundError(
                f"no file matches {name!r}. Give the path of a folder or of packed files."
            )
        check_complete(matching)
        found += matching
    return found


def is_pattern(path: str) -> bool:
    """Whether a path is a pattern rather than a file or folder."""
    return not os.path.exists(path) and (glob.has_magic(path) or _BRACES.search(path) is not None)


def check_complete(names: Sequence[str]) -> None:
    """Raise DataError if numbered shards (`-00001-of-00008`) are not one complete set."""
    found: dict[tuple[str, str], dict[int, set[int]]] = {}
    for name in names:
        numbered = _NUMBERED.search(name)
        if numbered is not None:
            group = name[: numbered.start()], name[numbered.end() :]
            found.setdefault(group, {}).setdefault(int(numbered[2]), set()).add(int(numbered[1]))
    for (before, after), sets in found.items():
        counts = [
            f"{len(numbers):,} of {total:,} shards {before}-*-of-{total:05}{after}"
            for total, numbers in sorted(sets.items())
        ]
        if len(sets) > 1:
            raise DataError(
                f"{' and '.join(counts)} exist: two packs of the same name. Delete one, or give a "
                "pattern that matches only the other."
            )
        if any(len(numbers) != total for total, numbers in sets.items()):
            raise DataError(
                f"{counts[0]} exist. A copy or a pack was interrupted: finish it, or name the "
                "files that you want with braces."
            )


def expand_braces(path: str) -> list[str]:
    """The names that a name with braces stands for; the name itself if it has none."""
    pending, found = [path], []
    while pending:
        name = pending.pop(0)
        braces = _BRACES.search(name)
        if braces is None:
            found.append(name)
            continue
        before, after = name[: braces.start()], name[braces.end() :]
        choices = _choices(braces[1], path)
        if len(choices) * (len(pending) + 1) > _MAX_FILES:
            raise ArgumentError(f"{text_without_secrets(path)!r} stands for more than {_MAX_FILES:,} files.")
        pending = [*(before + choice + after for choice in choices), *pending]
    return found


def _choices(inside: str, path: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if abs(last - first) >= _MAX_FILES:
        raise ArgumentError(f"{text_without_secrets(path)!r} stands for more than {_MAX_FILES:,} files.")
    padded = any(text.startswith("0") and len(text) > 1 for text in numbers.groups())
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}}" for number in range(first, last + step, step)]
