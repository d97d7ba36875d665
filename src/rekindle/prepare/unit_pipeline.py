"""The commonest pipeline for a whole unit at a time: RandomResizedCrop, flips, conversion, normalization.

What concerns all samples of a unit (random numbers, boxes, flips) is done for all at once in an array, its
plan; of images that need no decoding, the pixels as well. The others are decoded one by one, and written by
the same kernel. The results are those of the steps one by one, to the bit; Python is needed little, and so
is the GIL.

The kernels take long to compile. So those that are not on disk yet are compiled later, in another process,
and until they are there, samples are loaded one by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rekindle.core.compile_later import compile_later
from rekindle.core.compiled_code import NotCompiledError, only_loading
from rekindle.core.limits import Limits
from rekindle.errors import ArgumentError
from rekindle.fetch.source import MappedSamples, Stored
from rekindle.prepare import fused_kernel
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

if TYPE_CHECKING:
    from rekindle.prepare.unit_kernel import WriteBoxes

# `unit_kernel` is imported where it is used: numba takes long to load, in vain if nothing is compiled yet.
_NOTHING = np.empty((3, 0), dtype=np.uint8)  # to convert with
_LOOK_EVERY = 2.0  # seconds, for kernels that another process compiles


def compile_kernels(floats: bool, contiguous: bool) -> None:
    """Compile all that units with results of this kind need, or load it."""
    compile_boxes()
    compile_raw_headers()
    from rekindle.prepare import unit_kernel

    unit_kernel.compile_write(floats, contiguous)


class UnitPipeline:
    """A crop, flips and a table, which the steps on tensors are merged into, for the samples of a unit."""

    def __init__(
        self,
        crop: BoundStep[RandomResizedCrop],
        flips: Sequence[BoundStep[ChanceStep]],
        table: Table,
        on_tensors: Sequence[Step],
        channels_last: bool,
        contiguous: bool,
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
        self._table, self._on_tensors, self._channels_last = table, on_tensors, channels_last
        self._kernels = table.dtype == np.float32, contiguous
        self._limits = limits
        self._values: Table | None = None  # that pixels are converted with; not known without the kernels
        self._look_at = 0.0  # for the kernels on disk

    def __getstate__(self) -> dict[str, object]:
        # The same whether the kernels are there or not: fingerprints are made of it.
        return {**self.__dict__, "_values": None, "_look_at": 0.0}

    def is_ready(self) -> bool:
        """Whether the kernels are there; loads them if so. Otherwise they will be compiled later."""
        if self._values is not None:
            return True
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY
        try:
            with only_loading():
                self.compile_now()
        except NotCompiledError:
            compile_later(__name__, compile_kernels.__name__, *self._kernels)
        return self._values is not None

    def compile_now(self) -> None:
        """Compile the kernels, or load them."""
        compile_kernels(*self._kernels)
        from rekindle.prepare import unit_kernel

        table = self._table
        constants = normalization_of(self._on_tensors, table, self._channels_last, unit_kernel.convert_image)
        # Bytes that stay as they are need no table.
        is_identity = table.dtype == np.uint8 and np.array_equal(table, fused_kernel.IDENTITY)
        self._values = constants if constants.size else _NOTHING if is_identity else table

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
        write = self._writer(plan, out)
        for number, file in samples.memory.items():
            write(file, number)
        left: list[int] = np.flatnonzero(plan[:, Column.SOURCE] < 0).tolist()
        return left

    def _writer(self, plan: Plan, out: Values) -> WriteBoxes:
        from rekindle.prepare import unit_kernel

        assert self._values is not None
        return unit_kernel.box_writer(plan, self._values, out, int(plan[:, Column.BOX_WIDTH].max(initial=0)))

    def write(
        self, stored: Sequence[Stored], rows: Sequence[int], uniforms: Uniforms, out: Values
    ) -> list[int]:
        """Write images to these rows of `out`; returns the numbers of those that this cannot do."""
        headers = [_header(data, self._limits) for data in stored]
        plan = self._plan(rows, uniforms, out)
        plan[:, Column.HEIGHT : Column.WIDTH + 1] = [header[:2] for header in headers]
        plan[:, Column.SOURCE] = range(len(stored))
        self._find_boxes(plan, uniforms)
        write, size, left = self._writer(plan, out), self.size, []
        boxes = map(tuple, plan[:, Column.TOP : Column.BOX_WIDTH + 1].tolist())
        for number, (data, header, source, box) in enumerate(
            zip(stored, headers, plan[:, Column.SOURCE].tolist(), boxes, strict=True)
        ):
            if source < 0:
                left.append(number)
                continue
            if isinstance(data, np.ndarray):
                pixels = data
            else:
                pixels, found = decode_box(header, data, box, size)
                if found is not box:
                    plan[number, Column.HEIGHT : Column.BOX_WIDTH + 1] = *pixels.shape[:2], *found
                elif len(pixels) != header.height:
                    plan[number, Column.HEIGHT] = len(pixels)
            write(pixels.ravel(), number)
        return left


def _header(data: Stored, limits: Limits) -> Header:
    """Size of an image, and what is needed to decode it."""
    if isinstance(data, np.ndarray):
        height, width = check_pixels(data).shape[:2]
        return Header(height, width, "none")
    return read_header(data, limits)
