"""The commonest pipeline for a whole unit at a time: RandomResizedCrop, flips, conversion, normalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rekindle.core.limits import Limits
from rekindle.fetch.source import Encoded
from rekindle.prepare.compiled_units import CompiledUnits
from rekindle.prepare.decode.decode import Header
from rekindle.prepare.decode.partial_decode import decode_box
from rekindle.prepare.decode.raw_units import compile_raw_headers
from rekindle.prepare.fused_kernel import Bytes, Table, Values
from rekindle.prepare.fusion import BoundStep
from rekindle.prepare.resized_crop_boxes import bounds_of, compile_boxes, find_boxes
from rekindle.prepare.steps.crop import RandomResizedCrop
from rekindle.prepare.steps.image_step import ChanceStep
from rekindle.prepare.steps.step import Step, Uniforms
from rekindle.prepare.unit_plan import Column, Plan, WriteImages

# The kernel is imported where it is used: numba takes long to load, in vain if nothing is compiled yet.


def compile_kernels(floats: bool) -> None:
    """Compile all that units with results of floats or bytes need, or load it."""
    compile_boxes()
    compile_raw_headers()
    from rekindle.prepare import resized_crop_kernel

    resized_crop_kernel.compile_write(floats)


class ResizedCropUnits(CompiledUnits):
    """A crop that is resized, flips and a table, for the samples of a unit."""

    runs_alone = True
    size: tuple[int, int]

    def __init__(
        self,
        crop: BoundStep[RandomResizedCrop],
        flips: Sequence[BoundStep[ChanceStep]],
        table: Table,
        on_tensors: Sequence[Step],
        channels_last: bool,
        limits: Limits,
    ) -> None:
        super().__init__(flips, table, on_tensors, channels_last, limits)
        self.size = crop.step.size
        self._uniforms, self._bounds = crop.uniforms, bounds_of(crop.step)

    def _compiler(self) -> Callable[[bool], None]:
        return compile_kernels

    def _find_boxes(self, plan: Plan, uniforms: Uniforms, size: tuple[int, int]) -> None:
        find_boxes(
            plan, uniforms[plan[:, Column.ROW], self._uniforms], self._bounds, size, self._limits.pixels
        )

    def _writer(self, plan: Plan, values: Table, out: Values) -> WriteImages:
        from rekindle.prepare import resized_crop_kernel

        return resized_crop_kernel.box_writer(
            plan, values, out, int(plan[:, Column.BOX_WIDTH].max(initial=0))
        )

    def _decode(self, header: Header, data: Encoded, row: Plan, size: tuple[int, int]) -> Bytes:
        top, left, height, width = row[Column.TOP : Column.BOX_WIDTH + 1].tolist()
        box = (top, left, height, width)
        pixels, found = decode_box(header, data, box, size)
        if found is not box:
            row[Column.HEIGHT : Column.BOX_WIDTH + 1] = *pixels.shape[:2], *found
        elif len(pixels) != header.height:
            row[Column.HEIGHT] = len(pixels)
        return pixels
