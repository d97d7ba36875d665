"""What is in a source, and whether all of it can be read: `rekindle info` and `rekindle verify`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import DataError, RemoteError
from rekindle.fetch.packed import Packed
from rekindle.fetch.source import Source, copied

_LOOKED_AT = 256  # samples whose headers `describe` reads
_TOGETHER = 32  # samples a task
_MOST_NAMED = 20  # bad samples that are named one by one
_KINDS = {b"\xff\xd8": "JPEG", b"\x89P": "PNG", b"RI": "WebP", b"P6": "PPM", b"BM": "BMP"}


def describe(source: Source) -> dict[str, Any]:
    """Format, number, labels and sizes of the samples; of images, some are looked at."""
    lengths = source.lengths()
    targets = np.asarray(source.targets, dtype=np.int64)
    by_class = _samples_a_class(targets, len(source.classes))
    told: dict[str, Any] = {
        "path": os.fspath(source.root),
        "format": source.index.format if isinstance(source, Packed) else "folder",
        "files": len(source.files) if isinstance(source, Packed) else len(source),
        "samples": len(source),
        "bytes": int(lengths.sum()),
        "sample_bytes": _spread(lengths),
        "classes": len(source.classes),
        "class_names": list(source.classes[:_MOST_NAMED]),
        "samples_a_class": _spread(by_class),
        "unlabelled": int((targets < 0).sum()),
    }
    return told | _images(source)


def _samples_a_class(targets: NDArray[np.int64], classes: int) -> NDArray[np.intp]:
    """How many samples each class has; labels that no class has, however large, are classes of their own."""
    known = np.bincount(targets[(targets >= 0) & (targets < classes)], minlength=classes)
    _, others = np.unique(targets[targets >= classes], return_counts=True)
    return np.concatenate([known, others])


def _images(source: Source) -> dict[str, Any]:
    """Kinds and sizes of some images, evenly chosen."""
    from rekindle.prepare.decode import read_header

    kinds: Counter[str] = Counter()
    sides: list[tuple[int, int]] = []
    broken = 0
    chosen = np.unique(np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT)).astype(int)).tolist()
    prefetch = getattr(source, "prefetch", None)
    if prefetch is not None and chosen:
        prefetch(chosen)
    for index in chosen:
        stored = source.read(index)
        if isinstance(stored, np.ndarray):
            kinds[f"{stored.dtype} array"] += 1
            sides.append((int(stored.shape[0]), int(stored.shape[1])) if stored.ndim >= 2 else (0, 0))
            continue
        data = bytes(stored)
        kinds[_KINDS.get(data[:2], "other")] += 1
        try:
            header = read_header(data)
            sides.append((header.height, header.width))
        except DataError:
            broken += 1
    heights, widths = np.array(sides or [(0, 0)]).T
    return {
        "looked_at": len(chosen),
        "kinds": dict(kinds.most_common()),
        "unreadable": broken,
        "height": _spread(heights),
        "width": _spread(widths),
    }


def _spread(numbers: Any) -> dict[str, int]:
    if not len(numbers):
        return {"least": 0, "median": 0, "most": 0}
    return {"least": int(np.min(numbers)), "median": int(np.median(numbers)), "most": int(np.max(numbers))}


def verify(
    source: Source,
    *,
    workers: int | None = None,
    told: Callable[[int, int], None] = lambda samples, nbytes: None,
) -> dict[str, Any]:
    """Read and decode every sample and look at its label; what is wrong with which, all of it counted.

    FormatError if a file is damaged in such a way that its samples cannot be told apart.
    """
    if isinstance(source, Packed):
        source.check_files()
    bad: list[dict[str, Any]] = []
    found = 0
    for start, wrong, nbytes in _checked(source, workers or os.cpu_count() or 1):
        found += len(wrong)
        bad += [
            {"sample": index, "path": source.path(index), "reason": reason}
            for index, reason in wrong[: max(0, _MOST_NAMED - len(bad))]
        ]
        told(min(_TOGETHER, len(source) - start), nbytes)
    return {
        "path": os.fspath(source.root),
        "samples": len(source),
        "bad": found,
        "first_bad": bad,
        "ok": not found,
    }


_Checked = tuple[int, list[tuple[int, str]], int]


def _checked(source: Source, workers: int) -> Iterator[_Checked]:
    """For each run of samples its first one, what is wrong, and how many bytes were read; in order."""
    classes = len(source.classes)
    some_labelled = any(target >= 0 for target in source.targets)
    prefetch = getattr(source, "prefetch", None)
    starts = iter(range(0, len(source), _TOGETHER))

    def check(start: int) -> _Checked:
        wrong, nbytes = [], 0
        for index in range(start, min(start + _TOGETHER, len(source))):
            try:
                nbytes += _decoded(copied(source, index))
            except (DataError, RemoteError, OSError) as error:
                wrong.append((index, str(error)))
                continue
            label = source.target(index)
            if label >= classes or (label < 0 and some_labelled):
                wrong.append((index, f"the label {label} is not from 0 to {classes - 1}"))
        return start, wrong, nbytes

    with ThreadPoolExecutor(workers, thread_name_prefix="rekindle-verify") as pool:

        def submitted(start: int) -> Future[_Checked]:
            if prefetch is not None:
                prefetch(range(start, min(start + _TOGETHER, len(source))))
            return pool.submit(check, start)

        waiting = [submitted(start) for start in islice(starts, 2 * workers)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [submitted(start) for start in islice(starts, 1)]


def _decoded(stored: bytes | NDArray[Any]) -> int:
    """How many bytes a sample has; DecodeError if it is no image that can be read to its end."""
    if isinstance(stored, np.ndarray):
        return stored.nbytes
    from rekindle.prepare.decode import decode

    decode(stored)
    return len(stored)
