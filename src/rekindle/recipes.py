"""What becomes of an image when it is packed: kept as it is, made smaller, or stored as pixels.

Smaller images with a share of them decoded is the layout with which FFCV (Leclerc et al., CVPR'23) trades
disk for work: `Recipe(resize=400, raw_share=0.5)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError, DataError
from rekindle.fetch.source import Stored
from rekindle.fetch.writers import as_ppm

_QUALITY = 90


@dataclass(frozen=True)
class Recipe:
    """How images are stored.

    Args:
        resize: The longer side has at most so many pixels.
        quality: Of the JPEG that an image is stored as; None keeps images that need no resizing as they are.
        raw_share: This share of the images, evenly spread, is stored as pixels.

    """

    resize: int | None = None
    quality: int | None = None
    raw_share: float = 0.0

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize < 1:
            raise ArgumentError(f"--resize is a number of pixels, but got {self.resize}")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ArgumentError(f"--quality is from 1 to 100, but got {self.quality}")
        if not 0 <= self.raw_share <= 1:
            raise ArgumentError(f"--raw-share is from 0 to 1, but got {self.raw_share}")

    @property
    def is_plain(self) -> bool:
        """Whether everything is kept as it is."""
        return self == AS_IT_IS


AS_IT_IS = Recipe()


def is_raw(index: int, recipe: Recipe) -> bool:
    """Whether a sample is stored as pixels: of any run of samples, this share is, as nearly as can be.

    >>> [is_raw(index, Recipe(raw_share=0.5)) for index in range(4)]
    [False, True, False, True]
    """
    return int((index + 1) * recipe.raw_share) > int(index * recipe.raw_share)


def prepare(stored: Stored, index: int, recipe: Recipe) -> bytes:
    """A sample as it is to be stored; DecodeError if it cannot be read and has to be."""
    if recipe.is_plain:
        return as_ppm(_rgb(stored)) if isinstance(stored, np.ndarray) else bytes(stored)
    raw = is_raw(index, recipe)
    if isinstance(stored, np.ndarray):
        pixels = _rgb(stored)
        if not raw and _stays(recipe, *pixels.shape[:2]):
            return as_ppm(pixels)
    else:
        from rekindle.prepare.decode import decode_with, read_header

        data = bytes(stored)
        header = read_header(data)
        if not raw and _stays(recipe, header.height, header.width):
            return data
        pixels = decode_with(header, data)
    if recipe.resize is not None:
        pixels = _shrunk(pixels, recipe.resize)
    return as_ppm(pixels) if raw else _as_jpeg(pixels, recipe.quality or _QUALITY)


def _stays(recipe: Recipe, height: int, width: int) -> bool:
    """Whether an image of this size is stored as it is."""
    return recipe.quality is None and (recipe.resize is None or max(height, width) <= recipe.resize)


def _rgb(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels as height × width × 3 bytes; grey ones become RGB."""
    if pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 1)):
        return np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3:
        return np.ascontiguousarray(pixels)
    raise DataError(f"an array of {pixels.dtype} {pixels.shape} is no image of height × width × 3 bytes")


def _shrunk(pixels: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """The image with a longer side of at most `longest` pixels."""
    import cv2

    height, width = pixels.shape[:2]
    ratio = longest / max(height, width)
    if ratio >= 1:
        return pixels
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _as_jpeg(pixels: NDArray[np.uint8], quality: int) -> bytes:
    import simplejpeg

    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=quality, colorspace="RGB", colorsubsampling="420"
    )
    return encoded
