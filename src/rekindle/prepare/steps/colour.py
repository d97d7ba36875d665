"""Colour: brightness, contrast, saturation and hue; ColorJitter and RandomGrayscale.

The first three blend the image with another one (black, its mean grey, its grey values) as Pillow's
ImageEnhance does: each is one matrix applied to the colours of a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.image_step import ChanceStep, ImageStep
from rekindle.prepare.steps.step import Image, Uniforms, random_between, random_integer

_PARTS = (0.299, 0.587, 0.114)  # of grey: ITU-R 601-2, as Pillow converts to "L"
_GREY = np.array(_PARTS)
TRUNCATE = -0.4999  # OpenCV rounds to the nearest value, Pillow's blend truncates
_ORDERS = tuple(permutations(range(4)))

Matrix: TypeAlias = NDArray[np.float32]  # 3 × 4: a pixel's new colours from its old ones, and an offset


def brightness_matrix(factor: float) -> Matrix:
    """Colours `factor` times as bright."""
    return _scaling(factor, 0.0)


def contrast_matrix(factor: float, mean: int = 0) -> Matrix:
    """`factor` times the distance of each value from the mean grey."""
    return _scaling(factor, (1 - factor) * mean)


def saturation_matrix(factor: float) -> Matrix:
    """`factor` times the distance of each colour from its grey. For 0, use `grey`."""
    red, green, blue = ((1 - factor) * part for part in _PARTS)
    rows = [
        [factor + red, green, blue, TRUNCATE],
        [red, factor + green, blue, TRUNCATE],
        [red, green, factor + blue, TRUNCATE],
    ]
    return np.array(rows, dtype=np.float32)


def _scaling(factor: float, offset: float) -> Matrix:
    offset += TRUNCATE
    rows = [[factor, 0.0, 0.0, offset], [0.0, factor, 0.0, offset], [0.0, 0.0, factor, offset]]
    return np.array(rows, dtype=np.float32)


def hue_offset(shift: float) -> int:
    """What is added to an 8-bit hue to shift it by this fraction of a full circle."""
    return int(shift * 255) % 256


def adjust_brightness(image: Image, factor: float) -> Image:
    """The image `factor` times as bright."""
    return cv2.transform(image, brightness_matrix(factor))  # type: ignore[return-value]


def adjust_contrast(image: Image, factor: float) -> Image:
    """The image with `factor` times the distance of each value from the mean grey."""
    mean = int(float(_GREY @ cv2.mean(image)[:3]) + 0.5)
    return cv2.transform(image, contrast_matrix(factor, mean))  # type: ignore[return-value]


def adjust_saturation(image: Image, factor: float) -> Image:
    """The image with `factor` times the distance of each colour from its grey."""
    if factor == 0:
        return grey(image)
    return cv2.transform(image, saturation_matrix(factor))  # type: ignore[return-value]


def adjust_hue(image: Image, shift: float) -> Image:
    """The image with its hues shifted by this fraction of a full circle."""
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += np.uint8(hue_offset(shift))
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)  # type: ignore[return-value]


def grey(image: Image) -> Image:
    """The grey values of the image, in three equal channels."""
    return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)  # type: ignore[return-value]


_ADJUSTMENTS = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)


class ColorJitter(ImageStep):
    """Change brightness, contrast, saturation and hue by random amounts, in random order.

    One number x means factors from 1 − x to 1 + x (for `hue`: shifts from −x to x); two numbers give the
    range.
    """

    uniforms = 5
    diversity = math.inf

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
    ) -> None:
        self.brightness = _factors("brightness", brightness)
        self.contrast = _factors("contrast", contrast)
        self.saturation = _factors("saturation", saturation)
        self.hue = _hue_shifts(hue)
        if not any(self._ranges):
            self.uniforms, self.diversity = 0, 1

    @property
    def _ranges(self) -> tuple[tuple[float, float] | None, ...]:
        return self.brightness, self.contrast, self.saturation, self.hue

    def amounts(self, uniforms: Uniforms) -> list[tuple[int, float]]:
        """The adjustments in order (0 brightness, 1 contrast, 2 saturation, 3 hue), with their amounts."""
        if not self.uniforms:
            return []
        order = _ORDERS[random_integer(uniforms[0], 0, len(_ORDERS))]
        ranges = self._ranges
        return [(kind, random_between(uniforms[1 + kind], *span)) for kind in order if (span := ranges[kind])]

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        for kind, amount in self.amounts(uniforms):
            image = _ADJUSTMENTS[kind](image, amount)
        return image


class RandomGrayscale(ChanceStep):
    """Convert to grey values, in three equal channels, with probability `p`."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)

    def change(self, image: Image) -> Image:
        return grey(image)


def _factors(name: str, value: float | Sequence[float]) -> tuple[float, float] | None:
    if parameters.is_number(value):
        spread = parameters.number("ColorJitter", name, value, 0)
        value = (max(1 - spread, 0.0), 1 + spread)
    span = parameters.ordered_pair("ColorJitter", name, value, 0)
    return None if span == (1, 1) else span


def _hue_shifts(value: float | Sequence[float]) -> tuple[float, float] | None:
    if parameters.is_number(value):
        shift = parameters.number("ColorJitter", "hue", value, 0, 0.5)
        value = (-shift, shift)
    span = parameters.ordered_pair("ColorJitter", "hue", value, -0.5, 0.5)
    return None if span == (0, 0) else span
