"""The commonest pipeline for a whole unit at a time: RandomResizedCrop, flips, conversion, normalization.

What concerns all samples of a unit (random numbers, boxes, flips) is done for all at once in an array, its
plan; of images that need no decoding, the pixels as well. The others are decoded one by one, and written by
the same kernel. The results are those of the steps one by one, to the bit; Python is needed little, and so
is the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rekindle.core.limits import Limits
from rekindle.errors import ArgumentError
from rekindle.fetch.source import MappedSamples, Stored
from rekindle.prepare import fused_kernel, unit_kernel
from rekindle.prepare.decode.decode import Header, read_header
from rekindle.prepare.decode.partial_decode import decode_box
from rekindle.prepare.decode.raw_pixels import check_pixels
from rekindle.prepare.decode.raw_units import compile_raw_headers, read_raw_headers
from rekindle.prepare.fused_kernel import Table, Values
from rekindle.prepare.fusion import BoundStep
from rekindle.prepare.lookup_table import normalization_of
from rekindle.prepare.steps.crop import RandomResizedCrop
from rekindle.prepare.steps.flip import RandomHorizontalFlip
from rekindle.prepare.steps.image_step import ChanceStep
from rekindle.prepare.steps.step import Step, Uniforms
from rekindle.prepare.unit_plan import COLUMNS, Column, Plan
from rekindle.prepare.unit_windows import bounds_of, compile_boxes, find_boxes

_NOTHING = np.empty((3, 0), dtype=np.uint8)  # to convert with


class UnitPipeline:
    """A crop, flips and a table, which the steps on tensors are merged into, for the samples of a unit."""

    def __init__(
        self,
        crop: BoundStep[RandomResizedCrop],
        flips: Sequence[BoundStep[ChanceStep]],
        table: Table,
        on_tensors: Sequence[Step],
        channels_last: bool,
        limits: Limits,
    ) -> None:
        self.size = crop.step.size
        self._uniforms, self._bounds = crop.uniforms, bounds_of(crop.step)
        self._flips = [
            (
                Column.MIRRORED if isinstance(flip.step, RandomHorizontalFlip) else Column.UPSIDE_DOWN,
                flip.uniforms.start,
                flip.step.p,
            )
            for flip in flips
        ]
        constants = normalization_of(on_tensors, table, channels_last, unit_kernel.convert_image)
        # Bytes that stay as they are need no table.
        self._values = constants if constants.size else _NOTHING if table is fused_kernel.IDENTITY else table
        self._limits = limits

    def compile_kernels(self, contiguous: bool) -> None:
        """Compile what is needed, or load it: before there are workers, which would each do it."""
        compile_boxes()
        unit_kernel.compile_write(self._values.dtype, contiguous)

    def compile_for_mapped(self) -> None:
        """Likewise for `write_mapped`."""
        compile_raw_headers()

    def _plan(self, rows: Sequence[int], uniforms: Uniforms, out: Values) -> Plan:
        if out.shape != (len(uniforms), 3, *self.size):
            raise ArgumentError(
                f"{len(uniforms)} images of {self.size} pixels do not fit an array of {out.shape}"
            )
        plan = np.zeros((len(rows), COLUMNS), dtype=np.int64)
        plan[:, Column.ROW] = rows
        for column, number, p in self._flips:
            plan[:, column] ^= uniforms[plan[:, Column.ROW], number] < p
        return plan

    def _find_boxes(self, plan: Plan, uniforms: Uniforms) -> None:
        find_boxes(
            plan, uniforms[plan[:, Column.ROW], self._uniforms], self._bounds, self.size, self._limits.pixels
        )

    def write_mapped(self, samples: MappedSamples, uniforms: Uniforms, out: Values) -> list[int]:
        """Write raw images straight from their files to `out`; returns the rows that this cannot do."""
        plan = self._plan(range(len(samples.files)), uniforms, out)
        plan[:, Column.SOURCE], plan[:, Column.START] = samples.files, samples.offsets
        for number, file in samples.memory.items():
            read_raw_headers(file, number, plan, samples.lengths, self._limits.pixels)
        self._find_boxes(plan, uniforms)
        widest = int(plan[:, Column.BOX_WIDTH].max(initial=0))
        for number, file in samples.memory.items():
            unit_kernel.write_boxes(file, number, plan, self._values, out, widest)
        left: list[int] = np.flatnonzero(plan[:, Column.SOURCE] < 0).tolist()
        return left

    def write(
        self, stored: Sequence[Stored], rows: Sequence[int], uniforms: Uniforms, out: Values
    ) -> list[int]:
        """Write images to these rows of `out`; returns the numbers of those that this cannot do."""
        headers = [_header(data, self._limits) for data in stored]
        plan = self._plan(rows, uniforms, out)
        plan[:, Column.HEIGHT : Column.WIDTH + 1] = [header[:2] for header in headers]
        plan[:, Column.SOURCE] = range(len(stored))
        self._find_boxes(plan, uniforms)
        left = []
        for number, (source, _, height, _, *numbers) in enumerate(plan.tolist()):
            if source < 0:
                left.append(number)
                continue
            data, box = stored[number], tuple(numbers[:4])
            if isinstance(data, np.ndarray):
                pixels = data
            else:
                pixels, found = decode_box(headers[number], data, box, self.size)
                if found is not box:
                    plan[number, Column.HEIGHT : Column.BOX_WIDTH + 1] = *pixels.shape[:2], *found
                elif len(pixels) != height:
                    plan[number, Column.HEIGHT] = len(pixels)
            unit_kernel.write_boxes(pixels.reshape(-1), number, plan, self._values, out, box[3])
        return left


def _header(data: Stored, limits: Limits) -> Header:
    """Size of an image, and what is needed to decode it."""
    if isinstance(data, np.ndarray):
        height, width = check_pixels(data).shape[:2]
        return Header(height, width, "none")
    return read_header(data, limits)
