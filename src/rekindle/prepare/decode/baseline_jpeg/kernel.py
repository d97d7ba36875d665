"""A box of a baseline JPEG's pixels, decoded in one call, without the GIL.

All data down to the last row of the box has to be read, since each code's place follows from the one before.
But only blocks that touch the box are transformed, and only its pixels are converted. Pixels are those of
libjpeg-turbo, which no wheel offers with a box: for whatever is not plain and whole, it is asked instead.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import NO_ALLOCATION, check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba, part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.code_tables import ENTRIES, STEPS, Bytes, Steps, Tables
from rekindle.prepare.decode.baseline_jpeg.colour import Sums, add_samples, repeat_grey, widen, write_rgb
from rekindle.prepare.decode.baseline_jpeg.header import COMPONENTS, Field, Fields, Quantizers, read_header
from rekindle.prepare.decode.baseline_jpeg.huffman import PADDING
from rekindle.prepare.decode.baseline_jpeg.units import (
    MOST_BLOCKS,
    Blocks,
    find_units,
    read_planes,
    sample_at,
)
from rekindle.prepare.decode.baseline_jpeg.unstuff import unstuff

check_compiled_code()

_AROUND: Final = 40  # samples that a box may need beside it, and to fill whole units


class Scratch(NamedTuple):
    """Memory that the kernel needs."""

    coded: Bytes
    planes: Bytes
    tables: Tables
    steps: Steps
    quantizers: Quantizers
    blocks: Blocks
    ends: NDArray[np.int16]  # how far each of these goes
    sums: Sums
    chroma: Bytes  # a row of each, interpolated
    fields: Fields


def samples_of(height: int, width: int) -> int:
    """How many samples a box of this size needs at most, with what is around it."""
    return COMPONENTS * (height + _AROUND) * (width + _AROUND)


def scratch_memory(nbytes: int, samples: int, width: int) -> Scratch:
    """Scratch memory for a JPEG of so many bytes, or fewer, and a box of so many samples and this width."""
    width += _AROUND
    return Scratch(
        np.empty(nbytes + PADDING, dtype=np.uint8),
        np.empty(samples, dtype=np.uint8),
        np.empty((8, ENTRIES), dtype=np.uint32),
        np.empty((5, STEPS), dtype=np.uint32),
        np.empty((4, 64), dtype=np.int16),
        np.empty((MOST_BLOCKS, 64), dtype=np.int16),
        np.empty(MOST_BLOCKS, dtype=np.int16),
        np.empty(width, dtype=np.int16),
        np.empty(2 * width, dtype=np.uint8),
        np.empty(Field.SIZE, dtype=np.int64),
    )


def _signature() -> Signature:
    number, byte, short = numba.int64, numba.uint8, numba.int16
    data = numba.types.Array(byte, 1, "C", readonly=True)
    tables = numba.uint32[:, ::1], numba.uint32[:, ::1], short[:, ::1]
    scratch = byte[::1], byte[::1], *tables, short[:, ::1], short[::1], short[::1], byte[::1], number[::1]
    return numba.boolean(data, *[number] * 6, *scratch, byte[::1])


@kernel(_signature, boundscheck=False, error_model="numpy", **NO_ALLOCATION)
def decode_box(
    data: Bytes,
    image_height: int,
    image_width: int,
    top: int,
    left: int,
    height: int,
    width: int,
    coded: Bytes,
    planes: Bytes,
    tables: Tables,
    steps: Steps,
    quantizers: Quantizers,
    blocks: Blocks,
    ends: NDArray[np.int16],
    sums: Sums,
    chroma: Bytes,
    fields: Fields,
    out: Bytes,
) -> bool:
    """Write the pixels of the box, row by row; False if another decoder has to."""
    if (
        tables.shape != (8, ENTRIES)
        or steps.shape != (5, STEPS)
        or quantizers.shape != (4, 64)
        or fields.size != Field.SIZE
        or out.size != 3 * height * width
        or not (0 <= top < top + height <= image_height and 0 <= left < left + width <= image_width)
        or not read_header(data, fields, tables, steps, quantizers)
        or fields[Field.HEIGHT] != image_height
        or fields[Field.WIDTH] != image_width
        or coded.size < data.size - fields[Field.PIXELS_AT] + PADDING
        or planes.size < find_units(fields, top, left, height, width)
        or ends.size < MOST_BLOCKS
        or blocks.shape != (MOST_BLOCKS, 64)
        or sums.size < width + 4
        or chroma.size < 2 * (width + 4)
    ):
        return False
    size, marker_at = unstuff(data, fields[Field.PIXELS_AT], coded)
    if marker_at != data.size - 2 or data[marker_at + 1] != 0xD9:
        return False
    coded[size : size + PADDING] = 0
    if not read_planes(coded, size, fields, tables, steps, quantizers, blocks, ends, planes):
        return False
    half, skipped = chroma.size // 2, left & 1
    for y in range(top, top + height):
        at = sample_at(fields, 0, y, left)
        luma = planes[at : at + width]
        row = out[3 * width * (y - top) : 3 * width * (y - top + 1)]
        if fields[Field.COMPONENTS] == 1:
            repeat_grey(luma, row)
            continue
        if fields[Field.ACROSS] == 1:
            at = sample_at(fields, 1, y, left)
            blue = planes[at : at + width]
            at = sample_at(fields, 2, y, left)
            red = planes[at : at + width]
        else:
            _interpolate(planes, fields, 1, y, left, width, sums, chroma[:half])
            _interpolate(planes, fields, 2, y, left, width, sums, chroma[half:])
            blue = chroma[skipped : skipped + width]
            red = chroma[half + skipped : half + skipped + width]
        write_rgb(luma, blue, red, row)
    return True


@part_of_kernels()
def _interpolate(
    planes: Bytes, fields: Fields, n: int, y: int, left: int, width: int, sums: Sums, out: Bytes
) -> None:
    """Write the chroma of a row of pixels, from an even column on."""
    first, last = left // 2, (left + width - 1) // 2
    begin, end = max(first - 1, 0), min(last + 1, (fields[Field.WIDTH] + 1) // 2 - 1)
    count, needed = end - begin + 1, last - first + 3
    skipped = begin - (first - 1)
    inner = sums[skipped : skipped + count]
    if fields[Field.DOWN] == 1:
        at = sample_at(fields, n, y, begin)
        add_samples(planes[at : at + count], 1, planes[at : at + count], 0, inner)
    else:
        row = y // 2
        at = sample_at(fields, n, row, begin)
        near = planes[at : at + count]
        row = min(max(row + (1 if y & 1 else -1), 0), (fields[Field.HEIGHT] + 1) // 2 - 1)
        at = sample_at(fields, n, row, begin)
        add_samples(near, 3, planes[at : at + count], 1, inner)
    # Beside the first and the last sample of an image, there are more like these.
    if skipped:
        sums[0] = sums[1]
    if skipped + count < needed:
        sums[needed - 1] = sums[needed - 2]
    if fields[Field.DOWN] == 1:
        widen(sums[:needed], 1, 2, 2, out)
    else:
        widen(sums[:needed], 8, 7, 4, out)
