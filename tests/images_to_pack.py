"""A folder of images to pack, and what became of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def make_images(root: Path) -> Path:
    """150 small images in three classes: three chunks of work."""
    for number in range(150):
        path = root / f"class{number // 50}" / f"{number:03}.{'png' if number % 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number % 7, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return root


def content(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of the files of a folder."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def everything(folder: Path) -> dict[str, bytes]:
    return {k: v for path in folder.iterdir() for k, v in content(path).items()}
