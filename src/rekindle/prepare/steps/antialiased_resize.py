"""Antialiased resizing as Pillow does it: every source pixel contributes to the result.

OpenCV's `INTER_LINEAR` skips pixels when it downsamples, and its `INTER_AREA` is another filter (3.3 and 1.2
grey levels from Pillow on average, from 450 to 224 pixels; here 0.15), so the two passes of Pillow's method
are compiled here. Both passes work on whole rows, which vectorises: the image is transposed between them. A
filter without negative lobes needs 16 bits: weights are 1/256ths that add up to 256.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import cv2
import numba
import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code
from rekindle.errors import ArgumentError
from rekindle.prepare.rgb import is_rgb
from rekindle.prepare.steps.parameters import InterpolationMode
from rekindle.prepare.steps.step import Image

check_compiled_code()

RESIZE_MODES = tuple(InterpolationMode)
# How far each of Pillow's filters reaches, in pixels of the result.
SUPPORT = {
    InterpolationMode.BILINEAR: 1.0,
    InterpolationMode.BOX: 0.5,
    InterpolationMode.HAMMING: 1.0,
    InterpolationMode.BICUBIC: 2.0,
    InterpolationMode.LANCZOS: 3.0,
}
_BYTES_TO_READ = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_SUM = numba.void(_BYTES_TO_READ, numba.uint8[:, ::1], *[numba.int64] * 4, numba.float64)
HAS_NEGATIVE_LOBES = (InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)

# Kernel of one pass: source rows, result rows, top, first byte of the row, height, filter's code and support.
_SumRows: TypeAlias = Callable[[NDArray[np.uint8], NDArray[np.uint8], int, int, int, int, float], None]


def resample(
    image: Image,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    mode: InterpolationMode = InterpolationMode.BILINEAR,
) -> Image:
    """The box (top, left, height, width) of the image, resized to `size` (height, width).

    Pixels outside the box do not contribute, as if it had been cropped first. If the box already has that
    size, the result is a view of it.
    """
    top, left, height, width = box
    _check(image, box, size)
    if (height, width) == size:
        return image[top : top + height, left : left + width]
    if mode in (InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT):
        cropped = image[top : top + height, left : left + width]
        return cv2.resize(cropped, size[::-1], interpolation=cv2.INTER_NEAREST_EXACT)  # type: ignore[return-value]
    image = np.ascontiguousarray(image)
    filter_ = _FILTERS[mode]
    if height == size[0]:
        image = image[top : top + height, left : left + width]
    else:
        image = _resampled_rows(image, top, left, height, width, size[0], *filter_)
    if width != size[1]:
        transposed = _resampled_rows(_transposed(image), 0, 0, width, size[0], size[1], *filter_)
        image = _transposed(transposed)
    return image


def _check(image: Image, box: tuple[int, int, int, int], size: tuple[int, int]) -> None:
    """ArgumentError if the kernels, which check nothing, would read or write outside of their arrays."""
    top, left, height, width = box
    if (
        not is_rgb(image)
        or not 0 <= top < top + height <= image.shape[0]
        or not 0 <= left < left + width <= image.shape[1]
        or size[0] < 1
        or size[1] < 1
    ):
        raise ArgumentError(
            f"cannot resize the box {box} (top, left, height, width) of an array of {image.dtype} "
            f"{image.shape} to {size}. Give RGB bytes, height × width × 3, and a box within them."
        )


def _transposed(image: Image) -> Image:
    return cv2.transpose(image)  # type: ignore[return-value]


def _resampled_rows(
    image: Image,
    top: int,
    left: int,
    height: int,
    width: int,
    new_height: int,
    sum_rows: _SumRows,
    code: int,
    support: float,
) -> Image:
    """The box with `new_height` rows, each a weighted sum of rows of the image."""
    result: Image = np.empty((new_height, width, 3), dtype=np.uint8)
    rows = image.reshape(image.shape[0], -1)
    sum_rows(rows, result.reshape(new_height, -1), top, 3 * left, height, code, support)
    return result


@numba.njit("f8(f8, i8)", cache=True, nogil=True)
def _filter(x: float, code: int) -> float:
    """The weight of a pixel at this distance, for one of Pillow's filters."""
    x = abs(x)
    if code == 0:  # bilinear
        return max(1.0 - x, 0.0)
    if code == 1:  # box
        return 1.0 if x <= 0.5 else 0.0
    if code == 2:  # hamming
        if x == 0:
            return 1.0
        return (
            0.0 if x >= 1 else math.sin(math.pi * x) / (math.pi * x) * (0.54 + 0.46 * math.cos(math.pi * x))
        )
    if code == 3:  # bicubic, a = −1/2
        if x < 1:
            return (1.5 * x - 2.5) * x * x + 1
        return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0
    if x == 0:  # lanczos
        return 1.0
    return 3 * math.sin(math.pi * x) * math.sin(math.pi * x / 3) / (math.pi * x) ** 2 if x < 3 else 0.0


@numba.njit("UniTuple(i8, 2)(i8, i8, i8, i8, f8, f8[::1])", cache=True, nogil=True)
def _weights(
    row: int, old: int, new: int, code: int, support: float, weights: NDArray[np.float64]
) -> tuple[int, int]:
    """First source row and number of source rows of a result's row; writes their weights, which sum to 1."""
    scale = old / new
    stretch = max(scale, 1.0)
    centre = (row + 0.5) * scale
    first = max(int(centre - support * stretch + 0.5), 0)
    count = min(int(centre + support * stretch + 0.5), old) - first
    total = 0.0
    for k in range(count):
        weights[k] = _filter((first + k - centre + 0.5) / stretch, code)
        total += weights[k]
    for k in range(count):
        weights[k] /= total
    return first, count


@numba.njit(_SUM, cache=True, nogil=True)
def _sum_positive(
    rows: NDArray[np.uint8],
    result: NDArray[np.uint8],
    top: int,
    left: int,
    height: int,
    code: int,
    support: float,
) -> None:
    new, width = result.shape
    weights = np.empty(int(2 * support * max(height / new, 1.0)) + 3, dtype=np.float64)
    sums = np.empty(width, dtype=np.uint16)
    for y in range(new):
        first, count = _weights(y, height, new, code, support, weights)
        sums[:] = np.uint16(128)
        running, given = 0.0, 0
        for k in range(count):
            # Rounding the running sum makes the weights add up to 256 exactly: 256 · 255 + 128 fits 16 bits.
            running += 256 * weights[k]
            weight = np.uint16(int(running + 0.5) - given)
            given = int(running + 0.5)
            row = rows[top + first + k, left : left + width]
            if weight > 0:
                for x in range(width):
                    sums[x] = np.uint16(sums[x] + np.uint16(weight * np.uint16(row[x])))
        for x in range(width):
            result[y, x] = np.uint8(sums[x] >> np.uint16(8))


@numba.njit(_SUM, fastmath=True, cache=True, nogil=True)
def _sum_signed(
    rows: NDArray[np.uint8],
    result: NDArray[np.uint8],
    top: int,
    left: int,
    height: int,
    code: int,
    support: float,
) -> None:
    new, width = result.shape
    weights = np.empty(int(2 * support * max(height / new, 1.0)) + 3, dtype=np.float64)
    sums = np.empty(width, dtype=np.float32)
    for y in range(new):
        first, count = _weights(y, height, new, code, support, weights)
        sums[:] = np.float32(0.5)
        for k in range(count):
            weight = np.float32(weights[k])
            row = rows[top + first + k, left : left + width]
            for x in range(width):
                sums[x] += weight * np.float32(row[x])
        for x in range(width):
            result[y, x] = np.uint8(min(max(sums[x], np.float32(0)), np.float32(255)))


# The kernel that sums rows for each filter, the filter's code in `_filter`, and its support.
_FILTERS: dict[InterpolationMode, tuple[_SumRows, int, float]] = {
    mode: (_sum_signed if mode in HAS_NEGATIVE_LOBES else _sum_positive, code, support)
    for code, (mode, support) in enumerate(SUPPORT.items())
}
