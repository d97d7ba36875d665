"""Packed files for tests: the same few samples in every format, as our writers write them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photographs import photographs
from rekindle.fetch import writer_for

ENDINGS = ("h5", "tfrecord", "tar", "lmdb")
CLASSES = ["cat", "dog", "owl"]


def jpegs(count: int, height: int = 90, width: int = 120) -> list[bytes]:
    """Encoded images, all different."""
    found = []
    for number in range(count):
        buffer = io.BytesIO()
        pixels = photographs()[number % 8][number : number + height, number : number + width]
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return found


def pack(path: Path, samples: list[bytes | NDArray[np.uint8]], classes: list[str] | None = None) -> Path:
    """The samples, labelled 0, 1, 2, 0, …, in the format that the name ends in."""
    writer = writer_for(path, classes)
    for number, data in enumerate(samples):
        writer.add(f"photos/{number:04}", data, number % len(CLASSES))
    writer.close()
    return path
