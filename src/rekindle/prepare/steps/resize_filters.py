"""The kernels of all filters but the bilinear one, which `antialiased_resize` has: compiled where used.

The weights are Pillow's. A filter without negative lobes needs 16 bits: weights are 1/256ths that add up to
256.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba

check_compiled_code()


def _signature() -> Signature:
    rows = numba.types.Array(numba.uint8, 2, "C", readonly=True)
    return numba.void(rows, numba.uint8[:, ::1], *[numba.int64] * 4, numba.float64)


@numba.njit(nogil=True)
def _filter(x: float, code: int) -> float:
    """The weight of a pixel at this distance, for one of Pillow's filters."""
    x = abs(x)
    if code == 0:  # bilinear
        return max(1.0 - x, 0.0)
    if code == 1:  # box
        return 1.0 if x <= 0.5 else 0.0
    if code == 2:  # hamming
        if x == 0:
            return 1.0
        return (
            0.0 if x >= 1 else math.sin(math.pi * x) / (math.pi * x) * (0.54 + 0.46 * math.cos(math.pi * x))
        )
    if code == 3:  # bicubic, a = −1/2
        if x < 1:
            return (1.5 * x - 2.5) * x * x + 1
        return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0
    if x == 0:  # lanczos
        return 1.0
    return 3 * math.sin(math.pi * x) * math.sin(math.pi * x / 3) / (math.pi * x) ** 2 if x < 3 else 0.0


@numba.njit(nogil=True)
def _weights(
    row: int, old: int, new: int, code: int, support: float, weights: NDArray[np.float64]
) -> tuple[int, int]:
    """First source row and number of source rows of a result's row; writes their weights, which sum to 1."""
    scale = old / new
    stretch = max(scale, 1.0)
    centre = (row + 0.5) * scale
    first = max(int(centre - support * stretch + 0.5), 0)
    count = min(int(centre + support * stretch + 0.5), old) - first
    total = 0.0
    for k in range(count):
        weights[k] = _filter((first + k - centre + 0.5) / stretch, code)
        total += weights[k]
    for k in range(count):
        weights[k] /= total
    return first, count


@kernel(_signature)
def sum_positive(
    rows: NDArray[np.uint8],
    result: NDArray[np.uint8],
    top: int,
    left: int,
    height: int,
    code: int,
    support: float,
) -> None:
    """Rows of the result, each a sum of source rows, of a filter without negative lobes."""
    new, width = result.shape
    weights = np.empty(int(2 * support * max(height / new, 1.0)) + 3, dtype=np.float64)
    sums = np.empty(width, dtype=np.uint16)
    for y in range(new):
        first, count = _weights(y, height, new, code, support, weights)
        sums[:] = np.uint16(128)
        running, given = 0.0, 0
        for k in range(count):
            # Rounding the running sum makes the weights add up to 256 exactly: 256 · 255 + 128 fits 16 bits.
            running += 256 * weights[k]
            weight = np.uint16(int(running + 0.5) - given)
            given = int(running + 0.5)
            row = rows[top + first + k, left : left + width]
            if weight > 0:
                for x in range(width):
                    sums[x] = np.uint16(sums[x] + np.uint16(weight * np.uint16(row[x])))
        for x in range(width):
            result[y, x] = np.uint8(sums[x] >> np.uint16(8))


@kernel(_signature, fastmath=True)
def sum_signed(
    rows: NDArray[np.uint8],
    result: NDArray[np.uint8],
    top: int,
    left: int,
    height: int,
    code: int,
    support: float,
) -> None:
    """Rows of the result, each a sum of source rows, of any filter."""
    new, width = result.shape
    weights = np.empty(int(2 * support * max(height / new, 1.0)) + 3, dtype=np.float64)
    sums = np.empty(width, dtype=np.float32)
    for y in range(new):
        first, count = _weights(y, height, new, code, support, weights)
        sums[:] = np.float32(0.5)
        for k in range(count):
            weight = np.float32(weights[k])
            row = rows[top + first + k, left : left + width]
            for x in range(width):
                sums[x] += weight * np.float32(row[x])
        for x in range(width):
            result[y, x] = np.uint8(min(max(sums[x], np.float32(0)), np.float32(255)))
