"""Where the pixels of a unit's raw images lie in a file: their PPM headers, all read in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import kernel
from rekindle.prepare.unit_plan import Column, Plan

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

_HEADER = 32  # bytes: `decode.read_header` reads no longer one either
_DIGITS = 9


def compile_raw_headers() -> None:
    """Compile the kernel, or load it: before there are workers, which would each do it."""
    _read_headers()


def read_raw_headers(
    file: NDArray[np.uint8], source: int, plan: Plan, lengths: NDArray[np.int64], most_pixels: int
) -> None:
    """Fill in start and size of the plan's images that are in this file, as `decode.read_header` finds them.

    The plan has where each begins, and `lengths` the bytes of each. What is no PPM of the shortest kind, or
    has more pixels than allowed, has no source then. Images with a height have no header.
    """
    if lengths.shape != (len(plan),):
        raise ValueError(f"{lengths.shape} lengths for {len(plan)} samples")
    _read_headers()(file, source, plan, lengths, most_pixels)


def _signature() -> Signature:
    from numba import int64, types, uint8, void

    return void(types.Array(uint8, 1, "C", readonly=True), int64, int64[:, ::1], int64[::1], int64)


@kernel(_signature, error_model="numpy")
def _read_headers(
    file: NDArray[np.uint8], source: int, plan: Plan, lengths: NDArray[np.int64], most_pixels: int
) -> None:
    for n in range(plan.shape[0]):
        if plan[n, Column.SOURCE] != source or plan[n, Column.HEIGHT] > 0:
            continue
        plan[n, Column.SOURCE] = -1
        at, length = plan[n, Column.START], lengths[n]
        if not (0 <= at <= file.size and 11 <= length <= file.size - at):
            continue
        end = at + min(length, _HEADER)
        if file[at] != ord("P") or file[at + 1] != ord("6") or file[at + 2] != ord("\n"):
            continue
        at += 3
        width = height = 0
        right = True
        for after in (ord(" "), ord("\n")):
            width, height, digits = height, 0, 0
            while at < end and digits < _DIGITS and ord("0") <= file[at] <= ord("9"):
                height = 10 * height + (file[at] - ord("0"))
                if height == 0:  # a leading zero
                    break
                digits, at = digits + 1, at + 1
            right = right and digits > 0 and at < end and file[at] == after
            at += 1
        # "255\n" follows; the product of numbers of nine digits fits 64 bits.
        if not right or at + 4 > end or height * width > most_pixels:
            continue
        if (
            file[at] != ord("2")
            or file[at + 1] != ord("5")
            or file[at + 2] != ord("5")
            or file[at + 3] != ord("\n")
        ):
            continue
        at += 4
        if at + 3 * height * width <= plan[n, Column.START] + length:
            plan[n, Column.SOURCE], plan[n, Column.START] = source, at
            plan[n, Column.HEIGHT], plan[n, Column.WIDTH] = height, width
