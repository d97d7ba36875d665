"""Normalized values of pixels: one, or sixteen at a time by vector instructions.

A value is (byte / 255 − mean) / std, where each division is a product with a correction of its error: what
torchvision's steps give, to the bit (`fused_kernel.normalization` tries it). A product and a sum may become
one instruction, which rounds once: the result is exact only with that.

LLVM makes vector instructions of loops, but none that write past the caches. Results of the size of
photographs are read by another process when the caches have had many others: what is in the caches is better
the images that are being worked on: packed pixels take a fifth less CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rekindle.core.compiled_code import check_compiled_code
from rekindle.core.compiler import part_of_kernels

check_compiled_code()

AT_ONCE: Final = 16  # values: a cache line of results
LINE: Final = np.uint64(4 * AT_ONCE)  # bytes
PAST_CACHES: Final = 128 << 10  # bytes of a sample's result: smaller ones may still be in a cache when used
_BYTE, _FLOAT, _INDEX = ir.IntType(8), ir.FloatType(), ir.IntType(32)
_BYTES, _INDICES, _FLOATS = (ir.VectorType(kind, AT_ONCE) for kind in (_BYTE, _INDEX, _FLOAT))
_PIXELS = ir.VectorType(_BYTE, 3 * AT_ONCE)
_CONTRACT = ("contract",)
_Generate: TypeAlias = Callable[[object, ir.IRBuilder, object, Sequence[ir.Value]], ir.Value]


@part_of_kernels(fastmath={"contract"}, error_model="numpy")
def normalized(byte: int, mean: np.float32, std: np.float32, reciprocal: np.float32) -> np.float32:
    """What one byte becomes; `reciprocal` is that of the standard deviation."""
    whole, part = np.float32(255), np.float32(1 / 255)
    value = np.float32(byte)
    quotient = value * part
    difference = quotient + (value - quotient * whole) * part - mean
    estimate = difference * reciprocal
    return estimate + (difference - estimate * std) * reciprocal


def _normalized(
    builder: ir.IRBuilder, values: ir.Value, mean: ir.Value, std: ir.Value, reciprocal: ir.Value
) -> ir.Value:
    """What sixteen bytes become."""
    whole, part = (ir.Constant(_FLOATS, [float(np.float32(one))] * AT_ONCE) for one in (255, 1 / 255))
    means, stds, reciprocals = (_repeated(builder, one) for one in (mean, std, reciprocal))

    def times(a: ir.Value, b: ir.Value) -> ir.Value:
        return builder.fmul(a, b, flags=_CONTRACT)

    def corrected(quotient: ir.Value, dividend: ir.Value, divisor: ir.Value, factor: ir.Value) -> ir.Value:
        error = builder.fsub(dividend, times(quotient, divisor), flags=_CONTRACT)
        return builder.fadd(quotient, times(error, factor), flags=_CONTRACT)

    value = builder.uitofp(builder.zext(values, _INDICES), _FLOATS)
    difference = builder.fsub(corrected(times(value, part), value, whole, part), means)
    return corrected(times(difference, reciprocals), difference, stds, reciprocals)


def _repeated(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_INDICES, [0] * AT_ONCE))


def _load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, past_caches: bool) -> None:
    stored = builder.store(value, builder.inttoptr(address, _FLOATS.as_pointer()))
    stored.align = 4 * AT_ONCE if past_caches else 4
    if past_caches:
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INDEX, 1)]))


def _of_line(past_caches: bool) -> Callable[..., None]:
    @intrinsic
    def write(
        typing: object, source: object, to: object, mean: object, std: object, reciprocal: object
    ) -> tuple[object, _Generate]:
        del typing
        if (source, to, mean, std, reciprocal) != (*[types.uint64] * 2, *[types.float32] * 3):
            raise TypeError("two addresses as uint64 and three numbers as float32")

        def generate(
            context: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            del context
            source, to, *constants = arguments
            values = _normalized(builder, _load(builder, source, _BYTES), *constants)
            _store(builder, values, to, past_caches)
            return ir.Constant(_BYTE.as_pointer(), None)

        return types.void(*[types.uint64] * 2, *[types.float32] * 3), generate

    return cast("Callable[..., None]", write)


def _of_pixels(mirrored: bool, past_caches: bool) -> Callable[..., None]:
    order = range(AT_ONCE - 1, -1, -1) if mirrored else range(AT_ONCE)
    constants = types.UniTuple(types.float32, 9)  # type: ignore[no-untyped-call]
    expected = (*[types.uint64] * 4, constants)

    @intrinsic
    def write(
        typing: object, source: object, red: object, green: object, blue: object, numbers: object
    ) -> tuple[object, _Generate]:
        del typing
        if (source, red, green, blue, numbers) != expected:
            raise TypeError("four addresses as uint64 and nine numbers as float32")

        def generate(
            context: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            del context
            source, *planes, numbers = arguments
            pixels = _load(builder, source, _PIXELS)
            for c, plane in enumerate(planes):
                mask = ir.Constant(_INDICES, [3 * x + c for x in order])
                values = builder.shuffle_vector(pixels, ir.Constant(_PIXELS, ir.Undefined), mask)
                about = [builder.extract_value(numbers, 3 * c + n) for n in range(3)]
                _store(builder, _normalized(builder, values, *about), plane, past_caches)
            return ir.Constant(_BYTE.as_pointer(), None)

        return types.void(*expected), generate

    return cast("Callable[..., None]", write)


def _fence() -> Callable[[], None]:
    @intrinsic
    def wait(typing: object) -> tuple[object, _Generate]:
        del typing

        def generate(
            context: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            del context, arguments
            builder.fence("seq_cst")
            return ir.Constant(_BYTE.as_pointer(), None)

        return types.void(), generate

    return cast("Callable[[], None]", wait)


# All take addresses: of bytes, and of where their values go. Of a line, then mean, standard deviation and its
# reciprocal; of pixels, these three for each channel. `past_caches` they are to be multiples of a cache line.
write_line, write_line_past_caches = _of_line(past_caches=False), _of_line(past_caches=True)
write_pixels, write_pixels_past_caches = _of_pixels(False, False), _of_pixels(False, past_caches=True)
write_mirrored, write_mirrored_past_caches = _of_pixels(True, False), _of_pixels(True, past_caches=True)
# Until what was written past the caches is there for other processors.
wait_for_stores = _fence()
