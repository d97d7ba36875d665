"""Images with near-duplicates among them, in every form that a dataset has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

# Image 5 is 0 made brighter, 6 is 1 with noise, 7 is 2 in other colours, but of another label; 8 is 0 again.
LABELS = [0, 0, 1, 1, 1, 0, 0, 0, 0]
GROUPS = [[0, 5, 8], [1, 6]]


def images(side: int = 48) -> NDArray[np.uint8]:
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (5, 9, 9, 3)).astype(np.uint8)
    first = [cv2.resize(image, (side, side), interpolation=cv2.INTER_CUBIC) for image in coarse]
    brighter = np.clip(first[0] * 1.1, 0, 255)
    noisy = np.clip(first[1] + random.normal(size=first[1].shape) * 2, 0, 255)
    return np.stack([*first, brighter, noisy, first[2], first[0]]).astype(np.uint8)


def folder(root: Path) -> Path:
    """The images as PNG files in two class folders: in the order of their labels."""
    for number, (pixels, label) in enumerate(zip(images(), LABELS, strict=True)):
        path = root / f"class{label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


class Foreign(torch.utils.data.Dataset[Any]):
    """The images as another library's dataset returns them."""

    def __init__(self, form: Any, transform: Any = None) -> None:
        self.form, self.transform = form, transform

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Any:
        image = self.form(images()[index])
        return (image if self.transform is None else self.transform(image)), LABELS[index]
