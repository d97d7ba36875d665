"""The compiled part of `nearest_warp`: where each pixel comes from, for a row at a time, and then its bytes.

OpenCV calculates coordinates in float32. Whether a product and a sum are rounded once or twice decides where
pixels come from that lie between two; so that is said here, and not left to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic
from numpy.typing import NDArray

from rekindle.core.compiled_code import NO_ALLOCATION, check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba, part_of_kernels

check_compiled_code()

_Generate: TypeAlias = Callable[[object, ir.IRBuilder, object, Sequence[ir.Value]], ir.Value]
_BYTE = ir.IntType(8)
_ZERO, _THREE, _OUTSIDE = np.float32(0), np.float32(3), np.float32(-1)


@intrinsic
def _fuse(typing: object, a: object, b: object, c: object) -> tuple[object, _Generate]:
    """One number times another, plus a third, rounded once."""
    del typing
    if (a, b, c) != (types.float32,) * 3:
        raise TypeError("three numbers of float32")

    def generate(_: object, builder: ir.IRBuilder, __: object, arguments: Sequence[ir.Value]) -> ir.Value:
        return builder.fma(*arguments)

    return types.float32(*[types.float32] * 3), generate


@intrinsic
def _copy_all(typing: object, to: object, source: object, count: object) -> tuple[object, _Generate]:
    """Copy so many bytes from one address to another."""
    del typing
    if (to, source, count) != (types.uint64,) * 3:
        raise TypeError("two addresses and a number of bytes, as uint64")

    def generate(_: object, builder: ir.IRBuilder, __: object, arguments: Sequence[ir.Value]) -> ir.Value:
        new, old = (builder.inttoptr(address, _BYTE.as_pointer()) for address in arguments[:2])
        raw_memcpy(builder, new, old, arguments[2], 1)  # type: ignore[no-untyped-call]
        return ir.Constant(ir.IntType(1), 1)

    return types.boolean(*[types.uint64] * 3), generate


# Without what numba adds.
_fused = cast("Callable[[np.float32, np.float32, np.float32], np.float32]", _fuse)
_copy_bytes = cast("Callable[[np.uint64, np.uint64, np.uint64], bool]", _copy_all)


@part_of_kernels(error_model="numpy")
def _find_places(
    matrix: NDArray[np.float32], y: np.float32, height: int, width: int, places: NDArray[np.int32]
) -> None:
    """Where each pixel of a row begins in the image; −1 for those outside."""
    step_x, step_y = matrix[0], matrix[3]
    start_x, start_y = y * matrix[1] + matrix[2], y * matrix[4] + matrix[5]  # each rounded twice
    last_x, last_y, stride = np.float32(width - 1), np.float32(height - 1), np.float32(3 * width)
    for x in range(len(places)):
        column = np.float32(np.int32(x))
        from_x, from_y = np.rint(_fused(column, step_x, start_x)), np.rint(_fused(column, step_y, start_y))
        inside = (from_x >= _ZERO) & (from_x <= last_x) & (from_y >= _ZERO) & (from_y <= last_y)
        # An integer, since it is less than 2 to the power of 24.
        places[x] = np.int32(from_y * stride + from_x * _THREE if inside else _OUTSIDE)


@part_of_kernels()
def _copy_pixels(image: np.uint64, last: int, places: NDArray[np.int32], out: np.uint64) -> None:
    """Copy the pixels at these places from one address to another; that at `last` is the image's last one."""
    first, apart, has_last = places[0], np.int32(0), np.int32(0)
    for x in range(len(places)):
        apart |= places[x] - first - np.int32(3) * np.int32(x)
        has_last |= np.int32(places[x] == last)
    if apart == 0:  # They lie one beside the other.
        _copy_bytes(out, image + np.uint64(first), np.uint64(3 * len(places)))
    elif has_last:
        for place in places:
            _copy_bytes(out, image + np.uint64(place), np.uint64(3))
            out += np.uint64(3)
    else:  # A word is a pixel and a byte of the next one, which is written after it.
        for x in range(len(places) - 1):
            _copy_bytes(out, image + np.uint64(places[x]), np.uint64(4))
            out += np.uint64(3)
        _copy_bytes(out, image + np.uint64(places[-1]), np.uint64(3))


def _signature() -> Signature:
    number, byte = numba.int64, numba.uint8
    pixels = types.Array(byte, 1, "C", readonly=True)
    matrix = types.Array(numba.float32, 1, "C", readonly=True)
    return numba.void(pixels, number, number, matrix, pixels, numba.int32[::1], byte[::1])


@kernel(_signature, boundscheck=False, error_model="numpy", **NO_ALLOCATION)
def warp(
    pixels: NDArray[np.uint8],
    height: int,
    width: int,
    matrix: NDArray[np.float32],
    background: NDArray[np.uint8],
    places: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Write the image of `height` × `width` pixels, warped, in rows of `len(places)` pixels.

    A row of `background` is what lies outside of the image.
    """
    image, outside = np.uint64(pixels.ctypes.data), np.uint64(background.ctypes.data)
    to = np.uint64(out.ctypes.data)
    columns, last = len(places), 3 * (width * height - 1)
    for y in range(len(out) // (3 * columns)):
        _find_places(matrix, np.float32(y), height, width, places)
        # What lies inside is one piece of the row, since both coordinates only grow or only shrink.
        low, high = 0, columns
        while low < high and places[low] < 0:
            low += 1
        while high > low and places[high - 1] < 0:
            high -= 1
        _copy_bytes(to, outside, np.uint64(3 * low))
        if low < high:
            _copy_pixels(image, last, places[low:high], to + np.uint64(3 * low))
        _copy_bytes(to + np.uint64(3 * high), outside, np.uint64(3 * (columns - high)))
        to += np.uint64(3 * columns)
