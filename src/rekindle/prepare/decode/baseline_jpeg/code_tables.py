"""Tables to look Huffman codes up in: one symbol at a time, or two.

A symbol's entry has in bits 0 to 7 the length of its code and of the value that follows, in bits 8 to 15 that
of the value, from bit 16 on how many zeros come before. It is found by the next `BITS` bits; the few longer
codes are searched for.

A step is what the next `STEP_BITS` bits say of AC coefficients: of two, if the code and the value of the
first one and the code of the second are among them, or else of one. The last symbol can be an end of block.
An entry of a table of steps has

    from bit 0 on   the length of all codes and values
    from bit 6 on   the length of the last one's value
    from bit 10 on  how far the first one is from the place before the step
    from bit 16 on  the value of the first one
    from bit 24 on  how far the last one is from the place before the step

Where there is one coefficient, it is the last one, and the first one is a zero right behind the place before:
none has been written there yet. `NO_STEP` stands where no code is, or a longer one.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.integers import I32, I64, U32, U64

Bytes: TypeAlias = NDArray[np.uint8]
Table: TypeAlias = NDArray[np.uint32]  # ENTRIES, or STEPS
Tables: TypeAlias = NDArray[np.uint32]  # 8 × ENTRIES: four of DC, then four of AC coefficients
Steps: TypeAlias = NDArray[np.uint32]  # 5 × STEPS: four of AC coefficients, and one to make these with

BITS: Final = 10
_LOOKED_UP: Final = 1 << BITS
_CODES: Final = 256  # of one table at most: entries of codes in the order of their lengths
_LENGTHS: Final = 17  # for each length: the greatest code, and what to add to one for the place of its entry
ENTRIES: Final = _LOOKED_UP + _CODES + 2 * _LENGTHS
END_OF_BLOCK: Final = 128  # zeros that an end of block stands for: more than any other symbol can lead to
_MOST_BITS: Final = (11, 10)  # of a DC difference, of an AC coefficient

STEP_BITS: Final = 11
STEPS: Final = 1 << STEP_BITS
LAST_BITS_AT: Final = 6
FIRST_AT: Final = 10
VALUE_AT: Final = 16
LAST_AT: Final = 24
_VALUE_BITS: Final = 7  # of a first coefficient at most, besides its sign
_BEYOND: Final = 192  # farther than a step from any place to the end of the block
NO_STEP: Final = _BEYOND << LAST_AT | 1 << FIRST_AT


@part_of_kernels()
def fill_table(counts: Bytes, symbols: Bytes, of_ac: int, table: Table) -> bool:
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
def long_code(ahead: int, table: Table) -> int:
    """The entry of a code that is too long to be looked up; 0 if there is none."""
    for length in range(BITS + 1, _LENGTHS):
        code = I64(ahead >> U64(64 - length))
        if code < I64(table[_LOOKED_UP + _CODES + length]):
            number = code + I64(I32(table[_LOOKED_UP + _CODES + _LENGTHS + length]))
            return U64(table[_LOOKED_UP + (number & (_CODES - 1))])
    return U64(0)


@part_of_kernels()
def fill_steps(table: Table, symbols: int, ends: Table, steps: Table) -> None:
    """Write the steps of a table of so many AC symbols; `ends` is memory for what a step can end with."""
    shortest, most_left = _LENGTHS, 0
    for number in range(symbols):
        zeros, bits, length = _symbol(table, number)
        shortest = min(shortest, length)
        if zeros != END_OF_BLOCK:
            most_left = max(most_left, STEP_BITS - length - bits)
    for left in range(shortest, most_left + 1):
        _fill_ends(table, symbols, left, ends[1 << left : 2 << left])
    steps[:] = U32(NO_STEP)
    to = U64(0)
    for number in range(symbols):
        zeros, bits, length = _symbol(table, number)
        if length > STEP_BITS:
            return
        left = STEP_BITS - length - bits
        if bits <= _VALUE_BITS and left >= shortest and zeros != END_OF_BLOCK:
            _fill_pairs(table, number, left, ends[1 << left : 2 << left], steps, to)
        else:
            steps[to : to + (U64(1) << U64(STEP_BITS - length))] = U32(_single(table, number))
        to += U64(1) << U64(STEP_BITS - length)


@part_of_kernels()
def _symbol(table: Table, number: int) -> tuple[int, int, int]:
    """How many zeros come before, the length of the value, and that of the code."""
    entry = I64(table[_LOOKED_UP + number])
    bits = entry >> 8 & 255
    return entry >> 16, bits, (entry & 255) - bits


@part_of_kernels()
def _single(table: Table, number: int) -> int:
    """The step of one symbol alone."""
    zeros, bits, length = _symbol(table, number)
    ahead = END_OF_BLOCK if zeros == END_OF_BLOCK else zeros + 1
    return length + bits | bits << LAST_BITS_AT | 1 << FIRST_AT | ahead << LAST_AT


@part_of_kernels()
def _fill_ends(table: Table, symbols: int, left: int, ends: Table) -> None:
    """Write what begins with each value of so many bits, as far as these are a code and more."""
    to = U64(0)
    for number in range(symbols):
        _, _, length = _symbol(table, number)
        if length > left:
            return
        count = U64(1) << U64(left - length)
        ends[to : to + count] = U32(_single(table, number))
        to += count


@part_of_kernels()
def _fill_pairs(table: Table, number: int, left: int, ends: Table, steps: Table, to: int) -> None:
    """Write the steps of a symbol, and of what can follow in as many bits as are left, for each value."""
    zeros, bits, length = _symbol(table, number)
    alone = U32(_single(table, number))
    # Codes are in the order of their lengths: all that begin with one that is short enough come first.
    with_end = U64(table[_LOOKED_UP + _CODES + left])
    # Of each end, the way to the first coefficient is 1.
    common = length + bits | zeros << FIRST_AT | zeros + 1 << LAST_AT
    for value in range(1 << bits):
        signed = value if value >= 1 << bits >> 1 else value - (1 << bits) + 1
        first = U32(common | (signed & 255) << VALUE_AT)
        for n in range(with_end):
            steps[to + n] = U32(first + ends[n])
        for n in range(with_end, U64(1) << U64(left)):
            steps[to + n] = alone
        to += U64(1) << U64(left)
