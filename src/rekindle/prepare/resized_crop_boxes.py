"""The boxes of a unit's samples in one call: those of `RandomResizedCrop.window`, to the bit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import kernel
from rekindle.prepare.steps.crop import ATTEMPTS, RandomResizedCrop
from rekindle.prepare.steps.step import Uniforms
from rekindle.prepare.unit_plan import Column, Plan

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature


def bounds_of(step: RandomResizedCrop) -> NDArray[np.float64]:
    """The parameters that `find_boxes` needs."""
    narrowest, widest = step.ratio
    return np.array([*step.scale, math.log(narrowest), math.log(widest), narrowest, widest])


def compile_boxes() -> None:
    """Compile the kernel, or load it: before there are workers, which would each do it."""
    _find_boxes()


def find_boxes(
    plan: Plan,
    uniforms: Uniforms,
    bounds: NDArray[np.float64],
    size: tuple[int, int],
    most_pixels: int,
) -> None:
    """Fill in the boxes of the plan's images, given four random numbers for each.

    An image whose box cannot be resized to `size` within the limit on pixels has no source then.
    """
    numbers = np.ascontiguousarray(uniforms)
    if numbers.shape != (len(plan), 4):
        raise ValueError(f"uniforms of shape {numbers.shape} for {len(plan)} samples")
    _find_boxes()(plan, numbers, numbers.view(np.uint64), bounds, *size, most_pixels)


def _signature() -> Signature:
    from numba import float64, int64, uint64, void

    numbers, bits = float64[:, ::1], uint64[:, ::1]
    return void(int64[:, ::1], numbers, bits, float64[::1], int64, int64, int64)


@kernel(_signature, error_model="numpy")
def _find_boxes(
    plan: Plan,
    uniforms: Uniforms,
    bits: NDArray[np.uint64],
    bounds: NDArray[np.float64],
    new_height: int,
    new_width: int,
    most_pixels: int,
) -> None:
    golden = np.uint64(0x9E3779B97F4A7C15)
    m1, m2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
    b30, b27, b31, b11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
    smallest, largest, narrowest, widest = bounds[0], bounds[1], bounds[2], bounds[3]
    for n in range(plan.shape[0]):
        if plan[n, Column.SOURCE] < 0:
            continue
        height, width = plan[n, Column.HEIGHT], plan[n, Column.WIDTH]
        area, shape = uniforms[n, 0], uniforms[n, 1]
        state = np.uint64(0)
        found = False
        for attempt in range(ATTEMPTS):
            target = height * width * (smallest + area * (largest - smallest))
            ratio = math.exp(narrowest + shape * (widest - narrowest))
            columns, rows = np.rint(math.sqrt(target * ratio)), np.rint(math.sqrt(target / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                box_height, box_width = int(rows), int(columns)
                spare_height, spare_width = height - box_height, width - box_width
                top = min(int(uniforms[n, 2] * (spare_height + 1)), spare_height)
                left = min(int(uniforms[n, 3] * (spare_width + 1)), spare_width)
                found = True
                break
            # As `image_step.more_uniforms`.
            if attempt == 0:
                for k in range(4):
                    state ^= bits[n, k]
                    state = (state ^ (state >> b30)) * m1
                    state = (state ^ (state >> b27)) * m2
                    state ^= state >> b31
            for _ in range(2):
                state += golden
                word = (state ^ (state >> b30)) * m1
                word = (word ^ (word >> b27)) * m2
                word ^= word >> b31
                area, shape = shape, np.float64(word >> b11) * 2.0**-53
        if not found:  # the largest box in the centre whose ratio is allowed
            box_height, box_width = height, width
            if width / height < bounds[4]:
                box_height = max(int(np.rint(width / bounds[4])), 1)
            elif width / height > bounds[5]:
                box_width = max(int(np.rint(height * bounds[5])), 1)
            top, left = (height - box_height) // 2, (width - box_width) // 2
        plan[n, Column.TOP], plan[n, Column.LEFT] = top, left
        plan[n, Column.BOX_HEIGHT], plan[n, Column.BOX_WIDTH] = box_height, box_width
        if new_height * max(box_width, new_width) > most_pixels:
            plan[n, Column.SOURCE] = -1
