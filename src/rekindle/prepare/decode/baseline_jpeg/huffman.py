"""Huffman codes of baseline JPEGs: tables to look them up, and the coefficients of one block.

`unstuff` leaves out the zero bytes that follow each 0xFF of the entropy-coded data, so that eight bytes can
be read at a time. `BITS` at a time are looked up; the few longer codes are searched for. An entry of a table
has all that a symbol says: in bits 0 to 7 the length of its code and of the value that follows, in bits 8 to
15 that of the value, from bit 16 on how many zeros come before.

Nothing here checks an index: a function that returns `DAMAGED` says that the caller has to stop, and the data
has `PADDING` bytes more than are read at most until the caller looks where it is.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.integers import I32, I64, U64

Bytes: TypeAlias = NDArray[np.uint8]
Coefficients: TypeAlias = NDArray[np.int16]  # 64 of a block, row by row
Tables: TypeAlias = NDArray[np.uint32]  # 8 × ENTRIES: four of DC, then four of AC coefficients

BITS: Final = 10
_LOOKED_UP: Final = 1 << BITS
_CODES: Final = 256  # of one table at most: entries of codes in the order of their lengths
_LENGTHS: Final = 17  # for each length: the greatest code, and what to add to one for the place of its entry
ENTRIES: Final = _LOOKED_UP + _CODES + 2 * _LENGTHS
END_OF_BLOCK: Final = 128  # zeros that an end of block stands for: more than any other symbol can lead to
_MOST_BITS: Final = (11, 10)  # of a DC difference, of an AC coefficient
PADDING: Final = 256  # bytes: a block takes at most 64 symbols of 27 bits, and 8 bytes are read at a time
DAMAGED: Final = 1 << 20

# The place of each coefficient of a block, in the order in which they come: along the antidiagonals.
ZIGZAG: Final = np.array(
    sorted(range(64), key=lambda n: (n // 8 + n % 8, n // 8 if (n // 8 + n % 8) % 2 else n % 8)),
    dtype=np.uint8,
)


@part_of_kernels()
def fill_table(counts: Bytes, symbols: Bytes, of_ac: int, table: NDArray[np.uint32]) -> bool:
    """Write the table of the codes of which there are so many of each length; False if there can be none."""
    table[:] = 0
    code, number = 0, 0
    for length in range(1, _LENGTHS):
        count = I64(counts[length - 1])
        table[_LOOKED_UP + _CODES + _LENGTHS + length] = np.uint32(number - code)
        if code + count >= 1 << length or number + count > symbols.size:  # No code has ones alone.
            return False
        for _ in range(count):
            entry = I64(symbols[number])
            if of_ac:
                zeros, bits = entry >> 4, entry & 15
                if bits == 0 and zeros < 15:
                    zeros = END_OF_BLOCK
            else:
                zeros, bits = 0, entry
            if bits > _MOST_BITS[of_ac]:
                return False
            entry = zeros << 16 | bits << 8 | length + bits
            table[_LOOKED_UP + number] = np.uint32(entry)
            if length <= BITS:
                first = code << (BITS - length)
                table[first : first + (1 << (BITS - length))] = np.uint32(entry)
            code += 1
            number += 1
        table[_LOOKED_UP + _CODES + length] = np.uint32(code)  # above the greatest: 0 if there is none so far
        code <<= 1
    return True


@part_of_kernels()
def unstuff(data: Bytes, start: int, out: Bytes) -> tuple[int, int]:
    """Copy entropy-coded data without stuffed bytes; returns how many, and where the next marker is."""
    ones, highest = U64(0x0101010101010101), U64(0x8080808080808080)
    at, to, size = U64(start), U64(0), U64(data.size)
    while at + U64(8) <= size:
        word = _word(data, at)
        for n in range(U64(8)):
            out[to + n] = np.uint8(word >> (U64(56) - U64(8) * n))
        inverse = ~word
        if (inverse - ones) & word & highest == U64(0):  # None is 0xFF.
            at += U64(8)
            to += U64(8)
            continue
        while data[at] != 0xFF:
            at += U64(1)
            to += U64(1)
        if data[at + U64(1)] != 0:
            return I64(to), I64(at)
        at += U64(2)
        to += U64(1)
    while at + U64(1) < size:
        out[to] = data[at]
        if data[at] == 0xFF:
            if data[at + U64(1)] != 0:
                return I64(to), I64(at)
            at += U64(1)
        at += U64(1)
        to += U64(1)
    return I64(to), I64(size)


@part_of_kernels(forceinline=True)
def _word(data: Bytes, at: int) -> int:
    """Eight bytes from here on, the first one highest."""
    return (
        U64(data[at]) << U64(56)
        | U64(data[at + U64(1)]) << U64(48)
        | U64(data[at + U64(2)]) << U64(40)
        | U64(data[at + U64(3)]) << U64(32)
        | U64(data[at + U64(4)]) << U64(24)
        | U64(data[at + U64(5)]) << U64(16)
        | U64(data[at + U64(6)]) << U64(8)
        | U64(data[at + U64(7)])
    )


@part_of_kernels()
def _long_code(ahead: int, table: NDArray[np.uint32]) -> int:
    """The entry of a code that is too long to be looked up; 0 if there is none."""
    for length in range(BITS + 1, _LENGTHS):
        code = I64(ahead >> U64(64 - length))
        if code < I64(table[_LOOKED_UP + _CODES + length]):
            number = code + I64(I32(table[_LOOKED_UP + _CODES + _LENGTHS + length]))
            return U64(table[_LOOKED_UP + (number & (_CODES - 1))])
    return U64(0)


@part_of_kernels(forceinline=True)
def _value(ahead: int, entry: int) -> int:
    """The value that follows a code: negative ones are stored as one less, in as many bits."""
    highest = (U64(1) << (entry >> U64(8) & U64(15))) - U64(1)
    value = I64(ahead >> (U64(64) - (entry & U64(63))) & highest)
    return value - I64(highest) if value < I64((highest + U64(1)) >> U64(1)) else value


@part_of_kernels(forceinline=True)
def read_block(
    data: Bytes,
    at: int,
    ahead: int,
    known: int,
    dc: NDArray[np.uint32],
    ac: NDArray[np.uint32],
    zigzag: Bytes,
    block: Coefficients,
    kept: bool,
) -> tuple[int, int, int, int, int]:
    """Read one block: where its data ends, the difference of its DC coefficient, and how far it goes.

    The others are written to `block` if they are `kept`. `ahead` has the next bits, of which `known` are
    there; `at` is the byte after those.
    """
    ahead |= _word(data, at) >> known
    at += (U64(63) - known) >> U64(3)
    known |= U64(56)
    entry = U64(dc[ahead >> U64(64 - BITS)])
    if entry == U64(0):
        entry = _long_code(ahead, dc)
        if entry == U64(0):
            return at, ahead, known, 0, DAMAGED
    difference = _value(ahead, entry)
    ahead <<= entry & U64(63)
    known -= entry & U64(63)
    place = U64(1)
    while place < U64(64):
        ahead |= _word(data, at) >> known
        at += (U64(63) - known) >> U64(3)
        known |= U64(56)
        for _ in range(2):  # symbols of 26 bits at most
            entry = U64(ac[ahead >> U64(64 - BITS)])
            if entry == U64(0):
                entry = _long_code(ahead, ac)
                if entry == U64(0):
                    return at, ahead, known, difference, DAMAGED
            before = ahead
            ahead <<= entry & U64(63)
            known -= entry & U64(63)
            place += entry >> U64(16)
            if place > U64(63):
                end = I64(place) if place >= U64(END_OF_BLOCK) else DAMAGED
                return at, ahead, known, difference, end
            if kept:
                block[zigzag[place]] = np.int16(_value(before, entry))
            place += U64(1)
            if place > U64(63):
                break
    return at, ahead, known, difference, I64(place)
