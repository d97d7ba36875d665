"""Groups images without labels by their colours: something to learn, where nobody says what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

MADE_UP_CLASSES = 4
_SIDE, _ROUNDS = 4, 20


def group_by_colour(paths: Sequence[Path]) -> list[int]:
    """The group of each image, −1 for what is none: k-means (Lloyd, 1982) on thumbnails of 4 × 4 pixels."""
    thumbnails = [_thumbnail(path) for path in paths]
    found = np.array([one for one in thumbnails if one is not None], dtype=np.float32)
    if len(found) < MADE_UP_CLASSES:
        return [-1] * len(paths)
    by_light = np.argsort(found.mean(axis=1), kind="stable")
    centres = found[by_light[np.linspace(0, len(found) - 1, MADE_UP_CLASSES).astype(int)]]
    for _ in range(_ROUNDS):
        groups = ((found[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        for number in range(MADE_UP_CLASSES):
            if (groups == number).any():
                centres[number] = found[groups == number].mean(axis=0)
    labels = iter(groups.tolist())
    return [-1 if one is None else next(labels) for one in thumbnails]


def _thumbnail(path: Path) -> np.ndarray | None:
    try:
        with Image.open(path) as image:
            image.draft("RGB", (64, 64))
            return np.asarray(image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)).ravel()
    except (OSError, ValueError):  # not an image, or a broken one
        return None
