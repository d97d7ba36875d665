"""How an image is stored when it is packed: as it is, resized, or as pixels.

Smaller images, a share of them decoded, are the layout with which FFCV (Leclerc et al., CVPR'23) trades disk
space for decoding: `Recipe(resize=400, raw_share=0.5)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.fetch.packed.writers import as_ppm
from rekindle.fetch.source import Stored
from rekindle.prepare.rgb import grey_to_rgb

_QUALITY = 90


@dataclass(frozen=True)
class Recipe:
    """How images are stored.

    Args:
        resize: The most pixels that the longer side may have.
        quality: The quality of the JPEGs to store; None keeps images that need no resizing as they are.
        raw_share: The share of images, evenly spread, to store as pixels.

    """

    resize: int | None = None
    quality: int | None = None
    raw_share: float = 0.0

    def __post_init__(self) -> None:
        if self.resize is not None and self.resize < 1:
            raise ArgumentError(f"resize (--resize) must be at least 1 pixel, but got {self.resize}")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ArgumentError(f"quality (--quality) must be from 1 to 100, but got {self.quality}")
        if not 0 <= self.raw_share <= 1:
            raise ArgumentError(f"raw_share (--raw-share) must be from 0 to 1, but got {self.raw_share}")

    @property
    def is_plain(self) -> bool:
        """Whether everything is kept as it is."""
        return self == Recipe()


def is_raw(index: int, recipe: Recipe) -> bool:
    """Whether a sample is stored as pixels: of any run of samples `raw_share` are, rounded.

    >>> [is_raw(index, Recipe(raw_share=0.5)) for index in range(4)]
    [False, True, False, True]
    """
    return int((index + 1) * recipe.raw_share) > int(index * recipe.raw_share)


def prepare(stored: Stored, index: int, recipe: Recipe, check: bool = False) -> bytes:
    """The bytes to store for a sample; DecodeError if it must be decoded and cannot be.

    `check` has every image decoded, those that are stored as they are too.
    """
    if recipe.is_plain and not check:
        return as_ppm(grey_to_rgb(stored)) if isinstance(stored, np.ndarray) else bytes(stored)
    raw = is_raw(index, recipe)
    if isinstance(stored, np.ndarray):
        pixels = grey_to_rgb(stored)
        if not raw and _stays(recipe, *pixels.shape[:2]):
            return as_ppm(pixels)
    else:
        from rekindle.prepare.decode.decode import decode_with, read_header

        data = bytes(stored)
        header = read_header(data)
        stays = not raw and _stays(recipe, header.height, header.width)
        if stays and not check:
            return data
        pixels = decode_with(header, data)
        if stays:
            return data
    if recipe.resize is not None:
        pixels = shrink(pixels, recipe.resize)
    return as_ppm(pixels) if raw else as_jpeg(pixels, recipe.quality or _QUALITY)


def _stays(recipe: Recipe, height: int, width: int) -> bool:
    """Whether an image of this size is stored as it is."""
    return recipe.quality is None and (recipe.resize is None or max(height, width) <= recipe.resize)


def shrink(pixels: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """The image with a longer side of at most `longest` pixels."""
    from rekindle.prepare.opencv import cv2

    height, width = pixels.shape[:2]
    ratio = longest / max(height, width)
    if ratio >= 1:
        return pixels
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def as_jpeg(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """The image as a JPEG."""
    import simplejpeg

    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=quality, colorspace="RGB", colorsubsampling="420"
    )
    return encoded
