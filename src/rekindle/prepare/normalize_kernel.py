"""Pixels, converted and normalized: written as planes, or to an array of any strides."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rekindle.core.compiled_code import NO_ALLOCATION, check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba
from rekindle.prepare.fused_kernel import Bytes, Floats
from rekindle.prepare.normalized_values import (
    AT_ONCE,
    LINE,
    PAST_CACHES,
    normalized,
    wait_for_stores,
    write_mirrored,
    write_mirrored_past_caches,
    write_pixels,
    write_pixels_past_caches,
)

check_compiled_code()

# The kernels check nothing. Their signatures admit only arrays of the right dtype, number of axes and layout
# (numba raises a TypeError for others); lengths and offsets are checked by who calls them. Pixels are bytes,
# of which rows begin at `start`, `stride` apart; the constants are three numbers for each channel.


def _signature(layout: Literal["C", "A"], *more: numba.types.Type) -> Signature:
    number, value = numba.int64, numba.float32
    pixels = numba.types.Array(numba.uint8, 1, "C", readonly=True)
    constants, out = numba.types.Array(value, 2, "C"), numba.types.Array(value, 3, layout)
    return numba.void(pixels, number, number, constants, out, *more)


@kernel(lambda: _signature("C", numba.boolean), error_model="numpy", boundscheck=False, **NO_ALLOCATION)
def write_planes(
    pixels: Bytes, start: int, stride: int, constants: Floats, out: Floats, mirrored: bool
) -> None:
    """Write channels × rows × columns, without gaps."""
    rows, columns = out.shape[1], out.shape[2]
    numbers = (
        constants[0, 0], constants[0, 1], constants[0, 2],
        constants[1, 0], constants[1, 1], constants[1, 2],
        constants[2, 0], constants[2, 1], constants[2, 2],
    )  # fmt: skip
    many = columns // AT_ONCE
    plane, pixel_bytes = np.uint64(out.itemsize * rows * columns), np.uint64(3 * AT_ONCE)
    past_caches = 3 * plane >= np.uint64(PAST_CACHES) and columns % AT_ONCE == 0
    past_caches &= np.uint64(out.ctypes.data) % LINE == np.uint64(0) and plane % LINE == np.uint64(0)
    for y in range(rows):
        read = np.uint64(pixels.ctypes.data) + np.uint64(start + y * stride)
        red = np.uint64(out.ctypes.data) + np.uint64(out.itemsize * columns * y)
        # What is mirrored is written from the end of the row on.
        if mirrored:
            red += np.uint64(out.itemsize * columns)
        for _ in range(many):
            if mirrored:
                red -= LINE
            green, blue = red + plane, red + plane + plane
            if mirrored and past_caches:
                write_mirrored_past_caches(read, red, green, blue, numbers)
            elif mirrored:
                write_mirrored(read, red, green, blue, numbers)
            elif past_caches:
                write_pixels_past_caches(read, red, green, blue, numbers)
            else:
                write_pixels(read, red, green, blue, numbers)
            read += pixel_bytes
            if not mirrored:
                red += LINE
        source = pixels[start + y * stride : start + y * stride + 3 * columns]
        for x in range(many * AT_ONCE, columns):
            to = columns - 1 - x if mirrored else x
            for c in range(3):
                mean, std, reciprocal = constants[c, 0], constants[c, 1], constants[c, 2]
                out[c, y, to] = normalized(source[3 * x + c], mean, std, reciprocal)
    wait_for_stores()


@kernel(lambda: _signature("A"), error_model="numpy", boundscheck=False, **NO_ALLOCATION)
def write_strided(pixels: Bytes, start: int, stride: int, constants: Floats, out: Floats) -> None:
    """Write channels × rows × columns, of any strides."""
    m0, m1, m2 = constants[0, 0], constants[1, 0], constants[2, 0]  # means
    s0, s1, s2 = constants[0, 1], constants[1, 1], constants[2, 1]  # standard deviations
    r0, r1, r2 = constants[0, 2], constants[1, 2], constants[2, 2]  # their reciprocals
    for y in range(out.shape[1]):
        # Slices, since an index that may be negative costs a test for each pixel.
        source = pixels[start + y * stride : start + y * stride + 3 * out.shape[2]]
        red, green, blue = out[0, y], out[1, y], out[2, y]
        for x in range(out.shape[2]):
            red[x] = normalized(source[3 * x], m0, s0, r0)
            green[x] = normalized(source[3 * x + 1], m1, s1, r1)
            blue[x] = normalized(source[3 * x + 2], m2, s2, r2)
