"""The units that a scan consists of, row by row: read, and those that are needed transformed to samples.

A unit is as large as a block of the component with the fewest samples, and has blocks of all: 8 × 8 pixels,
or 16 × 8, or 16 × 16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.header import Field, Fields, Quantizers
from rekindle.prepare.decode.baseline_jpeg.huffman import (
    DAMAGED,
    END_OF_BLOCK,
    ZIGZAG,
    Bytes,
    Coefficients,
    Tables,
    read_block,
)
from rekindle.prepare.decode.baseline_jpeg.integers import I64, U64
from rekindle.prepare.decode.baseline_jpeg.inverse_dct import write_pixels

MOST_BLOCKS: Final = 6  # of a unit
_LARGEST_DC: Final = 2048
_ONLY_DC: Final = 1 + END_OF_BLOCK  # how far a block without other coefficients goes
_EXTREMES: Final = 8192  # of what `write_pixels` takes
_write = cast("Callable[[int, int, int, int], bool]", write_pixels)  # without what numba adds


@part_of_kernels()
def find_units(fields: Fields, top: int, left: int, height: int, width: int) -> int:
    """Find the units that a box of pixels needs, and a place for each component; returns how many samples."""
    across, down = fields[Field.ACROSS], fields[Field.DOWN]
    # Where chroma is interpolated, a pixel needs the sample beside it, too: of two columns or rows.
    more = 2 if across > 1 else 0
    fields[Field.TOP] = max(top - more, 0) // (8 * down)
    fields[Field.LEFT] = max(left - more, 0) // (8 * across)
    fields[Field.BOTTOM] = (min(top + height + more, fields[Field.HEIGHT]) - 1) // (8 * down) + 1
    fields[Field.RIGHT] = (min(left + width + more, fields[Field.WIDTH]) - 1) // (8 * across) + 1
    tall, wide = fields[Field.BOTTOM] - fields[Field.TOP], fields[Field.RIGHT] - fields[Field.LEFT]
    used = 0
    for n in range(fields[Field.COMPONENTS]):
        stride = 8 * wide * (across if n == 0 else 1)
        fields[Field.PLANES + n], fields[Field.STRIDES + n] = used, stride
        used += 8 * tall * (down if n == 0 else 1) * stride
    return used


@part_of_kernels()
def sample_at(fields: Fields, n: int, y: int, x: int) -> int:
    """Where the sample of a component is kept."""
    down, across = (fields[Field.DOWN], fields[Field.ACROSS]) if n == 0 else (1, 1)
    y -= 8 * down * fields[Field.TOP]
    at: int = fields[Field.PLANES + n] + y * fields[Field.STRIDES + n] + x - 8 * across * fields[Field.LEFT]
    return at


@part_of_kernels()
def read_planes(
    coded: Bytes,
    size: int,
    fields: Fields,
    tables: Tables,
    quantizers: Quantizers,
    blocks: Coefficients,
    ends: NDArray[np.int16],
    planes: Bytes,
) -> bool:
    """Decode the samples of all units that are needed; False if the data is damaged."""
    across = -(-fields[Field.WIDTH] // (8 * fields[Field.ACROSS]))
    down = -(-fields[Field.HEIGHT] // (8 * fields[Field.DOWN]))
    left, right = fields[Field.LEFT], fields[Field.RIGHT]
    of_first = fields[Field.ACROSS] * fields[Field.DOWN]
    number = of_first + fields[Field.COMPONENTS] - 1
    at, ahead, known = U64(0), U64(0), U64(0)
    dc0 = dc1 = dc2 = 0
    for row in range(fields[Field.BOTTOM]):
        kept_row = row >= fields[Field.TOP]
        if kept_row:
            blocks[: 64 * number * (right - left)] = 0
        to = 0
        for unit in range(across):
            kept = kept_row & (left <= unit < right)
            for one in range(number):
                n = max(one - of_first + 1, 0)
                if at > U64(size + 8):
                    return False
                dc_table, ac_table = tables[fields[Field.DC + n]], tables[fields[Field.AC + n]]
                block = blocks[64 * to : 64 * to + 64]
                if kept:
                    at, ahead, known, difference, end = read_block(
                        coded, at, ahead, known, dc_table, ac_table, ZIGZAG, block, True
                    )
                else:
                    at, ahead, known, difference, end = read_block(
                        coded, at, ahead, known, dc_table, ac_table, ZIGZAG, block, False
                    )
                if end == DAMAGED:
                    return False
                if n == 0:
                    dc0 += difference
                    dc = dc0
                elif n == 1:
                    dc1 += difference
                    dc = dc1
                else:
                    dc2 += difference
                    dc = dc2
                if not -_LARGEST_DC <= dc < _LARGEST_DC:
                    return False
                if kept:
                    block[0] = dc
                    ends[to] = end
                    to += 1
        if kept_row and not _transform(blocks, ends, row - fields[Field.TOP], fields, quantizers, planes):
            return False
    left_over = 8 * size - I64(U64(8) * at - known)
    return left_over >= 0 and (fields[Field.BOTTOM] < down or left_over < 8)


@part_of_kernels()
def _transform(
    blocks: Coefficients,
    ends: NDArray[np.int16],
    row: int,
    fields: Fields,
    quantizers: Quantizers,
    planes: Bytes,
) -> bool:
    """Write the samples of a row of units; False if coefficients are larger than those of any photograph."""
    across, down = fields[Field.ACROSS], fields[Field.DOWN]
    of_first = across * down
    number = of_first + fields[Field.COMPONENTS] - 1
    for one in range(number):
        n = max(one - of_first + 1, 0)
        wide, tall, inside = (across, down, one) if n == 0 else (1, 1, 0)
        stride = fields[Field.STRIDES + n]
        quantizer = quantizers[fields[Field.QUANTIZERS + n]]
        to = fields[Field.PLANES + n] + 8 * ((row * tall + inside // wide) * stride + inside % wide)
        for unit in range(fields[Field.RIGHT] - fields[Field.LEFT]):
            block = unit * number + one
            if ends[block] == _ONLY_DC:
                dc = I64(blocks[64 * block]) * I64(quantizer[0])
                if not -_EXTREMES <= dc < _EXTREMES:
                    return False
                sample = min(max(((dc + 4) >> 3) + 128, 0), 255)
                line = to
                for _ in range(8):
                    planes[line : line + 8] = sample
                    line += stride
            elif not _write(
                U64(blocks.ctypes.data) + U64(128 * block),
                U64(quantizer.ctypes.data),
                U64(planes.ctypes.data) + U64(to),
                U64(stride),
            ):
                return False
            to += 8 * wide
    return True
