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
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import NO_ALLOCATION, kernel
from rekindle.errors import ArgumentError
from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps.crop_window import crop_with_border
from rekindle.prepare.steps.point_operations import look_up

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

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


def _signature(layout: Literal["C", "A"]) -> Signature:
    from numba import float32, int64, types, uint8, void

    # A pixel's bytes, where they start and the length of a row; numbers per channel; the result.
    pixels = types.Array(uint8, 1, "C", readonly=True)
    return void(pixels, int64, int64, types.Array(float32, 2, "C"), types.Array(float32, 3, layout))


# A product and a sum may become one instruction, which rounds once: the result is exact only with that.
@kernel(_signature, fastmath={"contract"}, error_model="numpy", boundscheck=False, **NO_ALLOCATION)
def _normalize(pixels: Bytes, start: int, stride: int, constants: Floats, out: Floats) -> None:
    """Pixels as (value / 255 − mean) / std: each division is a product with a correction of its error."""
    m0, m1, m2 = constants[0, 0], constants[1, 0], constants[2, 0]  # means
    s0, s1, s2 = constants[0, 1], constants[1, 1], constants[2, 1]  # standard deviations
    r0, r1, r2 = constants[0, 2], constants[1, 2], constants[2, 2]  # their reciprocals
    whole, part = np.float32(255), np.float32(1 / 255)
    columns = out.shape[2]
    for y in range(out.shape[1]):
        # Slices, since an index that may be negative costs a test for each pixel.
        source = pixels[start + y * stride : start + y * stride + 3 * columns]
        red, green, blue = out[0, y], out[1, y], out[2, y]
        for x in range(columns):
            v0, v1, v2 = (
                np.float32(source[3 * x]),
                np.float32(source[3 * x + 1]),
                np.float32(source[3 * x + 2]),
            )
            q0, q1, q2 = v0 * part, v1 * part, v2 * part
            d0 = q0 + (v0 - q0 * whole) * part - m0
            d1 = q1 + (v1 - q1 * whole) * part - m1
            d2 = q2 + (v2 - q2 * whole) * part - m2
            e0, e1, e2 = d0 * r0, d1 * r1, d2 * r2
            red[x] = e0 + (d0 - e0 * s0) * r0
            green[x] = e1 + (d1 - e1 * s1) * r1
            blue[x] = e2 + (d2 - e2 * s2) * r2


# The kernel checks nothing. Its signatures admit only arrays of the right dtype, number of axes and layout
# (numba raises a TypeError for others); lengths and offsets are checked here, once a call.


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
    if mirrored or upside_down:
        window = image[top : top + rows, left : left + columns]
        image = cv2.flip(window, _FLIPS[mirrored, upside_down]) if window.size else window  # type: ignore[assignment]
        top, left, width = 0, 0, columns
    if constants.size:
        layout = "C" if out.flags.c_contiguous else "A"
        pixels, start, stride = np.ascontiguousarray(image).reshape(-1), 3 * (top * width + left), 3 * width
        _normalize(layout)(pixels, start, stride, constants, cast(Floats, out))
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
        if compiled_or_later(_normalize, "A" if channels_last else "C") is None:
            return USE_TABLE
        convert = convert_image
    image = np.repeat(values[..., None].astype(np.uint8), 3, axis=2)
    computed = np.empty((3, 256, _WIDTH), dtype=np.float32)
    if channels_last:
        computed = np.moveaxis(np.empty((256, _WIDTH, 3), dtype=np.float32), 2, 0)
    convert(image, table, constants, computed)
    return constants if computed.tobytes() == table[:, values].tobytes() else USE_TABLE
