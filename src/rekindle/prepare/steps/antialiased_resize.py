"""Antialiased resizing as Pillow does it: every source pixel contributes to the result.

OpenCV's `INTER_LINEAR` skips pixels when it downsamples, and its `INTER_AREA` is another filter (3.3 and 1.2
grey levels from Pillow on average, from 450 to 224 pixels; here 0.15), so the two passes of Pillow's method
are compiled here. Both passes work on whole rows, which vectorises: the image is transposed between them. A
filter without negative lobes needs 16 bits: weights are 1/256ths that add up to 256.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import NO_ALLOCATION, kernel
from rekindle.errors import ArgumentError
from rekindle.prepare.opencv import cv2
from rekindle.prepare.rgb import is_rgb
from rekindle.prepare.steps import bilinear_rows
from rekindle.prepare.steps.parameters import InterpolationMode
from rekindle.prepare.steps.step import Image

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

RESIZE_MODES = tuple(InterpolationMode)
# How far each of Pillow's filters reaches, in pixels of the result.
SUPPORT = {
    InterpolationMode.BILINEAR: 1.0,
    InterpolationMode.BOX: 0.5,
    InterpolationMode.HAMMING: 1.0,
    InterpolationMode.BICUBIC: 2.0,
    InterpolationMode.LANCZOS: 3.0,
}
HAS_NEGATIVE_LOBES = (InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)
_CODES = {mode: code for code, mode in enumerate(SUPPORT)}  # that `resize_filters` knows them by


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
    if height == size[0]:
        image = image[top : top + height, left : left + width]
    else:
        image = _resampled_rows(image, top, left, height, width, size[0], mode)
    return image if width == size[1] else _resampled_columns(image, size[1], mode)


def compile_resize(mode: InterpolationMode) -> None:
    """Load the kernel of a mode, or compile it where it is needed: before there are workers."""
    if mode == InterpolationMode.BILINEAR:
        compiled_or_later(_sum_bilinear, soon=True)
    elif mode in SUPPORT:
        _other_filter(mode)


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


def _resampled_rows(
    image: Image, top: int, left: int, height: int, width: int, new_height: int, mode: InterpolationMode
) -> Image:
    """The box with `new_height` rows, each a weighted sum of rows of the image."""
    result: Image = np.empty((new_height, width, 3), dtype=np.uint8)
    rows, new_rows = image.reshape(len(image), -1), result.reshape(new_height, -1)
    if mode is InterpolationMode.BILINEAR:
        compiled = compiled_or_later(_sum_bilinear, soon=True)
        if compiled is None:
            bilinear_rows.write(rows, new_rows, top, 3 * left, height)
        else:
            weights = np.empty(2 * height // new_height + 5, dtype=np.float64)
            sums = np.empty(3 * width, dtype=np.uint16)
            compiled(rows, new_rows, top, 3 * left, height, weights, sums)
    else:
        _other_filter(mode)(rows, new_rows, top, 3 * left, height, _CODES[mode], SUPPORT[mode])
    return result


def _resampled_columns(image: Image, new_width: int, mode: InterpolationMode) -> Image:
    """The image with `new_width` columns: as rows, of a matrix of single bytes that is transposed.

    Transposing bytes takes half the time of transposing pixels. What is a row for each channel of each column
    then, three for a column, is a row of three times the length to the kernel.
    """
    height, width = image.shape[:2]
    columns: Image = cv2.transpose(image.reshape(height, 3 * width)).reshape(width, height, 3)  # type: ignore[assignment]
    new = _resampled_rows(columns, 0, 0, width, height, new_width, mode)
    return cv2.transpose(new.reshape(3 * new_width, height)).reshape(height, new_width, 3)  # type: ignore[return-value]


def _other_filter(mode: InterpolationMode) -> Callable[..., None]:
    from rekindle.prepare.steps import resize_filters

    return resize_filters.sum_signed() if mode in HAS_NEGATIVE_LOBES else resize_filters.sum_positive()


def _signature() -> Signature:
    from numba import float64, int64, types, uint8, uint16, void

    rows = types.Array(uint8, 2, "C", readonly=True)
    return void(rows, uint8[:, ::1], int64, int64, int64, float64[::1], uint16[::1])


@kernel(_signature, **NO_ALLOCATION)
def _sum_bilinear(
    rows: NDArray[np.uint8],
    result: NDArray[np.uint8],
    top: int,
    left: int,
    height: int,
    weights: NDArray[np.float64],
    sums: NDArray[np.uint16],
) -> None:
    """Rows of the result, weighted sums of source rows. Written plainly: it compiles in half the time."""
    new, width = result.shape
    scale = height / new
    stretch = scale if scale > 1.0 else 1.0
    for y in range(new):
        centre = (y + 0.5) * scale
        first = int(centre - stretch + 0.5)
        if first < 0:
            first = 0
        last = int(centre + stretch + 0.5)
        if last > height:
            last = height
        count = last - first
        total = 0.0
        for k in range(count):
            distance = abs((first + k - centre + 0.5) / stretch)
            weights[k] = 1.0 - distance if distance < 1.0 else 0.0
            total += weights[k]
        # Rounding the running sum makes the weights add up to 256 exactly: 256 · 255 + 128 fits 16 bits.
        running, given = 0.0, 0
        for k in range(count):
            running += 256 * (weights[k] / total)
            rounded = int(running + 0.5)
            weights[k] = rounded - given
            given = rounded
        to = result[y]
        if count <= 4:  # The sum of a few rows needs no memory. A row that is not there has no weight.
            for k in range(count, 4):
                weights[k] = 0.0
            row = rows[top + first, left : left + width]
            row1 = rows[top + first + min(1, count - 1), left : left + width]
            row2 = rows[top + first + min(2, count - 1), left : left + width]
            row3 = rows[top + first + min(3, count - 1), left : left + width]
            w, w1 = np.uint16(weights[0]), np.uint16(weights[1])
            w2, w3 = np.uint16(weights[2]), np.uint16(weights[3])
            for x in range(width):
                low = np.uint16(np.uint16(w * np.uint16(row[x])) + np.uint16(w1 * np.uint16(row1[x])))
                high = np.uint16(np.uint16(w2 * np.uint16(row2[x])) + np.uint16(w3 * np.uint16(row3[x])))
                to[x] = np.uint8(np.uint16(np.uint16(low + high) + np.uint16(128)) >> np.uint16(8))
            continue
        for x in range(width):
            sums[x] = np.uint16(128)
        for k in range(count):
            weight = np.uint16(weights[k])
            if weight > 0:
                row = rows[top + first + k, left : left + width]
                for x in range(width):
                    sums[x] = np.uint16(sums[x] + np.uint16(weight * np.uint16(row[x])))
        for x in range(width):
            to[x] = np.uint8(sums[x] >> np.uint16(8))
