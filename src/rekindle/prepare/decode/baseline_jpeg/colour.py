"""From planes of YCbCr to rows of RGB: as libjpeg does it, to the bit.

Chroma of half the size is interpolated: a pixel is three parts of the nearest sample and one of the next
("fancy upsampling"), rounded up and down in turns. Each row of samples has one more on either side.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.code_tables import Bytes
from rekindle.prepare.decode.baseline_jpeg.integers import I16, I32, U8, U64

Sums: TypeAlias = NDArray[np.int16]


@part_of_kernels()
def add_samples(near: Bytes, near_parts: int, far: Bytes, far_parts: int, sums: Sums) -> None:
    """So many parts of one row, and so many of another."""
    for x in range(sums.size):
        sums[x] = I16(I16(near[x]) * I16(near_parts)) + I16(I16(far[x]) * I16(far_parts))


@part_of_kernels()
def widen(sums: Sums, low: int, high: int, bits: int, out: Bytes) -> None:
    """Twice as many samples as there are between the first and the last one."""
    for x in range(U64(sums.size - 2)):
        nearest = I16(sums[x + U64(1)] * I16(3))
        out[U64(2) * x] = U8(I16(nearest + sums[x] + I16(low)) >> I16(bits))
        out[U64(2) * x + U64(1)] = U8(I16(nearest + sums[x + U64(2)] + I16(high)) >> I16(bits))


@part_of_kernels()
def _clip(value: int) -> int:
    return U8(min(max(value, I32(0)), I32(255)))


@part_of_kernels()
def write_rgb(luma: Bytes, blue: Bytes, red: Bytes, out: Bytes) -> None:
    """Convert a row; fixed point with 16 bits."""
    half = I32(1 << 15)
    for x in range(U64(luma.size)):
        y, cb, cr = I32(luma[x]), I32(I32(blue[x]) - I32(128)), I32(I32(red[x]) - I32(128))
        r = I32(y + I32(I32(I32(cr * I32(91881)) + half) >> I32(16)))
        g = I32(y + I32(I32(I32(I32(cb * I32(-22554)) + I32(cr * I32(-46802))) + half) >> I32(16)))
        b = I32(y + I32(I32(I32(cb * I32(116130)) + half) >> I32(16)))
        to = U64(3) * x
        out[to] = _clip(r)
        out[to + U64(1)] = _clip(g)
        out[to + U64(2)] = _clip(b)


@part_of_kernels()
def repeat_grey(luma: Bytes, out: Bytes) -> None:
    """The same for a row that is grey."""
    for x in range(U64(luma.size)):
        for n in range(U64(3)):
            out[U64(3) * x + n] = luma[x]
