"""Whether what a unit's plan says can be read and written: kernels find out before they do.

What lies in a file may be wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code
from rekindle.core.compiler import part_of_kernels
from rekindle.errors import ArgumentError
from rekindle.prepare.unit_plan import Column, Plan

check_compiled_code()


@part_of_kernels(error_model="numpy")
def has_pixels(plan: Plan, n: int, nbytes: int, rows: int) -> bool:
    """Whether the image of a plan's row lies within `nbytes` of memory, and its result in one of `rows`."""
    at, height, width = plan[n, Column.START], plan[n, Column.HEIGHT], plan[n, Column.WIDTH]
    if at < 0 or at >= nbytes or width <= 0 or width > nbytes or height <= 0:
        return False
    if plan[n, Column.ROW] < 0 or plan[n, Column.ROW] >= rows:
        return False
    return bool(height <= (nbytes - at) // (3 * width))


def impossible(plan: Plan, row: int, pixels: NDArray[np.uint8], out: NDArray[Any]) -> ArgumentError:
    """The error for a plan that a kernel has refused, because of this row or as a whole."""
    what = plan[row].tolist() if row < len(plan) else plan.shape
    return ArgumentError(f"cannot write {what} of {pixels.size} bytes to an array of {out.dtype} {out.shape}")
