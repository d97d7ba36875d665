"""Coefficients of the blocks of baseline JPEGs, read from entropy-coded data (see `unstuff`).

Nothing here checks an index: a function that returns `DAMAGED` says that the caller has to stop, and the data
has `PADDING` bytes more than are read at most until the caller looks where it is.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.code_tables import (
    BITS,
    END_OF_BLOCK,
    FIRST_AT,
    LAST_AT,
    LAST_BITS_AT,
    STEP_BITS,
    VALUE_AT,
    Bytes,
    Table,
    long_code,
)
from rekindle.prepare.decode.baseline_jpeg.integers import I8, I16, I64, U64

Block: TypeAlias = NDArray[np.int16]  # 64 coefficients, row by row

# In bytes. A block takes at most 27 bits for its DC coefficient and 26 for each of 63 others, so 209 bytes.
# Those that are looked at may be 8 bytes ahead of that, and 8 are read at a time, from 8 behind the data on.
PADDING: Final = 256
DAMAGED: Final = 1 << 20
_LAST: Final = 63  # the place of the last coefficient

# The place of each coefficient of a block, in the order in which they come: along the antidiagonals. Behind
# the last one, it is the first one's, which the caller writes when all others are there.
ZIGZAG: Final = np.zeros(256, dtype=np.uint8)
ZIGZAG[: _LAST + 1] = sorted(
    range(64), key=lambda n: (n // 8 + n % 8, n // 8 if (n // 8 + n % 8) % 2 else n % 8)
)


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


@part_of_kernels(forceinline=True)
def _look_ahead(data: Bytes, at: int, ahead: int, known: int) -> tuple[int, int, int]:
    """All 64 bits of `ahead`, of which 56 at least are then known, as multiples of 8 go.

    Only the lowest 6 bits of `known` count here and elsewhere.
    """
    ahead |= _word(data, at) >> (known & U64(63))
    return at + (~known >> U64(3) & U64(7)), ahead, known | U64(56)


@part_of_kernels(forceinline=True)
def _value(ahead: int, length: int, bits: int) -> int:
    """The value in the last ones of so many bits: negative ones are stored as one less, in as many bits."""
    most = (U64(1) << bits) - U64(1)
    value = ahead >> (U64(0) - length & U64(63)) & most
    return value - (most if value <= most >> U64(1) else U64(0))


@part_of_kernels(forceinline=True)
def _symbol(ahead: int, table: Table) -> int:
    """The entry of the next symbol; 0 if there is none."""
    entry = U64(table[ahead >> U64(64 - BITS)])
    return entry if entry != U64(0) else long_code(ahead, table)


@part_of_kernels(forceinline=True)
def _write(ahead: int, step: int, place: int, zigzag: Bytes, block: Block) -> None:
    """Write the coefficients of a step from this place on."""
    first = place + (step >> U64(FIRST_AT) & U64(31))
    block[zigzag[first]] = I16(I8(step >> U64(VALUE_AT)))
    value = _value(ahead, step, step >> U64(LAST_BITS_AT) & U64(15))
    block[zigzag[place + (step >> U64(LAST_AT))]] = I16(value)


@part_of_kernels(forceinline=True)
def read_block(
    data: Bytes,
    at: int,
    ahead: int,
    known: int,
    dc: Table,
    ac: Table,
    steps: Table,
    zigzag: Bytes,
    block: Block,
    kept: bool,
) -> tuple[int, int, int, int, int]:
    """Read one block: where its data ends, the difference of its DC coefficient, and how far it goes.

    The others are written to `block` if they are `kept`. `ahead` has the next bits, of which `known` are
    there; `at` is the byte after those.
    """
    at, ahead, known = _look_ahead(data, at, ahead, known)
    entry = _symbol(ahead, dc)
    if entry == U64(0):
        return at, ahead, known, 0, DAMAGED
    difference = I64(_value(ahead, entry, entry >> U64(8) & U64(15)))
    ahead <<= entry & U64(63)
    known -= entry & U64(63)
    place = U64(0)
    while True:
        # The next step is looked up before more bits are: there are enough for it, and it is waited for.
        step = U64(steps[ahead >> U64(64 - STEP_BITS)])
        at, ahead, known = _look_ahead(data, at, ahead, known)
        if kept:
            _write(ahead, step, place, zigzag, block)
        before = ahead, known, place
        ahead <<= step & U64(63)
        known -= step
        place += step >> U64(LAST_AT)
        if place < U64(_LAST):
            step = U64(steps[ahead >> U64(64 - STEP_BITS)])
            if kept:
                _write(ahead, step, place, zigzag, block)
            before = ahead, known, place
            ahead <<= step & U64(63)
            known -= step
            place += step >> U64(LAST_AT)
            if place < U64(_LAST):
                continue
        if place == U64(_LAST) or U64(END_OF_BLOCK) <= place < U64(END_OF_BLOCK + _LAST):
            return at, ahead, known, difference, I64(place)
        # The code is longer than those of steps, or the block ends within this one, or there is no code.
        ahead, known, place = before
        entry = _symbol(ahead, ac)
        if entry == U64(0):
            return at, ahead, known, difference, DAMAGED
        value = _value(ahead, entry, entry >> U64(8) & U64(15))
        ahead <<= entry & U64(63)
        known -= entry & U64(63)
        place += entry >> U64(16)
        if place >= U64(END_OF_BLOCK):
            return at, ahead, known, difference, I64(place)
        place += U64(1)
        if place > U64(_LAST):
            return at, ahead, known, difference, DAMAGED
        if kept:
            block[zigzag[place]] = I16(value)
        if place == U64(_LAST):
            return at, ahead, known, difference, I64(place)
