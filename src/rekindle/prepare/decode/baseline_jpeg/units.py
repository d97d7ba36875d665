"""The units that a scan consists of, row by row: read, and those that are needed transformed to samples.

A unit is as large as a block of the component with the fewest samples, and has blocks of all: 8 × 8 pixels,
or 16 × 8, or 16 × 16.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.code_tables import END_OF_BLOCK, Bytes, Steps, Tables
from rekindle.prepare.decode.baseline_jpeg.header import COMPONENTS, Field, Fields, Quantizers
from rekindle.prepare.decode.baseline_jpeg.huffman import DAMAGED, ZIGZAG, read_block
from rekindle.prepare.decode.baseline_jpeg.integers import I64, U64
from rekindle.prepare.decode.baseline_jpeg.inverse_dct import write_pixels, write_smooth_pixels

Blocks: TypeAlias = NDArray[np.int16]  # MOST_BLOCKS × 64

MOST_BLOCKS: Final = 6  # of a unit
_LARGEST_DC: Final = 2048
_ONLY_DC: Final = END_OF_BLOCK  # how far a block without other coefficients goes
_SMOOTH: Final = (
    END_OF_BLOCK + 9
)  # how far one goes whose others are among the first four of a row and column
_EXTREMES: Final = 8192  # of what `write_pixels` takes


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
    steps: Steps,
    quantizers: Quantizers,
    blocks: Blocks,
    ends: NDArray[np.int16],
    planes: Bytes,
) -> bool:
    """Decode the samples of all units that are needed; False if the data is damaged."""
    across = -(-fields[Field.WIDTH] // (8 * fields[Field.ACROSS]))
    down = -(-fields[Field.HEIGHT] // (8 * fields[Field.DOWN]))
    left, right = fields[Field.LEFT], fields[Field.RIGHT]
    of_first = U64(fields[Field.ACROSS] * fields[Field.DOWN])
    number = of_first + U64(fields[Field.COMPONENTS] - 1)
    at, ahead, known = U64(0), U64(0), U64(0)
    fields[Field.LAST_DC : Field.LAST_DC + COMPONENTS] = 0
    for row in range(fields[Field.BOTTOM]):
        kept_row = row >= fields[Field.TOP]
        for unit in range(across):
            kept = kept_row & (left <= unit < right)
            for one in range(number):
                n = U64(0) if one < of_first else one - of_first + U64(1)
                if at > U64(size + 8):
                    return False
                dc_table, ac = tables[U64(fields[U64(Field.DC) + n])], U64(fields[U64(Field.AC) + n])
                ac_table, ac_steps = tables[ac], steps[ac - U64(4)]
                block = blocks[one]
                if kept:
                    for place in range(U64(64)):
                        block[place] = 0
                    at, ahead, known, difference, end = read_block(
                        coded, at, ahead, known, dc_table, ac_table, ac_steps, ZIGZAG, block, True
                    )
                else:
                    at, ahead, known, difference, end = read_block(
                        coded, at, ahead, known, dc_table, ac_table, ac_steps, ZIGZAG, block, False
                    )
                dc = fields[U64(Field.LAST_DC) + n] + difference
                fields[U64(Field.LAST_DC) + n] = dc
                if end == DAMAGED or not -_LARGEST_DC <= dc < _LARGEST_DC:
                    return False
                if kept:
                    block[U64(0)] = dc
                    ends[one] = end
            if kept and not _transform(
                blocks, ends, row - fields[Field.TOP], unit - left, fields, quantizers, planes
            ):
                return False
    left_over = 8 * size - I64(U64(8) * at - (known & U64(63)))
    return left_over >= 0 and (fields[Field.BOTTOM] < down or left_over < 8)


@part_of_kernels(forceinline=True)
def _transform(
    blocks: Blocks,
    ends: NDArray[np.int16],
    row: int,
    unit: int,
    fields: Fields,
    quantizers: Quantizers,
    planes: Bytes,
) -> bool:
    """Write the samples of a unit; False if coefficients are larger than those of any photograph."""
    across, down = U64(fields[Field.ACROSS]), U64(fields[Field.DOWN])
    of_first = across * down
    for one in range(of_first + U64(fields[Field.COMPONENTS] - 1)):
        n, y, x = one - of_first + U64(1), U64(row), U64(unit)
        if one < of_first:
            n, y, x = U64(0), y * down + (one >> (across - U64(1))), x * across + (one & (across - U64(1)))
        stride = U64(fields[U64(Field.STRIDES) + n])
        quantizer = quantizers[U64(fields[U64(Field.QUANTIZERS) + n])]
        to = U64(fields[U64(Field.PLANES) + n]) + U64(8) * (y * stride + x)
        if ends[one] == _ONLY_DC:
            dc = I64(blocks[one, U64(0)]) * I64(quantizer[U64(0)])
            if not -_EXTREMES <= dc < _EXTREMES:
                return False
            sample = np.uint8(min(max(((dc + 4) >> 3) + 128, 0), 255))
            for _ in range(8):
                for x in range(U64(8)):
                    planes[to + x] = sample
                to += stride
            continue
        from_block = U64(blocks.ctypes.data) + U64(128) * one
        from_quantizer, first = U64(quantizer.ctypes.data), U64(planes.ctypes.data) + to
        if _ONLY_DC < ends[one] <= _SMOOTH:
            inside = write_smooth_pixels(from_block, from_quantizer, first, stride)
        else:
            inside = write_pixels(from_block, from_quantizer, first, stride)
        if not inside:
            return False
    return True
