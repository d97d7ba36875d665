"""Sharpness by a compiled kernel, in half the time of OpenCV's blur and sum, with the same pixels.

It makes a row of means at a time, where OpenCV makes an image of them. What OpenCV's vector instructions do
is repeated, so this is for images that it reads in one piece; where a product and a sum are rounded twice, as
on old processors, or the kernel is not compiled yet, OpenCV does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import NO_ALLOCATION, kernel
from rekindle.prepare.opencv import cv2
from rekindle.prepare.rgb import is_rgb
from rekindle.prepare.steps.step import Image

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

Blend: TypeAlias = Callable[[Image, float, float, float], Image]  # image, its weight, that of means, offset

_NARROWEST = 32  # pixels: what OpenCV's vectors leave over lies in the last row, whose pixels stay
_log = logging.getLogger("rekindle")


def blend_with_means(image: Image, weight: float, of_means: float, offset: float) -> Image:
    """Pixels times `weight`, means of 3 × 3 times `of_means` and `offset`, added; edge pixels are not set."""
    fits = is_rgb(image) and image.flags.c_contiguous and image.shape[1] >= _NARROWEST
    blend = compiled_or_later(compile_blend) if fits else None
    return (blend or _by_opencv)(image, weight, of_means, offset)


def load_blend() -> None:
    """Load the kernel if it is compiled: before there are workers, which would each do it."""
    compiled_or_later(compile_blend)


def compile_blend() -> Blend:
    """Compile the kernel, or load it, and try it: what rounds in another way than OpenCV is not used."""
    blend = _by_kernel()
    if _blends_as_opencv(blend):
        return blend
    _log.info("OpenCV rounds sums of products in another way here: sharpness is its own.")
    return _by_opencv


def _by_kernel() -> Blend:
    write = _write()

    def blend(image: Image, weight: float, of_means: float, offset: float) -> Image:
        result, sums = np.empty_like(image), np.empty(3 * image.shape[1], dtype=np.uint16)
        weights = np.array((weight, of_means, offset), dtype=np.float32)
        write(image.reshape(len(image), -1), weights, sums, result.reshape(len(image), -1))
        return result

    return blend


def _blends_as_opencv(blend: Blend) -> bool:
    """Whether sums that are halfway between two integers, but for errors of rounding, come out the same."""
    y, x = np.mgrid[:64, :64]
    noise = (x * 57 + y * 31) * (x * 13 + y) % 251
    image = np.stack([noise, noise[::-1] // 2 + 64, noise[:, ::-1] // 4 + 96], axis=2).astype(np.uint8)
    for difference in (7, -9, 12, -23, 31, -45, 60):
        # Where a pixel differs that much from its mean, this weight moves it by one, and the offset by half.
        of_means = 1.0001 / difference
        numbers = 1 - of_means, of_means, -0.4999
        if not np.array_equal(blend(image, *numbers)[1:-1, 1:-1], _by_opencv(image, *numbers)[1:-1, 1:-1]):
            return False
    return True


def _by_opencv(image: Image, weight: float, of_means: float, offset: float) -> Image:
    return cv2.addWeighted(image, weight, cv2.blur(image, (3, 3)), of_means, offset)  # type: ignore[return-value]


def _signature() -> Signature:
    from numba import float32, types, uint8, uint16, void

    numbers = types.Array(float32, 1, "C", readonly=True)
    return void(types.Array(uint8, 2, "C", readonly=True), numbers, uint16[::1], uint8[:, ::1])


# A product and a sum become one instruction, which rounds once.
@kernel(_signature, fastmath={"contract"}, error_model="numpy", **NO_ALLOCATION)
def _write(
    rows: NDArray[np.uint8], weights: NDArray[np.float32], sums: NDArray[np.uint16], result: NDArray[np.uint8]
) -> None:
    weight, of_means, offset = weights[0], weights[1], weights[2]
    ninth, darkest, brightest = np.float32(1 / 9), np.float32(0), np.float32(255)
    columns = rows.shape[1] - 6
    for y in range(1, rows.shape[0] - 1):
        above, here, below, out = rows[y - 1], rows[y], rows[y + 1], result[y]
        for x in range(columns + 6):
            sums[x] = np.uint16(above[x]) + np.uint16(here[x]) + np.uint16(below[x])
        for x in range(columns):
            mean = np.rint(np.float32(np.int32(sums[x] + sums[x + 3] + sums[x + 6])) * ninth)
            value = np.float32(np.int32(here[x + 3])) * weight + (mean * of_means + offset)
            out[x + 3] = np.uint8(np.int32(np.rint(min(max(value, darkest), brightest))))
