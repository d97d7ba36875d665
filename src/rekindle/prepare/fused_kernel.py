"""The last steps in as few passes as possible: crop, flip, convert, normalize, transpose, straight into the
batch's memory.

Everything that happens to a pixel's value is one lookup in a table of 256 entries per channel: it holds what
the steps themselves compute for each value, so the result is bit-identical to theirs. Where they only convert
and normalize, the values are computed instead, which vectorises (see `normalization`). Otherwise OpenCV
splits the image into its channels, and looks up their values. A window may extend beyond the image (a crop
with padding); what lies outside has the colour `fill`.

The kernel is compiled by numba beside the training (`core/compile_later.py`): until then, tables are used.
All of it runs without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import check_on_disk
from rekindle.errors import ArgumentError
from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps.crop_window import crop_with_border
from rekindle.prepare.steps.point_operations import look_up

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Values: TypeAlias = NDArray[np.uint8 | np.float32]  # results
Table: TypeAlias = Values  # 3 × 256: the result for each value of each channel
Convert: TypeAlias = Callable[[Bytes, Table, Floats, Values], None]  # image, table, constants, out

IDENTITY = np.ascontiguousarray(np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 256)))
USE_TABLE: Floats = np.empty((0, 3), dtype=np.float32)
_FLIPS = {(True, False): 1, (False, True): 0, (True, True): -1}  # mirrored, upside down: OpenCV's codes
_BYTE = np.dtype(np.uint8)
_WIDTH = 75  # of the trial: enough for the vectorised part of the loop and for the rest


@cache
def compile_normalize(in_planes: bool) -> Callable[..., None]:
    """Compile the kernel that writes planes, or the one for any strides, or load it."""
    check_on_disk("rekindle.prepare.normalize_kernel")
    from rekindle.prepare import normalize_kernel

    return normalize_kernel.write_planes() if in_planes else normalize_kernel.write_strided()


def finish(
    image: Bytes,
    top: int,
    left: int,
    mirrored: bool,
    upside_down: bool,
    fill: Bytes,
    table: Table,
    constants: Floats,
    out: Values,
) -> None:
    """Write the window of `image` from (top, left) to `out`, which is channels × rows × columns.

    The image is an array of rows × columns × 3; `out` may have any strides, so its channels can also be last
    in memory.
    """
    channels, rows, columns = out.shape
    height, width, depth = image.shape
    kind = out.dtype
    if depth != 3 or channels != 3 or image.dtype != _BYTE or kind != table.dtype:
        raise ArgumentError(
            f"an image of {image.dtype} {image.shape} cannot be written to an array of {kind} {out.shape}"
        )
    if fill.shape != (3,) or table.shape != (3, 256) or constants.shape not in ((0, 3), (3, 3)):
        raise ArgumentError(
            f"fill, table and constants have the shapes {fill.shape}, {table.shape}, {constants.shape}: "
            "expected (3,), (3, 256), and (0, 3) or (3, 3)"
        )
    if not (0 <= top <= height - rows and 0 <= left <= width - columns):
        image = crop_with_border(image, (top, left, rows, columns), tuple(fill.tolist()))
        top, left, width = 0, 0, columns
    in_planes = out.flags.c_contiguous
    if constants.size and in_planes:
        row, stride = (top + rows - 1, -3 * width) if upside_down else (top, 3 * width)
        pixels = np.ascontiguousarray(image).reshape(-1)
        compile_normalize(in_planes)(pixels, 3 * (row * width + left), stride, constants, out, mirrored)
        return
    if mirrored or upside_down:
        window = image[top : top + rows, left : left + columns]
        image = cv2.flip(window, _FLIPS[mirrored, upside_down]) if window.size else window  # type: ignore[assignment]
        top, left, width = 0, 0, columns
    if constants.size:
        pixels = np.ascontiguousarray(image).reshape(-1)
        compile_normalize(in_planes)(pixels, 3 * (top * width + left), 3 * width, constants, out)
    elif out.size:
        _write(image[top : top + rows, left : left + columns], table, out)


def _write(window: Bytes, table: Table, out: Values) -> None:
    """Write the pixels' entries in the table."""
    in_planes = out.flags.c_contiguous and writes_in_place()
    if table.dtype == _BYTE:
        if table is not IDENTITY:
            window = look_up(window, np.ascontiguousarray(table.T))
        if in_planes:
            cv2.split(window, (out[0], out[1], out[2]))
        else:
            out.transpose(1, 2, 0)[:] = window
    elif in_planes:
        for plane, values, to in zip(cv2.split(window), table, out, strict=True):
            cv2.LUT(plane, values, dst=to)
    else:
        out.transpose(1, 2, 0)[:] = cv2.LUT(window, np.ascontiguousarray(table.T).reshape(1, 256, 3))


@cache
def writes_in_place() -> bool:
    """Whether OpenCV writes results to the memory that it is given, as its documentation only suggests."""
    out, floats = np.zeros((3, 2, 5), dtype=np.uint8), np.zeros((2, 5), dtype=np.float32)
    image = np.arange(1, 37, dtype=np.uint8).reshape(2, 6, 3)[:, 1:]
    cv2.split(image, (out[0], out[1], out[2]))
    cv2.LUT(out[0], np.arange(256, dtype=np.float32), dst=floats)
    return np.array_equal(out, image.transpose(2, 0, 1)) and np.array_equal(floats, out[0])


def convert_image(image: Bytes, table: Table, constants: Floats, out: Values) -> None:
    """Write a whole image to `out`, channels × rows × columns."""
    finish(image, 0, 0, False, False, np.zeros(3, dtype=np.uint8), table, constants, out)


def normalization(
    table: Table, mean: Floats, std: Floats, channels_last: bool = False, convert: Convert | None = None
) -> Floats:
    """The constants to compute the table's values with, if the results are bit-identical; else `USE_TABLE`.

    `convert` is tried on every value at every position in a row: it takes a processor with fused
    multiply-add. Without it, the kernel here is, if it is compiled.
    """
    if table.dtype != np.float32:
        return USE_TABLE
    constants = np.stack([mean, std, np.float32(1) / std], axis=1)
    values = (np.arange(256)[:, None] + np.arange(_WIDTH)) % 256
    # Most tables that cannot be computed are found at once, without compiling anything.
    quotients = (np.arange(256, dtype=np.float32) / np.float32(255) - mean[:, None]) / std[:, None]
    if not np.allclose(quotients, table, rtol=1e-3, atol=1e-3):
        return USE_TABLE
    if convert is None:
        if compiled_or_later(compile_normalize, not channels_last) is None:
            return USE_TABLE
        convert = convert_image
    image = np.repeat(values[..., None].astype(np.uint8), 3, axis=2)
    computed = np.empty((3, 256, _WIDTH), dtype=np.float32)
    if channels_last:
        computed = np.moveaxis(np.empty((256, _WIDTH, 3), dtype=np.float32), 2, 0)
    convert(image, table, constants, computed)
    return constants if computed.tobytes() == table[:, values].tobytes() else USE_TABLE
