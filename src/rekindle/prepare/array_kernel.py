"""The last steps of many images of one size in memory, in one call: crop, flip, convert, normalize.

What `fused_kernel.finish` does for one image, with the same tables and constants, and the same results to the
bit. Only `ArrayImages` needs this, so it is compiled only there.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba
from rekindle.errors import ArgumentError
from rekindle.prepare.fused_kernel import Bytes, Floats, Table, Values

check_compiled_code()


# A product and a sum may become one instruction, which rounds once: the result is exact only with that.
@numba.njit(nogil=True, boundscheck=False, fastmath={"contract"}, error_model="numpy")
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


@numba.njit(nogil=True, boundscheck=False, inline="always")
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


@numba.njit(nogil=True, boundscheck=False)
def _reverse(line: Values, target: Values) -> None:
    count = line.size
    for x in range(count - 1, -1, -1):  # Counting down vectorises.
        target[count - 1 - x] = line[x]


@numba.njit(nogil=True, boundscheck=False, inline="always")
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


def _signature(floats: bool, contiguous: bool) -> Signature:
    """The types of the arguments, for results of floats or bytes."""
    value = numba.float32 if floats else numba.uint8
    layout: Literal["C", "A"] = "C" if contiguous else "A"
    numbers, flags, array = numba.int64[::1], numba.boolean[::1], numba.types.Array
    images = array(numba.uint8, 4, "C", readonly=True)  # the user's own, which may be read-only
    table, constants, out = array(value, 2, "C"), array(numba.float32, 2, "C"), array(value, 4, layout)
    fill = numba.uint8[::1]
    return numba.void(images, numbers, numbers, numbers, flags, flags, fill, table, constants, out)


@kernel(_signature, boundscheck=False)
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


def compile_many(dtype: np.dtype[np.generic], contiguous: bool) -> None:
    """Compile the kernel for results of this kind, or load it: before workers, which would each do it."""
    _finish_many(dtype == np.float32, contiguous)


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
    """Write the window of `images[indices[n]]` from (top, left) to `out[n]`, for each n."""
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
    write = _finish_many(out.dtype == np.float32, out.flags.c_contiguous)
    write(images, indices, tops, lefts, mirrored, upside_down, fill, table, constants, out)


def _check_colours(fill: Bytes, table: Table, constants: Floats) -> None:
    if fill.shape != (3,) or table.shape != (3, 256) or constants.shape not in ((0, 3), (3, 3)):
        raise ArgumentError(
            f"fill, table and constants have the shapes {fill.shape}, {table.shape}, {constants.shape}: "
            "expected (3,), (3, 256), and (0, 3) or (3, 3)"
        )
