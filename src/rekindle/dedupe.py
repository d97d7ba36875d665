"""Finds samples that are nearly the same: `find_redundancy`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from rekindle.choose import Group, Member, RedundantGroups
from rekindle.choose.neighbours import near_each_other
from rekindle.errors import ArgumentError, DataError
from rekindle.loader import DataLoader
from rekindle.pictures import Pictures
from rekindle.progress_bar import progress_bar

_SIDE = 16  # of the hash: 256 bits
_BITS = _SIDE**2
THRESHOLD = 40  # bits; docs/redundancy.md says how it was chosen
_TOGETHER = 256  # images
_TRIED = 8  # images that are looked at before all the work begins


def find_redundancy(
    dataset: Any,
    *,
    threshold: float | None = None,
    embed: Callable[[list[NDArray[np.uint8]]], Any] | None = None,
    metric: Literal["cosine", "l2"] = "cosine",
    workers: int | None = None,
    quiet: bool = False,
) -> RedundantGroups:
    """The groups of near-copies among images: images of one label, near the first of their group.

    Args:
        dataset: Of `rekindle.open` or `ArrayImages` (whose transforms do not matter here), or any map-style
            data set whose items are images (Pillow, arrays, tensors), alone or with a label.
        threshold: How far apart a pair may be. Of perceptual hashes (256 bits, of the lowest frequencies of
            brightness) the number of bits that differ, by default 40; with `embed`, a distance.
        embed: A function of a list of images (height × width × 3 bytes) that gives a row of numbers for each;
            called in this process, 256 images at a time. None takes perceptual hashes.
        metric: With `embed`: "cosine" (1 minus the cosine) or "l2" (the Euclidean distance).
        workers: Processes that read and hash; by default one for each core.
        quiet: No progress bar. There is none either where the output is no terminal.

    Images that cannot be read are in no group; `unreadable` says which, and why. Needs `pip install
    'rekindle[dedupe]'`.

    """
    threshold = _checked(threshold, embed, metric)
    _require("faiss", *(["imagehash"] if embed is None else []))
    pictures = Pictures(dataset)
    _try_some(pictures)
    looked_at: Dataset[Any] = pictures if embed is not None else _Hashed(pictures)
    loader = DataLoader(
        looked_at,
        batch_size=_TOGETHER,
        num_workers=_processes(workers, len(pictures)),
        collate_fn=None if embed is None else list,
        seed=0,
        on_error="skip",
        error_budget=1,
    )
    ids, vectors, labels = _looked_at(loader, embed, quiet)
    measure: Any = "bits" if embed is None else metric
    groups = []
    for near in near_each_other(vectors, labels, threshold, measure):
        label = int(labels[near.rows[0]])
        members = tuple(
            Member(int(ids[row]), pictures.path(int(ids[row])), float(distance) if embed else int(distance))
            for row, distance in zip(near.rows, near.distances, strict=True)
        )
        groups.append(Group(members, label, pictures.class_name(label)))
    found_by = {"measure": "different bits of phash" if embed is None else metric, "threshold": threshold}
    unreadable = tuple(f"sample {bad.id}: {bad.reason}" for bad in loader.report().bad_samples)
    return RedundantGroups(len(pictures), tuple(groups), found_by, _name_of(dataset), unreadable)


class _Hashed(Dataset[tuple[NDArray[np.uint8], int]]):
    """The perceptual hashes of images, in place of the images."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures
        self.will_need = pictures.will_need

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        import imagehash
        from PIL import Image

        pixels, label = self._pictures[index]
        # A factor of 2: images as small as 32 × 32 need not be enlarged.
        bits = imagehash.phash(Image.fromarray(pixels), hash_size=_SIDE, highfreq_factor=2).hash
        return np.packbits(bits), label


def _checked(threshold: float | None, embed: Any, metric: str) -> float:
    if embed is None:
        bits = THRESHOLD if threshold is None else threshold
        if type(bits) is not int or not 0 <= bits < _BITS:
            raise ArgumentError(f"threshold is a number of bits from 0 to {_BITS - 1}, but got {threshold!r}")
        return bits
    if not callable(embed):
        raise ArgumentError(f"embed is a function of a list of images, but got {embed!r}")
    if metric not in ("cosine", "l2"):
        raise ArgumentError(f"metric must be 'cosine' or 'l2', but got {metric!r}")
    if not isinstance(threshold, int | float) or not 0 <= threshold < np.inf:
        raise ArgumentError(
            f"threshold is {threshold!r}. With embed=, give a distance: which one depends on the embedding."
        )
    return threshold


def _require(*libraries: str) -> None:
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(
            f"near-copies are found with {', '.join(libraries)}, but {missing[0]} is not installed. "
            "Run: pip install 'rekindle[dedupe]'"
        )


def _try_some(pictures: Pictures) -> None:
    """DataError if there are no images, or if none of the first can be read: not after hours of work."""
    if not len(pictures):
        raise DataError("there are no samples, so nothing to compare")
    reasons = []
    for index in range(min(len(pictures), _TRIED)):
        try:
            pictures[index]
            return
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}")
    raise DataError(f"none of the first {len(reasons)} samples can be compared. Sample 0: {reasons[0]}")


def _processes(workers: int | None, size: int) -> int:
    """How many processes; none for what is done sooner than they are started."""
    if workers is not None and (type(workers) is not int or workers < 0):
        raise ArgumentError(f"workers is a number of processes, but got {workers!r}")
    wanted = len(os.sched_getaffinity(0)) if workers is None else workers
    return wanted if size > 4 * _TOGETHER else 0


def _looked_at(
    loader: DataLoader[Any], embed: Callable[[Any], Any] | None, quiet: bool
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]:
    """Ids, hashes or embeddings, and labels of all images that can be read."""
    ids, vectors, labels = [], [], []
    size = len(loader.dataset)  # type: ignore[arg-type]
    with closing(loader), progress_bar("looking at images", size, quiet) as told:
        for batch in loader:
            if embed is None:
                vectors.append(batch[0].numpy().copy())
                labels.append(batch[1].numpy().copy())
            else:
                vectors.append(_embedded(embed, [image for image, _ in batch]))
                labels.append(np.array([label for _, label in batch], dtype=np.int64))
            ids.append(loader.batch.ids.numpy())
            told(len(ids[-1]), 0)
    return np.concatenate(ids), np.concatenate(vectors), np.concatenate(labels)


def _embedded(embed: Callable[[Any], Any], images: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """What the user's function gives for some images; ArgumentError if that is no row for each."""
    given = embed(images)
    rows = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(images) or not rows.shape[1]:
        raise ArgumentError(
            f"embed gave an array of {rows.shape} for {len(images)} images, not a row for each"
        )
    if not np.isfinite(rows).all():
        raise ArgumentError("embed gave numbers that are not finite")
    return rows


def _name_of(dataset: Any) -> str:
    """What was searched, for people to read."""
    root = getattr(getattr(dataset, "source", None), "root", None)
    return type(dataset).__name__ if root is None else os.fspath(root)
