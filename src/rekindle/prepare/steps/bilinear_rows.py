"""Rows resized by Pillow's bilinear filter, in NumPy: what loading begins with until the kernel is compiled.

The same as the kernel of `antialiased_resize` to the bit, in eight times the time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def write(rows: NDArray[np.uint8], result: NDArray[np.uint8], top: int, left: int, height: int) -> None:
    """Write weighted sums of `height` rows, from (`top`, `left`) on, to the rows of the result."""
    count, width = result.shape
    first, weights = _weights(height, count)
    sums = np.full((count, width), 128, dtype=np.uint16)
    for shift in range(weights.shape[1]):
        # Where a filter ends before, its weights are 0, whatever row they are for.
        source = rows[top + np.minimum(first + shift, height - 1), left : left + width]
        sums += source * weights[:, shift, None]
    np.right_shift(sums, 8, out=sums)
    result[:] = sums


def _weights(height: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """For each new row, its first source row and the weights of that and those after it, in 1/256ths."""
    scale = height / count
    stretch = max(scale, 1.0)
    centres = (np.arange(count) + 0.5) * scale
    first = np.maximum((centres - stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + stretch + 0.5).astype(np.int64), height)
    shifts = np.arange(int((last - first).max()))
    distances = np.abs((first[:, None] + shifts - centres[:, None] + 0.5) / stretch)
    is_used = (distances < 1.0) & (shifts < (last - first)[:, None])
    values = np.where(is_used, 1.0 - distances, 0.0)
    # Sums one after the other, as the kernel adds.
    totals = values.cumsum(axis=1)[:, -1:]
    running = (256 * (values / totals)).cumsum(axis=1)
    return first, np.diff((running + 0.5).astype(np.int64), axis=1, prepend=0).astype(np.uint16)
