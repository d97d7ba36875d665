"""A pipeline of steps: from a file's bytes to the batch's memory, in as few passes over the pixels as
possible.

    bytes ──decode──▶ image ──steps, one by one──▶ image ──one pass──▶ out ──steps on tensors──▶ out

If the first step crops or resizes, only what it needs is decoded. Consecutive point operations become one
lookup table. What comes last before the conversion to a tensor (a crop, flips, point operations), the
conversion and the normalization are one pass of the compiled kernel, which writes to the batch's memory (see
`fusion`). The result is bit-identical to that of the steps one by one; only where the decoder reduces the
resolution (to 1/2, 1/4 or 1/8) do pixels differ, by about one grey level on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import ArgumentError
from rekindle.fetch.source import MappedSamples, Stored
from rekindle.prepare import fused_kernel
from rekindle.prepare.decode.decode import decode_with, pixels_of, read_header
from rekindle.prepare.decode.partial_decode import decode_window
from rekindle.prepare.decode.raw_pixels import check_pixels, crop_first, writable
from rekindle.prepare.fused_kernel import Values
from rekindle.prepare.fusion import (
    BoundStep,
    FusedTail,
    bind,
    crop_of_unit,
    crops_many,
    find_fused_tail,
    merge_point_steps,
    split_at_conversion,
)
from rekindle.prepare.lookup_table import lookup_table, normalization_of
from rekindle.prepare.output import Output
from rekindle.prepare.rgb import is_rgb
from rekindle.prepare.steps.compose import are_functions, input_checks
from rekindle.prepare.steps.crop_window import WindowStep
from rekindle.prepare.steps.flip import RandomHorizontalFlip
from rekindle.prepare.steps.point_operations import load_tables
from rekindle.prepare.steps.step import Image, Step, Uniforms, Value
from rekindle.prepare.steps.to_tensor import FirstChannel

if TYPE_CHECKING:
    from rekindle.prepare.compiled_units import CompiledUnits


class Pipeline:
    """A list of steps, ready to run on the bytes of an image file.

    Args:
        steps: Single steps of `rekindle.transforms` that fit together: the `parts` of a Compose.
        dtype: `torch.uint8` leaves the conversion to floats and the normalization to the device: the result
            is bytes, channels first.
        channels_last: Whether the channels of tensors are last in memory.
        limits: How large an image may be, as decoded and after every step.
        size: Height and width of all images before the first step, if they have one size.
        after_function: Whether the input is what a user's function returned, and may be anything.
        units: Whether to run whole units in one call (`compiled_units`), where that is possible, as soon as
            the kernels for it are compiled.

    Attributes:
        uniforms: How many uniform random numbers a sample needs.
        output: Shape and dtype of the result if it always has the same size; None otherwise.
        releases_gil: Whether nearly all of the work runs without the GIL.
        draws_nothing: Whether no step can draw random numbers of its own.

    """

    _first_window: BoundStep[WindowStep] | None = None  # the first step, if it crops or resizes
    # What follows from the steps, which are looked at: where a parameter is set, another pipeline is made.
    immutable_attributes = (
        "limits", "output", "_after", "_middle", "_crop", "_unfused", "_table", "_constants", "_fill",
        "_first_window", "_flips", "_unit",
    )  # fmt: skip

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        size: tuple[int, int] | None = None,
        after_function: bool = False,
        units: bool = False,
    ) -> None:
        self.steps = tuple(steps)
        if limits != DEFAULT_LIMITS:
            self.steps = tuple(step.with_limits(limits) for step in steps)
        self.uniforms: int = sum(map(attrgetter("uniforms"), self.steps))
        self.releases_gil = all(map(attrgetter("releases_gil"), self.steps))
        functions = are_functions(self.steps)
        self.draws_nothing = not any(functions)
        self.limits = limits
        self._dtype, self._channels_last, self._size = dtype, channels_last, size
        bound = bind(self.steps, input_checks(self.steps, functions, after_function), functions)
        on_images, on_tensors = split_at_conversion(bound)
        self._converts = bool(on_tensors)
        if channels_last and not self._converts:
            raise ArgumentError("channels_last is for tensors: add ToTensor() to the transform.")
        tail = find_fused_tail(on_images)
        self._middle, self._crop, flips, points = tail
        self._unfused = bound[len(self._middle) :]
        self._middle = merge_point_steps(self._middle)
        steps_on_tensors = list(map(attrgetter("step"), on_tensors))
        table, count = lookup_table(steps_on_tensors, dtype)
        self._after = on_tensors[count:]
        # The kernel knows images of three channels: of a grey one, all but the first are thrown away.
        self._is_grey = bool(self._after) and type(self._after[0].step) is FirstChannel
        if self._is_grey:
            del self._after[0]
        # All that is decided here is decided once, not for every sample.
        self._can_fuse = table is not None  # or else the kernel cannot write the dtype
        self._table = fused_kernel.IDENTITY if table is None else table
        if points is not None:
            self._table = np.ascontiguousarray(np.stack([self._table[c][points[:, c]] for c in range(3)]))
        fuses_all = units and self._can_fuse and not self._after
        self._unit = self._units_of(tail, steps_on_tensors) if fuses_all else None
        self.output = self._fixed_output(size)
        by_units_alone = self.output is not None and self.runs_units() and self._runs_alone
        self._fill = np.array(self._crop.step.fill if self._crop else (0, 0, 0), dtype=np.uint8)
        first = self._middle[0] if self._middle else None
        if first is not None and isinstance(first.step, WindowStep) and not first.is_function:
            self._first_window = BoundStep(first.step, first.uniforms)
        self._flips = [
            (flip.uniforms.start, flip.step.p, isinstance(flip.step, RandomHorizontalFlip)) for flip in flips
        ]
        self._changes_nothing = not self._converts and not self._unfused
        self._constants = fused_kernel.USE_TABLE
        if on_tensors and not by_units_alone:
            self._constants = normalization_of(steps_on_tensors, self._table, channels_last)
        self._compile_kernels(one_by_one=not by_units_alone)

    def _units_of(self, tail: FusedTail, on_tensors: Sequence[Step]) -> CompiledUnits | None:
        """What runs whole units of these steps; None if nothing does."""
        last = tail.flips, self._table, on_tensors, self._channels_last, self.limits
        crop = crop_of_unit(tail)
        if crop is not None and not self._is_grey:
            from rekindle.prepare.resized_crop_units import ResizedCropUnits

            return ResizedCropUnits(crop, *last)
        if not self.steps or tail.before or not crops_many(tail.crop):
            return None
        from rekindle.prepare.window_units import WindowUnits

        # Of images in memory, hardly anything else takes time.
        return WindowUnits(tail.crop, *last, soon=self._size is not None)

    def _unit_if_ready(self) -> CompiledUnits | None:
        return self._unit if self._unit is not None and self._unit.is_ready() else None

    @property
    def _runs_alone(self) -> bool:
        return self._unit is not None and self._unit.runs_alone

    def _unit_for_one(self) -> CompiledUnits | None:
        """What runs units, if it is best for a sample alone as well."""
        return self._unit_if_ready() if self._runs_alone else None

    def _compile_kernels(self, one_by_one: bool) -> None:
        """Compile what the steps cannot do without, and load the rest: before there are workers."""
        if not one_by_one:
            return
        for one in self._middle:
            one.step.compile_kernels()
        if self._table.dtype == np.uint8 and self._table is not fused_kernel.IDENTITY:
            load_tables()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if np.array_equal(self._table, fused_kernel.IDENTITY):
            self._table = fused_kernel.IDENTITY  # itself, which tells that bytes are kept

    def _fixed_output(self, size: tuple[int, int] | None) -> Output | None:
        for step in self.steps:
            size = step.size_after(size)
        # What comes last from a user's code may be of any dtype.
        if size is None or not self._can_fuse or not (self._converts or self.draws_nothing):
            return None
        shape = (1 if self._is_grey else 3, *size) if self._converts else (*size, 3)
        dtype = torch.from_numpy(self._table).dtype
        return Output(shape, dtype, self._channels_last, self._converts)

    @property
    def layers(self) -> tuple[Step, ...]:
        """The smallest steps between which the pipeline can be split."""
        return tuple(chain.from_iterable(map(attrgetter("layers"), self.steps)))

    def split(self, split_point: int) -> tuple[Pipeline, Pipeline]:
        """The first `split_point` layers, which produce an image, and the rest, which continues from it."""
        layers = self.layers
        first = Pipeline(layers[:split_point], limits=self.limits, size=self._size)
        rest = Pipeline(
            layers[split_point:],
            dtype=self._dtype,
            channels_last=self._channels_last,
            limits=self.limits,
            after_function=not first.draws_nothing,
        )
        return first, rest

    # Several samples.

    def run_unit(
        self, stored: Sequence[Stored], rows: Sequence[int], uniforms: Uniforms, out: Values
    ) -> None:
        """Write the results for files' bytes (or for pixels) to these rows of `out`.

        `out` and `uniforms` have a row for each sample of the unit, of which these may be some.
        """
        unit = self._unit_if_ready()
        left = range(len(stored)) if unit is None else unit.write(stored, rows, uniforms, out)
        for number in left:
            row = rows[number]
            self._finish(self._begin(stored[number], uniforms[row]), uniforms[row], out[row])

    def runs_units(self) -> bool:
        """Whether `run_mapped` can be called; of arrays in memory, `run_many`."""
        return self._unit_if_ready() is not None

    def run_mapped(self, samples: MappedSamples, uniforms: Uniforms, out: Values) -> list[int]:
        """Write the results for pixels that lie in mapped files; returns the rows that this cannot do."""
        assert self._unit is not None
        return self._unit.write_mapped(samples, uniforms, out)

    def run_many(
        self,
        images: NDArray[np.uint8],
        indices: Sequence[int] | NDArray[np.int64],
        uniforms: Uniforms,
        out: Values,
    ) -> None:
        """Write the result for `images[index]`, for each index, to its row of `out`."""
        assert self._unit is not None
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(images)):
            raise IndexError(
                f"indices from {chosen.min()} to {chosen.max()}, but there are {len(images)} images"
            )
        for row in self._unit.write_chosen(images, chosen, uniforms, out):
            self._finish(images[chosen[row]], uniforms[row], out[row])

    def make_mapped(self, samples: MappedSamples, uniforms: Uniforms) -> list[Value] | None:
        """The results for pixels that lie in mapped files, each in memory of its own.

        None if they are to be made one by one: those whose sizes differ, or that are not all pixels.
        """
        assert self._unit is not None
        size = self._unit.size_of(samples)
        try:
            output = None if size is None else self._fixed_output(size)
        except ArgumentError:  # Raised again for each sample.
            return None
        if output is None:
            return None
        out = output.empty(len(uniforms))
        if self.run_mapped(samples, uniforms, out.numpy()):
            return None
        return [tensor.clone() if output.tensor else tensor.clone().numpy() for tensor in out]

    # One sample.

    def run(self, data: Stored, uniforms: Uniforms, out: Values) -> None:
        """Write the result for a file's bytes (or for pixels) to `out`, which has the shape of `output`."""
        if self._unit_for_one() is None:
            self._finish(self._begin(data, uniforms), uniforms, out)
        else:
            self.run_unit([data], [0], uniforms[None], out[None])

    def make(self, data: Stored, uniforms: Uniforms) -> Value:
        """The result for a file's bytes (or for pixels), in memory of its own."""
        unit = self._unit_for_one()
        if unit is None or unit.size is None:
            return self._finish(self._begin(data, uniforms), uniforms, None)
        out = self._empty(*unit.size)
        self.run(data, uniforms, out)
        return torch.from_numpy(out) if self._converts else out

    def run_image(self, image: Value, uniforms: Uniforms, out: Values) -> None:
        """Like `run`, for an image that is decoded already."""
        if is_rgb(image) and self._unit_for_one() is not None:
            self.run(image, uniforms, out)
        else:
            self._finish(self._apply_middle(self._own(image), uniforms), uniforms, out)

    def make_image(self, image: Value, uniforms: Uniforms) -> Value:
        """Like `make`, for an image that is decoded already."""
        if is_rgb(image) and self._unit_for_one() is not None:
            return self.make(image, uniforms)
        return self._finish(self._apply_middle(self._own(image), uniforms), uniforms, None)

    def _begin(self, data: Stored, uniforms: Uniforms) -> Value:
        """The image before the one pass of the kernel; it may lie in scratch memory."""
        if isinstance(data, np.ndarray):
            return self._begin_pixels(check_pixels(data), uniforms)
        header = read_header(data, self.limits)
        if header.decoder == "ppm":
            return self._begin_pixels(pixels_of(header, data), uniforms)
        first = self._first_window
        if first is None:
            return self._apply_middle(self._own(decode_with(header, data, scratch=True)), uniforms)
        image = decode_window(header, data, first.step, uniforms[first.uniforms])
        return self._apply_middle(self._own(image), uniforms, done=1)

    def _begin_pixels(self, image: Image, uniforms: Uniforms) -> Value:
        """The same for pixels that need no decoding; they may be a read-only view of a file."""
        first = self._first_window
        cropped = None if first is None else crop_first(image, first.step, uniforms[first.uniforms])
        done = 0 if cropped is None else 1
        image = image if cropped is None else cropped
        if len(self._middle) == done:  # What comes last only reads.
            return image
        return self._apply_middle(self._own(writable(image)), uniforms, done)

    def _own(self, image: Value) -> Value:
        """The image, or a copy of it that a user's function may keep, change, or return as a tensor."""
        is_view = isinstance(image, np.ndarray) and not image.flags.owndata
        return image.copy() if is_view and not self.draws_nothing else image

    def _apply_middle(self, image: Value, uniforms: Uniforms, done: int = 0) -> Value:
        for step in self._middle[done:]:
            image = step.apply(image, uniforms)
        return image

    def _finish(self, image: Value, uniforms: Uniforms, out: Values | None) -> Value:
        if not self._can_fuse or type(image) is not np.ndarray or not is_rgb(image):
            return self._finish_unfused(image, uniforms, out)
        height, width = image.shape[:2]
        top = left = 0
        if self._crop is not None:
            window = self._crop.step.checked_window(height, width, uniforms[self._crop.uniforms])
            top, left, height, width = window.box
        mirrored, upside_down = self._flipped(uniforms)
        has_out = out is not None
        if out is None:
            if self._changes_nothing:
                return image if image.flags.owndata else image.copy()
            out = self._empty(height, width)
        planes = out if self._converts else out.transpose(2, 0, 1)
        if planes.shape[1:] != (height, width):
            raise ArgumentError(f"an image of {height} × {width} pixels does not fit an array of {out.shape}")
        if self._is_grey:
            planes = np.empty((3, height, width), dtype=self._table.dtype)
        fused_kernel.finish(
            image, top, left, mirrored, upside_down, self._fill, self._table, self._constants, planes
        )
        if self._is_grey:
            np.copyto(out, planes[:1])
        if not self._converts:
            return out
        if has_out and not self._after:
            return None
        tensor: Value = torch.from_numpy(out)
        for step in self._after:
            tensor = step.apply(tensor, uniforms)
        if not isinstance(tensor, torch.Tensor):  # A function of the user's may return anything.
            return tensor
        moved = tensor.data_ptr() != out.__array_interface__["data"][0]
        if moved and (has_out or self.output is not None):
            np.copyto(out, tensor.numpy())
            return torch.from_numpy(out)
        return tensor

    def _flipped(self, uniforms: Uniforms) -> tuple[bool, bool]:
        mirrored = upside_down = False
        for index, p, horizontal in self._flips:
            if uniforms[index] < p:
                mirrored, upside_down = mirrored ^ horizontal, upside_down ^ (not horizontal)
        return mirrored, upside_down

    def _empty(self, height: int, width: int) -> Values:
        if not self._converts:
            return np.empty((height, width, 3), dtype=np.uint8)
        channels = 1 if self._is_grey else 3
        if self._channels_last:
            return np.empty((height, width, channels), dtype=self._table.dtype).transpose(2, 0, 1)
        return np.empty((channels, height, width), dtype=self._table.dtype)

    def _finish_unfused(self, image: Value, uniforms: Uniforms, out: Values | None) -> Value:
        """The last steps one by one: for what is no RGB image, or a dtype that the kernel cannot write."""
        for step in self._unfused:
            image = step.apply(image, uniforms)
        if isinstance(image, np.ndarray):
            image = image.copy()  # It may be a view of scratch memory.
        if out is None:
            return image
        np.copyto(out, image.numpy() if isinstance(image, torch.Tensor) else image)
        return out

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(map(repr, self.steps))}])"
