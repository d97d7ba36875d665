"""Flips: RandomHorizontalFlip and RandomVerticalFlip."""

from __future__ import annotations

import cv2

from rekindle.prepare.image_step import ChanceStep
from rekindle.prepare.step import Image


class RandomHorizontalFlip(ChanceStep):
    """The image, left and right exchanged with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def change(self, image: Image) -> Image:
        return cv2.flip(image, 1)  # type: ignore[return-value]


class RandomVerticalFlip(ChanceStep):
    """The image, top and bottom exchanged with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def change(self, image: Image) -> Image:
        return cv2.flip(image, 0)  # type: ignore[return-value]
