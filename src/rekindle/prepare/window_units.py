"""Pipelines that resize nothing, for a whole unit at a time: a crop or none, flips, a table.

Of images that lie in memory or in packed files as pixels, all of a unit are one call of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import Limits
from rekindle.errors import ArgumentError, DecodeError
from rekindle.fetch.source import Encoded
from rekindle.prepare.compiled_units import CompiledUnits
from rekindle.prepare.decode.decode import Header, decode_with, pixels_of
from rekindle.prepare.decode.raw_units import compile_raw_headers
from rekindle.prepare.fused_kernel import Table, Values
from rekindle.prepare.fusion import BoundStep, crop_offsets
from rekindle.prepare.steps.crop_window import WindowStep
from rekindle.prepare.steps.image_step import ChanceStep
from rekindle.prepare.steps.step import Image, Step, Uniforms
from rekindle.prepare.unit_plan import Column, Plan, WriteImages

# The kernel is imported where it is used: numba takes long to load, in vain if nothing is compiled yet.
_HIGHEST_BITS = 32  # that a height is shifted by, to make one number of it and a width


def compile_kernels(floats: bool) -> None:
    """Compile all that units with results of floats or bytes need, or load it."""
    compile_raw_headers()
    from rekindle.prepare import window_kernel

    window_kernel.compile_write(floats)


class WindowUnits(CompiledUnits):
    """A crop that is not resized, or none, flips and a table, for the samples of a unit."""

    runs_alone = False  # A sample alone is cropped by NumPy in less time than it takes to make a plan.

    def __init__(
        self,
        crop: BoundStep[WindowStep] | None,
        flips: Sequence[BoundStep[ChanceStep]],
        table: Table,
        on_tensors: Sequence[Step],
        channels_last: bool,
        limits: Limits,
        soon: bool,
    ) -> None:
        super().__init__(flips, table, on_tensors, channels_last, limits, soon)
        self._crop, self.size = crop, None if crop is None else crop.step.size
        self._fill = np.array(crop.step.fill if crop else (0, 0, 0), dtype=np.uint8)

    def _compiler(self) -> Callable[[bool], None]:
        return compile_kernels

    def _find_boxes(self, plan: Plan, uniforms: Uniforms, size: tuple[int, int]) -> None:
        plan[:, Column.BOX_HEIGHT : Column.BOX_WIDTH + 1] = size
        shapes = plan[:, Column.HEIGHT] << _HIGHEST_BITS | plan[:, Column.WIDTH]
        shapes[plan[:, Column.SOURCE] < 0] = -1
        first = int(shapes.max(initial=-1))
        found = [first] if (shapes == first).all() else np.unique(shapes).tolist()
        for shape in found:
            if shape < 0:
                continue
            rows = slice(None) if len(found) == 1 else np.flatnonzero(shapes == shape)
            height, width = shape >> _HIGHEST_BITS, shape & (1 << _HIGHEST_BITS) - 1
            offsets = self._offsets(height, width, uniforms[plan[rows, Column.ROW]], size)
            if offsets is None:
                plan[rows, Column.SOURCE] = -1
            else:
                plan[rows, Column.TOP], plan[rows, Column.LEFT] = offsets

    def _offsets(
        self, height: int, width: int, uniforms: Uniforms, size: tuple[int, int]
    ) -> tuple[NDArray[np.int64] | int, NDArray[np.int64] | int] | None:
        """Tops and lefts of the crop; None for images that it is no crop of this size of."""
        if self._crop is None:
            return (0, 0) if (height, width) == size else None
        try:
            tops, lefts, *found = crop_offsets(self._crop, height, width, uniforms)
        except (ArgumentError, DecodeError):  # Raised again by the step, for each sample.
            return None
        return (tops, lefts) if tuple(found) == size else None

    def _writer(self, plan: Plan, values: Table, out: Values) -> WriteImages:
        from rekindle.prepare import window_kernel

        return window_kernel.window_writer(plan, self._fill, values, out)

    def _decode(self, header: Header, data: Encoded, row: Plan, size: tuple[int, int]) -> Image:
        if header.decoder == "ppm":
            return pixels_of(header, data)
        return decode_with(header, data, scratch=True)
