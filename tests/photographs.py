"""Photographs for tests: real ones where the sample of ImageNet is at hand, made ones otherwise."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Photographs to test with, if there are any: in the archive that the variable names, or beside the project.
BESIDE = Path(__file__).parents[2] / "shared" / "data" / "imagenet-sample.tar"
SAMPLE = Path(os.environ.get("REKINDLE_IMAGENET_SAMPLE", BESIDE))


@cache
def photographs(count: int = 8) -> tuple[NDArray[np.uint8], ...]:
    """Some RGB images of different sizes."""
    if not SAMPLE.exists():
        return tuple(_made(seed) for seed in range(count))
    images: list[NDArray[np.uint8]] = []
    with tarfile.open(SAMPLE) as tar:
        for number, member in enumerate(tar):
            if number % 9 == 0 and member.isfile():
                file = tar.extractfile(member)
                assert file is not None
                images.append(np.array(Image.open(io.BytesIO(file.read())).convert("RGB")))
            if len(images) == count:
                break
    return tuple(images)


def image_folder(
    folder: Path, count: int, *, height: int = 90, width: int = 100, endings: Sequence[str] = ("jpg",)
) -> Path:
    """Files of three classes, cut out of photographs, whose names end in turn in these."""
    for number in range(count):
        photograph = photographs()[number % 8][:height, number : number + width]
        kind = folder / f"class-{number % 3}"
        kind.mkdir(exist_ok=True)
        name = f"{number:03}.{endings[number % len(endings)]}"
        Image.fromarray(np.ascontiguousarray(photograph)).save(kind / name)
    return folder


def with_truncated_files(root: Path, target: Path, *names: str) -> Path:
    """A copy of a folder of classes in which files of these names are cut off in the middle."""
    for source in root.glob("*/*.*"):
        copy = target / source.relative_to(root)
        copy.parent.mkdir(exist_ok=True)
        data = source.read_bytes()
        copy.write_bytes(data[: len(data) // 2] if source.name in names else data)
    return target


def _made(seed: int) -> NDArray[np.uint8]:
    """Noise with the spectrum of photographs (amplitude 1/frequency), objects with edges, some grain."""
    random = np.random.default_rng(seed)
    height, width = random.integers(200, 520, 2)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]) + 1 / 500
    planes = [
        np.fft.ifft2(np.fft.fft2(random.normal(size=(height, width))) / frequency**1.2).real for _ in range(3)
    ]
    image = np.dstack(planes) @ np.array([[1.0, 0.8, 0.6], [0.2, 0.4, 0.3], [0.1, -0.2, 0.4]])
    image = 110 + 55 * (image - image.mean()) / image.std()
    for _ in range(6):
        centre = (int(random.integers(width)), int(random.integers(height)))
        axes = (int(random.integers(10, 90)), int(random.integers(10, 90)))
        mask = cv2.ellipse(np.zeros((height, width), np.uint8), centre, axes, 30, 0, 360, 1, -1)
        image = np.where(mask[..., None] > 0, image * 0.6 + random.uniform(0, 120, 3), image)
    return np.clip(image + random.normal(size=image.shape) * 3, 0, 255).astype(np.uint8)
