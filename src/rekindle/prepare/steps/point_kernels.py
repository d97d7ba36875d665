"""The compiled loops of point operations: they check nothing, and give what OpenCV and NumPy give too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import NO_ALLOCATION, kernel

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

# Bytes that are looked at together: 64 pixels, so that each has its channel, and vectors are full.
BLOCK = 192


def _look_up_signature() -> Signature:
    from numba import types, uint8, void

    values = types.Array(uint8, 1, "C", readonly=True)
    return void(values, values, values, values, uint8[::1])


def _equalize_signature() -> Signature:
    from numba import int64, types, uint8, void

    return void(types.Array(uint8, 2, "C", readonly=True), int64[:, ::1], uint8[:, ::1])


def _stretch_signature() -> Signature:
    from numba import boolean, float64, types, uint8

    return boolean(types.Array(uint8, 1, "C", readonly=True), uint8[:, ::1], float64[:, ::1], uint8[::1])


# Up to twice as fast as OpenCV's `LUT` and NumPy's `bincount`, which do the same until these are compiled.
@kernel(_look_up_signature)
def look_up_values(
    values: NDArray[np.uint8],
    reds: NDArray[np.uint8],
    greens: NDArray[np.uint8],
    blues: NDArray[np.uint8],
    result: NDArray[np.uint8],
) -> None:
    """Write each value's entry in the table of its channel."""
    for i in range(len(values) // 3):
        result[3 * i] = reds[values[3 * i]]
        result[3 * i + 1] = greens[values[3 * i + 1]]
        result[3 * i + 2] = blues[values[3 * i + 2]]


@kernel(_equalize_signature, error_model="numpy", **NO_ALLOCATION)
def equalize_values(pixels: NDArray[np.uint8], counts: NDArray[np.int64], tables: NDArray[np.uint8]) -> None:
    """Count each channel's values, from counts of 0, and write the table that makes them equally frequent."""
    for i in range(pixels.shape[0]):
        counts[0, pixels[i, 0]] += 1
        counts[1, pixels[i, 1]] += 1
        counts[2, pixels[i, 2]] += 1
    for channel in range(3):
        brightest = 255
        while counts[channel, brightest] == 0:
            brightest -= 1
        step = (pixels.shape[0] - counts[channel, brightest]) // 255
        total = step // 2
        for value in range(256):
            tables[channel, value] = value if step == 0 else min(total // step, 255)
            total += counts[channel, value]


@kernel(_stretch_signature, error_model="numpy", **NO_ALLOCATION)
def stretch_values(
    values: NDArray[np.uint8],
    extremes: NDArray[np.uint8],
    numbers: NDArray[np.float64],
    result: NDArray[np.uint8],
) -> bool:
    """Write the values with each channel stretched to the range from 0 to 255; False if all of them have it.

    `extremes` and `numbers` are memory of 2 × BLOCK.
    """
    low, high, scale, shift = extremes[0], extremes[1], numbers[0], numbers[1]
    for x in range(BLOCK):
        low[x], high[x] = 255, 0
    whole = len(values) // BLOCK
    for number in range(whole):
        block = values[number * BLOCK : (number + 1) * BLOCK]
        for x in range(BLOCK):
            low[x], high[x] = min(low[x], block[x]), max(high[x], block[x])
    for x in range(len(values) - whole * BLOCK):
        value = values[whole * BLOCK + x]
        low[x], high[x] = min(low[x], value), max(high[x], value)
    changes = False
    for channel in range(3):
        for x in range(channel, BLOCK, 3):
            low[channel], high[channel] = min(low[channel], low[x]), max(high[channel], high[x])
        darkest, extent = np.float64(low[channel]), np.float64(high[channel]) - np.float64(low[channel])
        changes = changes or bool(0 < extent < 255)
        factor = 255.0 / extent if extent > 0 else 1.0
        for x in range(channel, BLOCK, 3):
            scale[x], shift[x] = factor, darkest * factor if extent > 0 else 0.0
    if not changes:
        return False
    for number in range(whole):
        block, out = (
            values[number * BLOCK : (number + 1) * BLOCK],
            result[number * BLOCK : (number + 1) * BLOCK],
        )
        for x in range(BLOCK):
            out[x] = np.uint8(np.int32(np.float64(np.int32(block[x])) * scale[x] - shift[x]))
    for x in range(len(values) - whole * BLOCK):
        at = whole * BLOCK + x
        result[at] = np.uint8(np.int32(np.float64(np.int32(values[at])) * scale[x] - shift[x]))
    return True
