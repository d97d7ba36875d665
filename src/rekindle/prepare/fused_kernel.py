"""The last steps in one pass: crop, flip, convert, normalize, transpose, straight into the batch's memory.

Everything that happens to a pixel's value is one lookup in a table of 256 entries per channel: it holds what
the steps themselves compute for each value, so the result is bit-identical to theirs. Where they only convert
and normalize, the values are computed instead, which vectorises (see `normalization`). A window may extend
beyond the image (a crop with padding); what lies outside has the colour `fill`.

Compiled by numba when this module is first imported, and cached on disk. Runs without the GIL.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numba
import numpy as np
from numba.core.typing.templates import Signature
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code
from rekindle.errors import ArgumentError

check_compiled_code()

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Values: TypeAlias = NDArray[np.uint8 | np.float32]  # results: the kernels are compiled for both types
Table: TypeAlias = Values  # 3 × 256: the result for each value of each channel


# A product and a sum may become one instruction, which rounds once: the result is exact only with that.
@numba.njit(cache=True, nogil=True, boundscheck=False, fastmath={"contract"}, error_model="numpy")
def _normalize(source: Bytes, constants: Floats, red: Values, green: Values, blue: Values) -> None:
    """Pixels as (value / 255 − mean) / std: each division is a product with a correction of its error."""
    m0, m1, m2 = constants[0, 0], constants[1, 0], constants[2, 0]  # means
    s0, s1, s2 = constants[0, 1], constants[1, 1], constants[2, 1]  # standard deviations
    r0, r1, r2 = constants[0, 2], constants[1, 2], constants[2, 2]  # their reciprocals
    whole, part = np.float32(255), np.float32(1 / 255)
    for x in range(source.size // 3):
        v0, v1, v2 = np.float32(source[3 * x]), np.float32(source[3 * x + 1]), np.float32(source[3 * x + 2])
        q0, q1, q2 = v0 * part, v1 * part, v2 * part
        d0 = q0 + (v0 - q0 * whole) * part - m0
        d1 = q1 + (v1 - q1 * whole) * part - m1
        d2 = q2 + (v2 - q2 * whole) * part - m2
        e0, e1, e2 = d0 * r0, d1 * r1, d2 * r2
        red[x] = e0 + (d0 - e0 * s0) * r0
        green[x] = e1 + (d1 - e1 * s1) * r1
        blue[x] = e2 + (d2 - e2 * s2) * r2


@numba.njit(cache=True, nogil=True, boundscheck=False, inline="always")
def _convert_row(
    source: Bytes,
    table: Table,
    constants: Floats,
    red: Values,
    green: Values,
    blue: Values,
) -> None:
    """Write the results for a row of pixels."""
    if constants.size:
        _normalize(source, constants, red, green, blue)
        return
    first, second, third = table[0], table[1], table[2]
    for x in range(source.size // 3):
        red[x] = first[source[3 * x]]
        green[x] = second[source[3 * x + 1]]
        blue[x] = third[source[3 * x + 2]]


@numba.njit(cache=True, nogil=True, boundscheck=False)
def _reverse(line: Values, target: Values) -> None:
    count = line.size
    for x in range(count - 1, -1, -1):  # Counting down vectorises.
        target[count - 1 - x] = line[x]


@numba.njit(cache=True, nogil=True, boundscheck=False, inline="always")
def _finish(
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
    height, width = image.shape[0], image.shape[1]
    rows, columns = out.shape[1], out.shape[2]
    # The columns of the window that lie inside the image, and where they are written.
    first = min(max(0, -left), columns)
    last = max(min(columns, width - left), first)
    count = last - first
    start = columns - last if mirrored else first
    line = np.empty((3, count), dtype=out.dtype)
    for y in range(rows):
        to = rows - 1 - y if upside_down else y
        if not 0 <= top + y < height or count == 0:
            for c in range(3):
                out[c, to, :] = table[c, fill[c]]
            continue
        # Slices, since an index that may be negative costs a test for each pixel.
        source = image[top + y].reshape(3 * width)[3 * (left + first) : 3 * (left + last)]
        end = start + count
        if mirrored:
            _convert_row(source, table, constants, line[0], line[1], line[2])
            for c in range(3):
                _reverse(line[c], out[c, to, start:end])
        else:
            red, green, blue = out[0, to, start:end], out[1, to, start:end], out[2, to, start:end]
            _convert_row(source, table, constants, red, green, blue)
        if count < columns:
            for c in range(3):
                out[c, to, :start] = table[c, fill[c]]
                out[c, to, end:] = table[c, fill[c]]


def _signatures(many: bool) -> list[Signature]:
    """The types that kernels are compiled for: floats and bytes as results; the common case first."""
    byte, real, flag, array = numba.uint8, numba.float32, numba.boolean, numba.types.Array
    offset = numba.int64[::1] if many else numba.int64
    flip = flag[::1] if many else flag
    indices = (numba.int64[::1],) if many else ()
    signatures = []
    results: tuple[tuple[numba.types.Type, Literal["C", "A"]], ...] = ((real, "C"), (real, "A"), (byte, "A"))
    for value, layout in results:
        # Dispatch on an exact match of types is three times faster than one with a conversion; only the
        # user's own arrays may be read-only.
        image = array(byte, 3 + many, "C", readonly=many)
        table, constants, out = array(value, 2, "C"), array(real, 2, "C"), array(value, 3 + many, layout)
        signatures.append(
            numba.void(image, *indices, offset, offset, flip, flip, byte[::1], table, constants, out)
        )
    return signatures


@numba.njit(_signatures(many=False), cache=True, nogil=True, boundscheck=False)
def _finish_one(
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
    _finish(image, top, left, mirrored, upside_down, fill, table, constants, out)


@numba.njit(_signatures(many=True), cache=True, nogil=True, boundscheck=False)
def _finish_many(
    images: Bytes,
    indices: NDArray[np.int64],
    tops: NDArray[np.int64],
    lefts: NDArray[np.int64],
    mirrored: NDArray[np.bool_],
    upside_down: NDArray[np.bool_],
    fill: Bytes,
    table: Table,
    constants: Floats,
    out: Values,
) -> None:
    for n in range(indices.size):
        image, to = images[indices[n]], out[n]
        _finish(image, tops[n], lefts[n], mirrored[n], upside_down[n], fill, table, constants, to)


# The kernels check nothing. Their signatures admit only arrays of the right dtype, number of axes and layout
# (numba raises a TypeError for others); lengths and indices are checked here, once a call.


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

    The image is a contiguous array of rows × columns × 3; `out` may have any strides, so its channels can
    also be last in memory.
    """
    if image.shape[2:] != (3,) or out.shape[0] != 3:
        raise ArgumentError(f"an image of shape {image.shape} cannot be written to an array of {out.shape}")
    _check_colours(fill, table, constants)
    _finish_one(image, top, left, mirrored, upside_down, fill, table, constants, out)


def finish_many(
    images: Bytes,
    indices: NDArray[np.int64],
    tops: NDArray[np.int64],
    lefts: NDArray[np.int64],
    mirrored: NDArray[np.bool_],
    upside_down: NDArray[np.bool_],
    fill: Bytes,
    table: Table,
    constants: Floats,
    out: Values,
) -> None:
    """The same for many images of one size in memory: `images[indices[n]]` is written to `out[n]`."""
    count = len(indices)
    if images.shape[3:] != (3,) or out.shape[:2] != (count, 3):
        raise ArgumentError(
            f"{count} images of shape {images.shape[1:]} cannot be written to an array of {out.shape}"
        )
    if not len(tops) == len(lefts) == len(mirrored) == len(upside_down) == count:
        raise ArgumentError(f"{count} images, but {len(tops)}, {len(lefts)}, … offsets and flips")
    if count and not (indices.min() >= 0 and indices.max() < len(images)):
        raise IndexError(
            f"indices from {indices.min()} to {indices.max()}, but there are {len(images)} images"
        )
    _check_colours(fill, table, constants)
    _finish_many(images, indices, tops, lefts, mirrored, upside_down, fill, table, constants, out)


def _check_colours(fill: Bytes, table: Table, constants: Floats) -> None:
    if fill.shape != (3,) or table.shape != (3, 256) or constants.shape not in ((0, 3), (3, 3)):
        raise ArgumentError(
            f"fill, table and constants have the shapes {fill.shape}, {table.shape}, {constants.shape}: "
            "expected (3,), (3, 256), and (0, 3) or (3, 3)"
        )


IDENTITY = np.ascontiguousarray(np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 256)))
USE_TABLE: Floats = np.empty((0, 3), dtype=np.float32)
_WIDTH = 75  # of the trial: enough for the vectorised part of the loop and for the rest


def normalization(table: Table, mean: Floats, std: Floats) -> Floats:
    """The constants to compute the table's values with, if the results are bit-identical; else `USE_TABLE`.

    Tried on every value at every position in a row: it takes a processor with fused multiply-add.
    """
    if table.dtype != np.float32:
        return USE_TABLE
    constants = np.stack([mean, std, np.float32(1) / std], axis=1)
    grey = ((np.arange(256)[:, None] + np.arange(_WIDTH)) % 256).astype(np.uint8)
    image = np.ascontiguousarray(np.broadcast_to(grey[..., None], (256, _WIDTH, 3)))
    looked_up, one, other = np.empty((3, 3, 256, _WIDTH), dtype=np.float32)
    channels_last = np.moveaxis(other.reshape(256, _WIDTH, 3), 2, 0)
    fill = np.zeros(3, dtype=np.uint8)
    finish(image, 0, 0, False, False, fill, table, USE_TABLE, looked_up)
    for computed in (one, channels_last):
        finish(image, 0, 0, False, False, fill, table, constants, computed)
        if computed.tobytes() != looked_up.tobytes():
            return USE_TABLE
    return constants
