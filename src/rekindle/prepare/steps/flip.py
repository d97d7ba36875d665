"""Flips: RandomHorizontalFlip and RandomVerticalFlip."""

from __future__ import annotations

from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps.image_step import ChanceStep
from rekindle.prepare.steps.step import Image


class RandomHorizontalFlip(ChanceStep):
    """Flip left and right with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def change(self, image: Image) -> Image:
        return cv2.flip(image, 1)  # type: ignore[return-value]


class RandomVerticalFlip(ChanceStep):
    """Flip top and bottom with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def change(self, image: Image) -> Image:
        return cv2.flip(image, 0)  # type: ignore[return-value]
