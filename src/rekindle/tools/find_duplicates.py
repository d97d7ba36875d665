"""`rekindle.find_redundancy`: groups of near-duplicate images."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from contextlib import closing
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from rekindle.choose import Group, Member, RedundantGroups
from rekindle.choose.duplicates.search import near_each_other
from rekindle.core.available_cores import available_cores
from rekindle.core.given_numbers import integer_of, number_of
from rekindle.core.progress import progress_bar
from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError, DataError, MissingPackageError
from rekindle.loader.dataloader import DataLoader
from rekindle.prepare.image_dataset import ImageDataset
from rekindle.tools.rgb_dataset import MapDataset, RgbDataset

_SIDE = 16  # of the hash: 256 bits
_BITS = _SIDE**2
THRESHOLD = 40  # bits; docs/near-duplicates.md says how it was chosen
_BATCH_SIZE = 256
_OWN_ERROR = re.compile(r"^rekindle\.errors\.\w+: ")  # What follows says all that the class does.
_TRIED = 8  # images that are read before all the work begins

Embed: TypeAlias = Callable[[list[NDArray[np.uint8]]], ArrayLike | torch.Tensor]


def find_redundancy(
    dataset: MapDataset,
    *,
    threshold: float | None = None,
    embed: Embed | None = None,
    metric: Literal["cosine", "l2"] = "cosine",
    workers: int | None = None,
    quiet: bool = False,
) -> RedundantGroups:
    """Groups of near-duplicates: images of one label, close to the first of their group.

    Needs `pip install 'rekindle[dedupe]'`.

    Args:
        dataset: A dataset of `rekindle.open` or an `ArrayImages` (transforms do not matter here), or any
            map-style dataset whose items are images (Pillow, arrays, tensors), alone or with a label.
        threshold: How far apart a pair may be. For perceptual hashes (256 bits, of the lowest frequencies of
            brightness) the number of bits that differ, 40 by default; with `embed`, a distance.
        embed: A function that returns a vector for each of a list of images (height × width × 3 bytes);
            called in this process, with 256 images at a time. None uses perceptual hashes.
        metric: With `embed`: "cosine" (1 minus the cosine) or "l2" (the Euclidean distance).
        workers: How many processes read and hash; one a core by default.
        quiet: Whether to hide the progress bar, which is shown on a terminal only.

    Returns:
        The groups. Images that cannot be read are in none of them: `unreadable` lists which, and why.

    Example:
        >>> import numpy as np
        >>> import rekindle as rk
        >>> images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
        >>> images[2] = images[0] // 2 + 64  # the first image with less contrast
        >>> [group.ids for group in rk.find_redundancy(rk.ArrayImages(images, [0, 0, 0])).groups]
        [[0, 2]]

    """
    threshold = _checked(threshold, embed, metric)
    _require("faiss", *(["imagehash"] if embed is None else []))
    images = RgbDataset(dataset)
    _try_some(images)
    hashed_or_images: Dataset[Sample] = images if embed is not None else _Hashed(images)
    loader = DataLoader(
        hashed_or_images,
        batch_size=_BATCH_SIZE,
        num_workers=_processes(workers, len(images)),
        collate_fn=None if embed is None else list,
        seed=0,
        on_error="skip",
        error_budget=1,
    )
    ids, vectors, labels = _vectors(loader, len(images), embed, quiet)
    groups = []
    for near in near_each_other(vectors, labels, threshold, "bits" if embed is None else metric):
        label = int(labels[near.rows[0]])
        members = tuple(
            Member(int(ids[row]), images.path(int(ids[row])), float(distance) if embed else int(distance))
            for row, distance in zip(near.rows, near.distances, strict=True)
        )
        groups.append(Group(members, label, images.class_name(label)))
    found_by = {"measure": "different bits of phash" if embed is None else metric, "threshold": threshold}
    unreadable = tuple(
        f"sample {bad.id}: {_OWN_ERROR.sub('', bad.reason)}" for bad in loader.report().bad_samples
    )
    return RedundantGroups(len(images), tuple(groups), found_by, _name_of(dataset), unreadable)


class _Hashed(Dataset[tuple[NDArray[np.uint8], int]]):
    """The perceptual hashes of images, in place of the images."""

    def __init__(self, images: RgbDataset) -> None:
        self._images = images
        self.will_need = images.will_need

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        import imagehash
        from PIL import Image

        pixels, label = self._images[index]
        # A factor of 2, so that images as small as 32 × 32 are not enlarged.
        bits = imagehash.phash(Image.fromarray(pixels), hash_size=_SIDE, highfreq_factor=2).hash
        return np.packbits(bits), label


def _checked(threshold: float | None, embed: object, metric: str) -> float:
    if embed is None:
        bits = integer_of(THRESHOLD if threshold is None else threshold)
        if bits is None or not 0 <= bits < _BITS:
            raise ArgumentError(
                f"threshold must be a number of bits, 0 to {_BITS - 1}, but got {threshold!r}"
            )
        return bits
    if not callable(embed):
        raise ArgumentError(f"embed must be a function of a list of images, but got {embed!r}")
    if metric not in ("cosine", "l2"):
        raise ArgumentError(f"metric must be 'cosine' or 'l2', but got {metric!r}")
    distance = number_of(threshold)
    if distance is None or not 0 <= distance < np.inf:
        raise ArgumentError(
            f"threshold is {threshold!r}. With embed=, give a distance: which one depends on the embedding."
        )
    return distance


def _require(*libraries: str) -> None:
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"near-duplicates are found with {', '.join(libraries)}, but {missing[0]} is not installed. "
            "Run: pip install 'rekindle[dedupe]'"
        )


def _try_some(images: RgbDataset) -> None:
    """DataError if there are no images, or if none of the first can be read: not after hours of work."""
    if not len(images):
        raise DataError("the dataset has no samples to compare")
    reasons = []
    for index in range(min(len(images), _TRIED)):
        try:
            images[index]
            return
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}")
    raise DataError(f"none of the first {len(reasons)} samples can be compared. Sample 0: {reasons[0]}")


def _processes(workers: int | None, size: int) -> int:
    """How many processes to start; none for work that takes less time than starting them."""
    wanted = available_cores() if workers is None else integer_of(workers)
    if wanted is None or wanted < 0:
        raise ArgumentError(f"workers must be a number of processes, but got {workers!r}")
    return wanted if size > 4 * _BATCH_SIZE else 0


def _vectors(
    loader: DataLoader[Sample], size: int, embed: Embed | None, quiet: bool
) -> tuple[NDArray[np.int64], NDArray[np.uint8] | NDArray[np.float32], NDArray[np.int64]]:
    """Ids, hashes or embeddings, and labels of all images that can be read."""
    ids, vectors, labels = [], [], []
    with closing(loader), progress_bar("reading images", size, quiet) as progress:
        for batch in loader:
            if embed is None:
                vectors.append(batch[0].numpy().copy())
                labels.append(batch[1].numpy().copy())
            else:
                vectors.append(_embedded(embed, [image for image, _ in batch]))
                labels.append(np.array([label for _, label in batch], dtype=np.int64))
            ids.append(loader.batch.ids.numpy())
            progress(len(ids[-1]), 0)
    return np.concatenate(ids), np.concatenate(vectors), np.concatenate(labels)


def _embedded(embed: Embed, images: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """The user's embeddings of some images; ArgumentError if there is not one for each."""
    given = embed(images)
    rows = np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(images) or not rows.shape[1]:
        raise ArgumentError(
            f"embed returned an array of shape {rows.shape} for {len(images)} images, not a row for each"
        )
    if not np.isfinite(rows).all():
        raise ArgumentError("embed returned numbers that are not finite")
    return rows


def _name_of(dataset: MapDataset) -> str:
    """What was searched, for people to read."""
    if isinstance(dataset, ImageDataset):
        return os.fspath(dataset.source.root)
    return type(dataset).__name__
