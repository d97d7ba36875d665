"""Samples of a whole unit at a time, by compiled kernels: what the pipelines that are so run have in common.

What concerns all samples of a unit (random numbers, boxes, flips) is done for all at once in an array, its
plan; of images that need no decoding, the pixels as well. The others are decoded one by one, and written by
the same kernel. The results are those of the steps one by one, to the bit; Python is needed little, and so
is the GIL.

The kernels take long to compile. So those that are not on disk yet are compiled later, in another process,
and until they are there, samples are loaded one by one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compile_later import can_be_left_to_another, compile_later
from rekindle.core.compiled_code import NotCompiledError, only_loading
from rekindle.core.limits import Limits
from rekindle.errors import ArgumentError
from rekindle.fetch.source import Encoded, MappedSamples, Stored
from rekindle.prepare import fused_kernel
from rekindle.prepare.decode.decode import Header, read_header
from rekindle.prepare.decode.raw_pixels import check_pixels
from rekindle.prepare.decode.raw_units import read_raw_headers
from rekindle.prepare.fused_kernel import Bytes, Floats, Table, Values
from rekindle.prepare.fusion import BoundStep
from rekindle.prepare.lookup_table import normalization_of
from rekindle.prepare.steps.flip import RandomHorizontalFlip
from rekindle.prepare.steps.image_step import ChanceStep
from rekindle.prepare.steps.step import Step, Uniforms
from rekindle.prepare.steps.to_tensor import FirstChannel
from rekindle.prepare.unit_plan import COLUMNS, Column, Plan, WriteImages

_NOTHING = np.empty((3, 0), dtype=np.uint8)  # to convert with
_LOOK_EVERY = 2.0  # seconds, for kernels that another process compiles


class CompiledUnits(ABC):
    """Windows of images, flips and a table, which the steps on tensors are merged into.

    Attributes:
        size: Height and width of the results, where that is known.
        runs_alone: Whether a single sample is best run in this way, too.

    """

    runs_alone: ClassVar[bool]
    size: tuple[int, int] | None

    def __init__(
        self,
        flips: Sequence[BoundStep[ChanceStep]],
        table: Table,
        on_tensors: Sequence[Step],
        channels_last: bool,
        limits: Limits,
        soon: bool = False,
    ) -> None:
        self._flips = [
            (
                Column.MIRRORED if isinstance(flip.step, RandomHorizontalFlip) else Column.UPSIDE_DOWN,
                flip.uniforms.start,
                flip.step.p,
            )
            for flip in flips
        ]
        self._table, self._on_tensors, self._channels_last = table, on_tensors, channels_last
        self._is_grey = bool(on_tensors) and isinstance(on_tensors[-1], FirstChannel)
        self._floats = bool(table.dtype == np.float32)
        self._limits, self._soon = limits, soon
        self._values: Table | None = None  # that pixels are converted with; not known without the kernels
        self._look_at = 0.0  # for the kernels on disk

    def __getstate__(self) -> dict[str, object]:
        # The same whether the kernels are there or not: fingerprints are made of it.
        return {**self.__dict__, "_values": None, "_look_at": 0.0}

    @abstractmethod
    def _compiler(self) -> Callable[[bool], None]:
        """What compiles all kernels for results of floats or bytes, or loads them."""

    @abstractmethod
    def _find_boxes(self, plan: Plan, uniforms: Uniforms, size: tuple[int, int]) -> None:
        """Fill in what is wanted of the plan's images; those for which it cannot be have no source then."""

    @abstractmethod
    def _writer(self, plan: Plan, values: Table, out: Values) -> WriteImages:
        """What writes the plan's images to `out`."""

    @abstractmethod
    def _decode(self, header: Header, data: Encoded, row: Plan, size: tuple[int, int]) -> Bytes:
        """The pixels of an encoded image; the row of the plan is changed if they are others than it says."""

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
            compiler = self._compiler()
            if self._soon and not can_be_left_to_another():
                self.compile_now()
            else:
                compile_later(compiler.__module__, compiler.__name__, self._floats, soon=self._soon)
        return self._values is not None

    def compile_now(self) -> None:
        """Compile the kernels, or load them."""
        self._compiler()(self._floats)
        table = self._table
        constants = normalization_of(self._on_tensors, table, self._channels_last, self._convert_image)
        # Bytes that stay as they are need no table.
        is_identity = table.dtype == np.uint8 and np.array_equal(table, fused_kernel.IDENTITY)
        self._values = constants if constants.size else _NOTHING if is_identity else table

    def _convert_image(self, image: Bytes, table: Table, constants: Floats, out: Values) -> None:
        """Write a whole image to `out`, channels × rows × columns, computed with these constants."""
        plan, size = np.zeros((1, COLUMNS), dtype=np.int64), image.shape[:2]
        plan[:, Column.HEIGHT : Column.WIDTH + 1] = plan[:, Column.BOX_HEIGHT : Column.BOX_WIDTH + 1] = size
        self._writer(plan, constants, out[None])(image.reshape(-1), 0)

    def _planes(self, out: Values, count: int) -> Values:
        """Where the kernel writes three channels for each row of `out`, the results of `count` samples."""
        if self._is_grey:
            planes: Values = np.empty((len(out), 3, *out.shape[2:]), dtype=self._table.dtype)
        else:
            planes = out if self._on_tensors else out.transpose(0, 3, 1, 2)
        if planes.shape != (count, 3, *(self.size or planes.shape[2:])):
            raise ArgumentError(f"{count} images of {self.size} pixels do not fit an array of {out.shape}")
        return planes

    def _keep_grey(self, planes: Values, out: Values, rows: Sequence[int] | slice) -> None:
        """Of images that are grey, write one of the channels to `out`."""
        if self._is_grey:
            out[rows] = planes[rows, :1]

    def _plan(self, rows: Sequence[int], uniforms: Uniforms) -> Plan:
        plan = np.zeros((len(rows), COLUMNS), dtype=np.int64)
        plan[:, Column.ROW] = rows
        for column, number, p in self._flips:
            plan[:, column] ^= uniforms[plan[:, Column.ROW], number] < p
        return plan

    def write_mapped(self, samples: MappedSamples, uniforms: Uniforms, out: Values) -> list[int]:
        """Write raw images straight from their files to `out`; returns the rows that this cannot do."""
        plan = self._plan(range(len(samples.files)), uniforms)
        self._read_headers(plan, samples)
        return self._write_plan(plan, samples.memory, uniforms, out)

    def _read_headers(self, plan: Plan, samples: MappedSamples) -> None:
        """Fill in where images are, and how large; those for which that is not known have no source then."""
        plan[:, Column.SOURCE], plan[:, Column.START] = samples.files, samples.offsets
        plan[:, Column.HEIGHT], plan[:, Column.WIDTH] = samples.heights, samples.widths
        for number, file in samples.memory.items():
            read_raw_headers(file, number, plan, samples.lengths, self._limits.pixels)

    def size_of(self, samples: MappedSamples) -> tuple[int, int] | None:
        """Height and width of raw images in files; None unless all have the same."""
        plan = np.zeros((len(samples.files), COLUMNS), dtype=np.int64)
        self._read_headers(plan, samples)
        sizes = plan[:, Column.HEIGHT : Column.WIDTH + 1]
        if not len(plan) or (plan[:, Column.SOURCE] < 0).any() or (sizes != sizes[0]).any():
            return None
        height, width = sizes[0].tolist()
        return height, width

    def write_chosen(
        self, images: Bytes, indices: NDArray[np.int64], uniforms: Uniforms, out: Values
    ) -> list[int]:
        """Write `images[index]`, for each index, to its row of `out`; returns the rows that it cannot do."""
        height, width, depth = images.shape[1:]
        plan = self._plan(range(len(indices)), uniforms)
        plan[:, Column.START] = indices * (height * width * depth)
        plan[:, Column.HEIGHT], plan[:, Column.WIDTH] = height, width
        return self._write_plan(plan, {0: images.reshape(-1)}, uniforms, out)

    def _write_plan(self, plan: Plan, memory: dict[int, Bytes], uniforms: Uniforms, out: Values) -> list[int]:
        """Write what needs no decoding; returns the numbers of those that this cannot do."""
        planes = self._planes(out, len(uniforms))
        self._find_boxes(plan, uniforms, planes.shape[2:])
        assert self._values is not None
        write = self._writer(plan, self._values, planes)
        for number, pixels in memory.items():
            write(pixels, number)
        self._keep_grey(planes, out, slice(None))
        left: list[int] = np.flatnonzero(plan[:, Column.SOURCE] < 0).tolist()
        return left

    def write(
        self, stored: Sequence[Stored], rows: Sequence[int], uniforms: Uniforms, out: Values
    ) -> list[int]:
        """Write images to these rows of `out`; returns the numbers of those that this cannot do."""
        planes, plan = self._planes(out, len(uniforms)), self._plan(rows, uniforms)
        headers, size = [_header(data, self._limits) for data in stored], planes.shape[2:]
        plan[:, Column.HEIGHT : Column.WIDTH + 1] = [header[:2] for header in headers]
        plan[:, Column.SOURCE] = range(len(stored))
        self._find_boxes(plan, uniforms, size)
        assert self._values is not None
        write, left = self._writer(plan, self._values, planes), []
        for number, (data, header, source) in enumerate(
            zip(stored, headers, plan[:, Column.SOURCE].tolist(), strict=True)
        ):
            if source < 0:
                left.append(number)
                continue
            pixels = data if isinstance(data, np.ndarray) else self._decode(header, data, plan[number], size)
            write(pixels.ravel(), number)
        self._keep_grey(planes, out, rows)
        return left


def _header(data: Stored, limits: Limits) -> Header:
    """Size of an image, and what is needed to decode it."""
    if isinstance(data, np.ndarray):
        height, width = check_pixels(data).shape[:2]
        return Header(height, width, "none")
    return read_header(data, limits)
