"""The inverse DCT of a block, in integers: the accurate method of libjpeg ("islow"), to the bit.

It is that of Loeffler, Ligtenberg and Moschytz (1989), in fixed point with 13 bits. Numba widens integers to
64 bits, of which a processor calculates only few at a time; so this is written as vector instructions of
8 × 32 bits, which LLVM translates to those of the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BITS = 13  # of constants after the point
_FIRST_BITS = 2  # of the columns' results after the point
_LARGEST_BITS = 13  # of a dequantized coefficient and of a column's result: no sum of four overflows 16 bits
_BYTE, _SHORT, _INT = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_Generate: TypeAlias = Callable[[object, ir.IRBuilder, object, Sequence[ir.Value]], ir.Value]
_BYTES, _SHORTS, _INTS = (ir.VectorType(kind, 8) for kind in (_BYTE, _SHORT, _INT))


def _constant(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * 8)


class _Numbers:
    """Eight integers of 32 bits, as LLVM calculates them."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self._builder, self.value = builder, value

    def __add__(self, other: _Numbers | int) -> _Numbers:
        return self._with(self._builder.add, other)

    def __sub__(self, other: _Numbers) -> _Numbers:
        return self._with(self._builder.sub, other)

    def __mul__(self, factor: float | _Numbers) -> _Numbers:
        return self._with(
            self._builder.mul, round(factor * (1 << _BITS)) if isinstance(factor, float) else factor
        )

    def __or__(self, other: _Numbers) -> _Numbers:
        return self._with(self._builder.or_, other)

    def __lshift__(self, bits: int) -> _Numbers:
        return self._with(self._builder.shl, bits)

    def __rshift__(self, bits: int) -> _Numbers:
        return self._with(self._builder.ashr, bits)

    def clipped(self, least: int, most: int) -> _Numbers:
        """The numbers, none less or more than that."""
        builder, value = self._builder, self.value
        for condition, limit in ((">", least), ("<", most)):
            limits = _constant(limit)
            value = builder.select(builder.icmp_signed(condition, value, limits), value, limits)
        return _Numbers(builder, value)

    def _with(self, operation: Callable[..., ir.Value], other: _Numbers | int) -> _Numbers:
        value = _constant(other) if isinstance(other, int) else other.value
        return _Numbers(self._builder, operation(self.value, value))


def _transform(x: Sequence[_Numbers]) -> list[_Numbers]:
    """One dimension, for eight columns at a time."""
    z1 = (x[2] + x[6]) * 0.541196100
    even2, even3 = z1 - x[6] * 1.847759065, z1 + x[2] * 0.765366865
    even0, even1 = (x[0] + x[4]) << _BITS, (x[0] - x[4]) << _BITS
    even = [even0 + even3, even1 + even2, even1 - even2, even0 - even3]
    z1, z2, z3, z4 = x[7] + x[1], x[5] + x[3], x[7] + x[3], x[5] + x[1]
    z5 = (z3 + z4) * 1.175875602
    z1, z2 = z1 * -0.899976223, z2 * -2.562915447
    z3, z4 = z3 * -1.961570560 + z5, z4 * -0.390180644 + z5
    odd = [
        x[1] * 1.501321110 + z1 + z4,
        x[3] * 3.072711026 + z2 + z3,
        x[5] * 2.053119869 + z2 + z4,
        x[7] * 0.298631336 + z1 + z3,
    ]
    pairs = list(zip(even, odd, strict=True))
    return [a + b for a, b in pairs] + [a - b for a, b in reversed(pairs)]


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Rows as columns: three times, each row is interleaved with the one four below."""
    low, high = (
        ir.Constant(_INTS, [first + half for first in range(start, start + 4) for half in (0, 8)])
        for start in (0, 4)
    )
    for _ in range(3):
        rows = [builder.shuffle_vector(rows[n], rows[n + 4], mask) for n in range(4) for mask in (low, high)]
    return rows


def _write(builder: ir.IRBuilder, arguments: Sequence[ir.Value], lines: int) -> ir.Value:
    """Code for a block whose coefficients are in this many first rows and columns: see `_writer`."""
    from_block, from_quantizers, to, step = arguments

    def numbers(address: ir.Value, line: int) -> _Numbers:
        loaded = builder.load(_at(builder, address, line * 16, _SHORTS))
        loaded.align = 2
        return _Numbers(builder, builder.sext(loaded, _INTS))

    zeros = [_Numbers(builder, _constant(0))] * (8 - lines)
    rows = [numbers(from_block, line) * numbers(from_quantizers, line) for line in range(lines)]
    beyond = _beyond(rows)
    half = 1 << (_BITS - _FIRST_BITS - 1)
    rows = [(value + half) >> (_BITS - _FIRST_BITS) for value in _transform(rows + zeros)]
    beyond = beyond | _beyond(rows)
    shorts = [builder.trunc(value.value, _SHORTS) for value in rows]
    columns = [_Numbers(builder, builder.sext(value, _INTS)) for value in _transposed(builder, shorts)]
    bits = _BITS + _FIRST_BITS + 3
    middle = (128 << bits) + (1 << (bits - 1))
    columns = [((value + middle) >> bits).clipped(0, 255) for value in _transform(columns[:lines] + zeros)]
    shorts = [builder.trunc(value.value, _SHORTS) for value in columns]
    for value in _transposed(builder, shorts):
        stored = builder.store(builder.trunc(value, _BYTES), _at(builder, to, 0, _BYTES))
        stored.align = 1
        to = builder.add(to, step)
    whole = builder.bitcast(
        builder.icmp_unsigned(">=", beyond.value, _constant(1 << (_LARGEST_BITS + 1))), _BYTE
    )
    return builder.icmp_unsigned("==", whole, ir.Constant(_BYTE, 0))


def _beyond(rows: Sequence[_Numbers]) -> _Numbers:
    """Numbers of which one is negative or too large, if one of these is out of bounds."""
    found = rows[0] + (1 << _LARGEST_BITS)
    for value in rows[1:]:
        found = found | (value + (1 << _LARGEST_BITS))
    return found


def _at(builder: ir.IRBuilder, address: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(builder.add(address, ir.Constant(address.type, offset)), kind.as_pointer())


def _writer(lines: int) -> Callable[[int, int, int, int], bool]:
    """What writes the 8 × 8 pixels of a block; False if numbers are larger than those of any photograph.

    It takes addresses: of 64 coefficients of 16 bits, of what each is multiplied by, of the first pixel, and
    the bytes from one row of pixels to the next. Only that many first rows and columns may have coefficients.
    """

    def write(
        typing: object, block: object, quantizers: object, out: object, row: object
    ) -> tuple[object, _Generate]:
        del typing
        if (block, quantizers, out, row) != (types.uint64,) * 4:
            raise TypeError("addresses and a number of bytes, as uint64")

        def generate(
            _context: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            return _write(builder, arguments, lines)

        return types.boolean(*[types.uint64] * 4), generate

    return cast("Callable[[int, int, int, int], bool]", intrinsic(write))  # without what numba adds


write_pixels = _writer(8)
write_smooth_pixels = _writer(4)
