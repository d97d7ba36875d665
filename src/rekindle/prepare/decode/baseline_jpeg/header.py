"""What stands before the pixels of a JPEG: its size, its components, and the tables that they need.

Only what most photographs have is read: baseline, 8 bits, one scan of three components of YCbCr (chroma at
full size, at half the width, or at half of both) or of grey. Of anything else, and of whatever is not as it
should be, `read_header` says no: libjpeg-turbo decides then.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.code_tables import (
    Bytes,
    Steps,
    Tables,
    fill_steps,
    fill_table,
)
from rekindle.prepare.decode.baseline_jpeg.huffman import ZIGZAG
from rekindle.prepare.decode.baseline_jpeg.integers import I64

Fields: TypeAlias = NDArray[np.int64]
Quantizers: TypeAlias = NDArray[np.int16]  # 4 tables × 64, row by row

COMPONENTS: Final = 3  # at most


class Field(IntEnum):
    """Where `read_header` puts what it finds, and `units` what it needs.

    Those of components stand three times, one behind the other.
    """

    HEIGHT = 0
    WIDTH = 1
    ACROSS = 2  # how many blocks of the first component lie side by side in a unit of the scan
    DOWN = 3
    PIXELS_AT = 4  # where the entropy-coded data begins
    QUANTIZERS = 5  # the number of each component's table
    DC = 8
    AC = 11
    TOP = 14  # the units that are needed: the first and, not one of them, the last
    BOTTOM = 15
    LEFT = 16
    RIGHT = 17
    PLANES = 18  # where the samples of each component are kept
    STRIDES = 21  # how many a row
    COMPONENTS = 24  # one, if the image is grey, or three
    LAST_DC = 25  # of each component
    SIZE = 28


@part_of_kernels()
def _number(data: Bytes, at: int) -> int:
    return I64(data[at]) << 8 | I64(data[at + 1])


@part_of_kernels()
def read_header(data: Bytes, fields: Fields, tables: Tables, steps: Steps, quantizers: Quantizers) -> bool:
    """Read all up to the pixels; False if this is a JPEG of another kind, or damaged."""
    at = 2
    framed = False
    present = 0  # bit n: the table n of quantizers; 4 + n: of DC codes; 8 + n: of AC codes
    while at + 4 <= data.size:
        if data[at] != 0xFF:
            return False
        marker, length = data[at + 1], _number(data, at + 2)
        begin, end = at + 4, at + 2 + length
        if length < 2 or end > data.size:
            return False
        if marker == 0xDA:
            fields[Field.PIXELS_AT] = end
            return framed and _read_scan(data, begin, end, present, fields)
        if marker in (0xC0, 0xC1):
            if framed or not _read_frame(data, begin, end, fields):
                return False
            framed = True
        elif marker == 0xDB:
            found = _read_quantizers(data, begin, end, quantizers)
            if found == 0:
                return False
            present |= found
        elif marker == 0xC4:
            found = _read_codes(data, begin, end, tables, steps)
            if found == 0:
                return False
            present |= found
        elif marker == 0xEE:
            # Adobe's: 1 is YCbCr; others are none.
            if length >= 14 and data[begin] == 0x41 and data[begin + 1] == 0x64 and data[begin + 11] != 1:
                return False
        elif not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            return False
        at = end
    return False


@part_of_kernels()
def _read_frame(data: Bytes, at: int, end: int, fields: Fields) -> bool:
    if end - at < 9 or data[at] != 8 or data[at + 5] not in (1, COMPONENTS):
        return False
    components = fields[Field.COMPONENTS] = I64(data[at + 5])
    if end - at != 6 + 3 * components:
        return False
    fields[Field.HEIGHT], fields[Field.WIDTH] = _number(data, at + 1), _number(data, at + 3)
    for n in range(components):
        sampling, table = data[at + 7 + 3 * n], data[at + 8 + 3 * n]
        if table > 3:
            return False
        fields[Field.QUANTIZERS + n] = table
        if n > 0:
            if data[at + 6 + 3 * n] != n + 1 or sampling != 0x11:
                return False
        elif data[at + 6] != 1 or sampling not in (0x11, 0x21, 0x22):
            return False
        elif components == 1:  # There is nothing that its samples could be more than.
            fields[Field.ACROSS], fields[Field.DOWN] = 1, 1
        else:
            fields[Field.ACROSS], fields[Field.DOWN] = sampling >> 4, sampling & 15
    # libjpeg does not interpolate the chroma of images that are narrower.
    return bool(fields[Field.HEIGHT] > 0 and fields[Field.WIDTH] >= 8)


@part_of_kernels()
def _read_quantizers(data: Bytes, at: int, end: int, quantizers: Quantizers) -> int:
    found = 0
    while at + 65 <= end:
        number = I64(data[at])
        if number > 3:  # or 16 bits each
            return 0
        for n in range(64):
            quantizers[number, ZIGZAG[n]] = data[at + 1 + n]
        found |= 1 << number
        at += 65
    return found if at == end else 0


@part_of_kernels()
def _read_codes(data: Bytes, at: int, end: int, tables: Tables, steps: Steps) -> int:
    found = 0
    while at + 17 <= end:
        kind, number = I64(data[at]) >> 4, I64(data[at]) & 15
        symbols = 0
        for n in range(16):
            symbols += I64(data[at + 1 + n])
        first = at + 17
        at = first + symbols
        if kind > 1 or number > 3 or symbols > 256 or at > end:
            return 0
        if not fill_table(data[first - 16 : first], data[first:at], kind, tables[4 * kind + number]):
            return 0
        if kind:
            fill_steps(tables[4 + number], symbols, steps[4], steps[number])
        found |= 16 << (4 * kind + number)
    return found if at == end else 0


@part_of_kernels()
def _read_scan(data: Bytes, at: int, end: int, present: int, fields: Fields) -> bool:
    components = fields[Field.COMPONENTS]
    if end - at != 4 + 2 * components or data[at] != components:
        return False
    for n in range(components):
        dc, ac = I64(data[at + 2 + 2 * n]) >> 4, I64(data[at + 2 + 2 * n]) & 15
        if data[at + 1 + 2 * n] != n + 1 or dc > 3 or ac > 3:
            return False
        fields[Field.DC + n], fields[Field.AC + n] = dc, 4 + ac
        needed = 1 << fields[Field.QUANTIZERS + n] | 16 << dc | 256 << ac
        if present & needed != needed:
            return False
    return bool(data[end - 3] == 0 and data[end - 2] == 63 and data[end - 1] == 0)
