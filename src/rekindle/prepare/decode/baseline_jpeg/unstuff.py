"""Entropy-coded data without the zero byte that follows each 0xFF: to be read eight bytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rekindle.core.compiler import part_of_kernels
from rekindle.prepare.decode.baseline_jpeg.code_tables import Bytes
from rekindle.prepare.decode.baseline_jpeg.integers import I64, U64

_COPIED: Final = 32  # bytes at a time
_BYTES = ir.VectorType(ir.IntType(8), _COPIED)
_Generate: TypeAlias = Callable[[object, ir.IRBuilder, object, Sequence[ir.Value]], ir.Value]


@intrinsic
def _copy_bytes(typing: object, source: object, to: object) -> tuple[object, _Generate]:
    """Copy bytes from one address to another; returns how many of them stand before the first 0xFF."""
    del typing
    if (source, to) != (types.uint64,) * 2:
        raise TypeError("two addresses, as uint64")

    def generate(
        _context: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        source, to = (builder.inttoptr(address, _BYTES.as_pointer()) for address in arguments)
        found = builder.load(source)
        found.align = 1
        stored = builder.store(found, to)
        stored.align = 1
        ones = builder.icmp_unsigned("==", found, ir.Constant(_BYTES, [255] * _COPIED))
        number = builder.bitcast(ones, ir.IntType(_COPIED))
        before = builder.cttz(number, ir.Constant(ir.IntType(1), 0))
        return builder.zext(before, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_copy = cast("Callable[[int, int], int]", _copy_bytes)  # without what numba adds


@part_of_kernels()
def unstuff(data: Bytes, start: int, out: Bytes) -> tuple[int, int]:
    """Copy entropy-coded data without stuffed bytes; returns how many, and where the next marker is."""
    at, to, size = U64(start), U64(0), U64(data.size)
    source, target = U64(data.ctypes.data), U64(out.ctypes.data)
    while at + U64(_COPIED) < size:
        before = _copy(source + at, target + to)
        if before == U64(_COPIED):
            at += U64(_COPIED)
            to += U64(_COPIED)
            continue
        at += before
        to += before
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
