"""Point operations: a channel's new value depends on its old value alone, by a lookup table of 256 entries.

Solarize, Posterize, Invert, AutoContrast and Equalize, and the Random… steps that apply them with probability
`p`. The tables are Pillow's, so the results equal torchvision's on Pillow images. Consecutive tables can be
merged into one: `second[first]`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.errors import ArgumentError
from rekindle.prepare.opencv import cv2
from rekindle.prepare.rgb import is_rgb
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.image_step import ChanceStep, ImageStep
from rekindle.prepare.steps.point_kernels import BLOCK, equalize_values, look_up_values, stretch_values
from rekindle.prepare.steps.step import Image, Uniforms

Table: TypeAlias = NDArray[np.uint8]  # 256 values for all channels, or 256 × 3

_VALUES: Table = np.arange(256, dtype=np.uint8)
_CHANNELS = np.arange(3)[:, None]
_NO_UNIFORMS: Uniforms = np.empty(0)


def look_up(image: Image, table: Table) -> Image:
    """The image with each value replaced by its entry in the table."""
    _check(image)
    image = np.ascontiguousarray(image)
    compiled = compiled_or_later(look_up_values)
    if compiled is None:
        by_channel = table if table.ndim == 2 else np.repeat(table[:, None], 3, axis=1)
        return cv2.LUT(image, np.ascontiguousarray(by_channel).reshape(1, 256, 3))  # type: ignore[return-value]
    red, green, blue = (
        np.ascontiguousarray(table.T) if table.ndim == 2 else (np.ascontiguousarray(table),) * 3
    )
    result = np.empty_like(image)
    compiled(image.reshape(-1), red, green, blue, result.reshape(-1))
    return result


def _check(image: Image) -> None:
    """ArgumentError if the kernels, which check nothing, would take the values of pixels for others."""
    if not is_rgb(image) or not image.size:
        raise ArgumentError(
            f"the image is an array of {image.dtype} {image.shape}. Give RGB bytes, height × width × 3."
        )


def load_tables() -> None:
    """Load what looks up values, if it is compiled: before there are workers."""
    compiled_or_later(look_up_values)


@lru_cache(maxsize=512)
def solarize_table(threshold: float) -> Table:
    """Values of at least the threshold are inverted."""
    return np.where(threshold > _VALUES, _VALUES, 255 - _VALUES)


@lru_cache(maxsize=8)
def posterize_table(bits: int) -> Table:
    """Only the `bits` highest bits of each value are kept."""
    return _VALUES & np.uint8(256 - 2 ** (8 - bits))


def invert_table() -> Table:
    """Every value is inverted: 255 − value."""
    return 255 - _VALUES


def autocontrast_table(image: Image) -> Table:
    """The darkest value of each channel becomes 0 and the brightest 255."""
    # Along the columns first, as rows of bytes: that vectorises.
    rows = image.reshape(len(image), -1)
    lows, highs = rows.min(axis=0).reshape(-1, 3), rows.max(axis=0).reshape(-1, 3)
    extremes = zip(lows.min(axis=0).tolist(), highs.max(axis=0).tolist(), strict=True)
    return np.stack([_stretched(low, high) for low, high in extremes], axis=1)


@lru_cache(maxsize=4096)
def _stretched(low: int, high: int) -> Table:
    """The new values of a channel whose darkest and brightest values are these."""
    if high <= low:
        return _VALUES
    scale = 255.0 / (high - low)
    table: Table = np.clip(_VALUES * scale - low * scale, 0, 255).astype(np.uint8)
    return table


def autocontrast(image: Image) -> Image:
    """The image with each channel stretched to the range from 0 to 255; itself if all of them have it."""
    _check(image)
    stretch = compiled_or_later(stretch_values)
    if stretch is None:
        table = autocontrast_table(image)
        return image if (table == _VALUES[:, None]).all() else look_up(image, table)
    result = np.empty(image.shape, dtype=np.uint8)
    extremes, numbers = np.empty((2, BLOCK), dtype=np.uint8), np.empty((2, BLOCK), dtype=np.float64)
    changes = stretch(np.ascontiguousarray(image).reshape(-1), extremes, numbers, result.reshape(-1))
    return result if changes else image


def equalize_table(image: Image) -> Table:
    """The values of each channel become about equally frequent."""
    _check(image)
    counts = np.zeros((3, 256), dtype=np.int64)
    equalize = compiled_or_later(equalize_values)
    if equalize is not None:
        tables = np.empty((3, 256), dtype=np.uint8)
        equalize(np.ascontiguousarray(image).reshape(-1, 3), counts, tables)
        return tables.T
    for channel, to in zip(cv2.split(image), counts, strict=True):
        to[:] = np.bincount(channel.reshape(-1), minlength=256)
    brightest = 255 - (counts[:, ::-1] > 0).argmax(axis=1)
    # Of a channel that has one value only, that is all pixels: its step is 0, and nothing is changed.
    steps = (image.size // 3 - counts[_CHANNELS, brightest[:, None]]) // 255
    levels = (steps // 2 + counts.cumsum(axis=1) - counts) // np.maximum(steps, 1)
    table: Table = np.where(steps > 0, np.minimum(levels, 255), _VALUES).astype(np.uint8).T
    return table


def solarize(image: Image, threshold: float) -> Image:
    """The image with all values of at least the threshold inverted."""
    if threshold > 255:
        return image
    if not threshold > 0:
        return invert(image)
    _, chosen = cv2.threshold(image, math.ceil(threshold) - 1, 255, cv2.THRESH_BINARY)
    return cv2.bitwise_xor(image, chosen)  # type: ignore[return-value]


def posterize(image: Image, bits: int) -> Image:
    """The image with only the `bits` highest bits of each value."""
    return np.bitwise_and(image, np.uint8(256 - 2 ** (8 - bits)))


def invert(image: Image) -> Image:
    """The image with every value inverted."""
    return cv2.bitwise_not(image)  # type: ignore[return-value]


class PointStep(ImageStep):
    """A point operation that is always applied.

    Attributes:
        needs_image: Whether the table depends on the image.

    """

    needs_image = False

    @abstractmethod
    def table(self, image: Image | None = None) -> Table:
        """The new value for each old one; with `needs_image`, the image has to be given."""

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return look_up(image, self.table(image))


class Solarize(PointStep):
    """Invert all values of at least `threshold`."""

    def __init__(self, threshold: float) -> None:
        self.threshold = parameters.number("Solarize", "threshold", threshold)

    def table(self, image: Image | None = None) -> Table:
        return solarize_table(self.threshold)

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return solarize(image, self.threshold)


class Posterize(PointStep):
    """Keep only the `bits` highest bits of each value."""

    def __init__(self, bits: int) -> None:
        self.bits = parameters.positive_integer("Posterize", "bits", bits)
        if self.bits > 8:
            raise ArgumentError(f"Posterize: bits is {bits!r}. Give an integer from 1 to 8.")

    def table(self, image: Image | None = None) -> Table:
        return posterize_table(self.bits)

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return posterize(image, self.bits)


class Invert(PointStep):
    """Invert every value: 255 − value."""

    def table(self, image: Image | None = None) -> Table:
        return invert_table()

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return invert(image)


class AutoContrast(PointStep):
    """Stretch each channel to the range from 0 to 255."""

    needs_image = True

    def table(self, image: Image | None = None) -> Table:
        assert image is not None
        return autocontrast_table(image)

    def compile_kernels(self) -> None:
        compiled_or_later(stretch_values)

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return autocontrast(image)


class Equalize(PointStep):
    """Equalize the histogram of each channel."""

    needs_image = True

    def table(self, image: Image | None = None) -> Table:
        assert image is not None
        return equalize_table(image)

    def compile_kernels(self) -> None:
        load_tables()
        compiled_or_later(equalize_values)


class _RandomPointStep(ChanceStep):
    """A point operation applied with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__(p)
        self._operation()  # ArgumentError now, for a wrong parameter

    @abstractmethod
    def _operation(self) -> PointStep:
        """The operation, with the parameters as they are now."""

    def compile_kernels(self) -> None:
        self._operation().compile_kernels()

    def change(self, image: Image) -> Image:
        return self._operation().apply(image, _NO_UNIFORMS)


class RandomSolarize(_RandomPointStep):
    """Invert all values of at least `threshold` with probability `p`."""

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        self.threshold = threshold
        super().__init__(p)

    def _operation(self) -> PointStep:
        return Solarize(self.threshold)


class RandomPosterize(_RandomPointStep):
    """Keep only the `bits` highest bits of each value with probability `p`."""

    def __init__(self, bits: int, p: float = 0.5) -> None:
        self.bits = bits
        super().__init__(p)

    def _operation(self) -> PointStep:
        return Posterize(self.bits)


class RandomInvert(_RandomPointStep):
    """Invert every value with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def _operation(self) -> PointStep:
        return Invert()


class RandomAutocontrast(_RandomPointStep):
    """Stretch each channel to the range from 0 to 255 with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def _operation(self) -> PointStep:
        return AutoContrast()


class RandomEqualize(_RandomPointStep):
    """Equalize the histogram of each channel with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def _operation(self) -> PointStep:
        return Equalize()
