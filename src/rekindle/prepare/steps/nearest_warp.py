"""Warps to the nearest pixel by a kernel of our own, in a third of OpenCV's time, with the same pixels.

OpenCV's vector instructions calculate 8, 16 or 32 pixels of a row at once, and round what is left over in
another way; so this is for rows without such a rest. Which other formula a version has, or a processor, shows
in pixels that lie between two: where those differ, or the kernel is not compiled yet, OpenCV does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import check_on_disk
from rekindle.prepare.opencv import cv2
from rekindle.prepare.rgb import is_rgb
from rekindle.prepare.steps.parameters import Fill
from rekindle.prepare.steps.step import Image

Matrix: TypeAlias = NDArray[np.float64]  # 2 × 3: from result to source, between the centres of pixels
Warp: TypeAlias = Callable[[Image, Matrix, tuple[int, int], Fill], Image]

_AT_ONCE = 32  # pixels: a multiple of what any processor calculates at once
_LARGEST = 1 << 24  # bytes of an image: up to here, float32 has all integers
_LONGEST = 32_766  # OpenCV's rows and columns
_FLAGS = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP

_log = logging.getLogger("rekindle")


def warp_nearest(image: Image, matrix: Matrix, size: tuple[int, int], fill: Fill) -> Image:
    """The image warped to this height and width, each pixel from the one nearest to it in the source."""
    warp = compiled_or_later(compile_nearest_warp) if _fits(image, size) else None
    return (warp or _by_opencv)(image, matrix, size, fill)


def _fits(image: Image, size: tuple[int, int]) -> bool:
    """Whether the kernel knows such images, and OpenCV leaves nothing over of a row."""
    return (
        is_rgb(image)
        and size[1] % _AT_ONCE == 0
        and min(size) > 0
        and 0 < image.size < _LARGEST
        and max(*size, *image.shape) <= _LONGEST
    )


def load_nearest_warp() -> None:
    """Load the kernel if it is compiled: before there are workers, which would each do it."""
    compiled_or_later(compile_nearest_warp)


def compile_nearest_warp() -> Warp:
    """Compile the kernel, or load it, and try it: what rounds in another way than OpenCV is not used."""
    check_on_disk(f"{__package__}.nearest_warp_kernel")
    warp = _by_kernel()
    if _warps_as_opencv(warp):
        return warp
    _log.info("OpenCV rounds coordinates in another way here: nearest-neighbour warps are its own.")
    return _by_opencv


def _by_kernel() -> Warp:
    from rekindle.prepare.steps import nearest_warp_kernel

    kernel = nearest_warp_kernel.warp()

    def warp(image: Image, matrix: Matrix, size: tuple[int, int], fill: Fill) -> Image:
        pixels, m = np.ascontiguousarray(image).reshape(-1), matrix.astype(np.float32).reshape(-1)
        places, out = np.empty(size[1], dtype=np.int32), np.empty((*size, 3), dtype=np.uint8)
        row = _background(fill, size[1])
        kernel(pixels, image.shape[0], image.shape[1], m, row, places, out.reshape(-1))
        return out

    return warp


@lru_cache(maxsize=64)
def _background(fill: Fill, width: int) -> NDArray[np.uint8]:
    """A row of this colour."""
    return np.tile(np.array(fill, dtype=np.uint8), width)


def _warps_as_opencv(warp: Warp) -> bool:
    """Whether maps that put pixels halfway between two, but for errors of rounding, come out the same."""
    y, x = np.mgrid[:96, :128]
    image, fill, size = np.stack([x, y, x + y], axis=2).astype(np.uint8), (251, 252, 253), (96, 128)
    for step, shift in product((0.1, 0.3, 0.7, 1 / 3, 1 / 7, 1.1), (0.5, 0.4, -3.7, 1 / 3)):
        for matrix in (
            np.array([[1, step, shift], [0, 1, shift]]),
            np.array([[1 - step, step, shift], [-step, 1, 20 + shift]]),
        ):
            if not np.array_equal(warp(image, matrix, size, fill), _by_opencv(image, matrix, size, fill)):
                return False
    return True


def _by_opencv(image: Image, matrix: Matrix, size: tuple[int, int], fill: Fill) -> Image:
    return cv2.warpAffine(image, matrix, size[::-1], flags=_FLAGS, borderValue=fill)  # type: ignore[return-value]
