"""Steps from a file's bytes to the memory of the batch, as few passes over the pixels as they allow.

    bytes ──decode──▶ image ──middle steps──▶ image ──one pass──▶ out ──steps on tensors──▶ out

The first step, if it cuts out or resizes, tells the decoder how large a picture is worth decoding. Point
operations that follow one another become one table. What comes last before the conversion to numbers (flips,
a crop, point operations), the conversion and the normalisation are one pass of the compiled kernel, which
writes the batch's memory. What comes out is, to the last bit, what the steps give one by one; only where the
decoder leaves out detail (1/2, 1/4 or 1/8 size) do pixels differ, and then by about a grey level on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.fetch.source import Stored
from rekindle.prepare import kernel
from rekindle.prepare.compose import Compose, Lambda
from rekindle.prepare.crop import CenterCrop, Pad, RandomCrop
from rekindle.prepare.decode import PIXEL_LIMIT, decode_with, pixels_of, read_header
from rekindle.prepare.decoded_window import decoded_window
from rekindle.prepare.flip import RandomHorizontalFlip, RandomVerticalFlip
from rekindle.prepare.pixels import check_pixels, cut_out, own
from rekindle.prepare.point_operations import PointStep, Table, look_up
from rekindle.prepare.step import Image, Numbers, Step
from rekindle.prepare.tensors import Conversion
from rekindle.prepare.value_table import by_channel, normal_of, value_table
from rekindle.prepare.window import WindowStep


@dataclass(frozen=True)
class _Placed:
    """A step, and which of the sample's numbers are its."""

    step: Any
    numbers: slice

    def apply(self, image: Any, numbers: Numbers) -> Any:
        return self.step.apply(image, numbers[self.numbers])


class _JoinedPoints(Step):
    """Point operations as one table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def apply(self, image: Image, numbers: Numbers) -> Image:
        return look_up(image, self._table)


@dataclass(frozen=True)
class Output:
    """What comes out, where that is always the same: shape and type of one sample's image.

    With `channels_last`, the channels come first in `shape` but last in memory, as torch has it.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    channels_last: bool
    tensor: bool  # or an array of height × width × 3

    def empty(self, rows: int) -> torch.Tensor:
        """Memory for so many samples."""
        if not self.channels_last:
            return torch.empty((rows, *self.shape), dtype=self.dtype)
        channels, height, width = self.shape
        return torch.empty((rows, height, width, channels), dtype=self.dtype).permute(0, 3, 1, 2)


class Pipeline:
    """A list of steps, ready to run on the bytes of an image file.

    Args:
        steps: Steps of `rekindle.transforms`, in a list or a Compose.
        dtype: `torch.uint8` leaves the conversion to floats and the normalisation to the device: bytes come
            out, channels first.
        channels_last: Whether the channels of tensors lie last in memory.
        pixel_limit: Images with more pixels than this are refused.
        size: Height and width that all images have before the first step, if they are all alike.

    Attributes:
        uniforms: How many uniform numbers a sample takes.
        output: What comes out, if it always has the same size; None otherwise.
        releases_gil: Whether nearly all of the work lets other threads run.
        draws_nothing: Whether no step can draw random numbers of its own.

    """

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        pixel_limit: int = PIXEL_LIMIT,
        size: tuple[int, int] | None = None,
    ) -> None:
        self.steps = tuple(Compose(list(_flat(steps))).transforms)
        self.uniforms = sum(step.uniforms for step in self.steps)
        self.releases_gil = all(step.releases_gil for step in self.steps)
        self.draws_nothing = not any(_has_lambda(step) for step in self.steps)
        self.pixel_limit = pixel_limit
        self._dtype, self._channels_last, self._size = dtype, channels_last, size
        placed = _placed(self.steps)
        images, tensors = _split_at_conversion(placed)
        self._converts = bool(tensors)
        steps_on_tensors = [one.step for one in tensors]
        self._table, count = value_table(steps_on_tensors, dtype)
        self._after = tensors[count:]
        middle, self._window, self._flips, points = _split_tail(images)
        self._middle, self._unfused = _with_joined_points(middle), placed[len(middle) :]
        if points is not None:
            self._table = np.ascontiguousarray(np.stack([self._table[c][points[:, c]] for c in range(3)]))
        self._normal = normal_of(steps_on_tensors, self._table)
        self._fill = np.array(self._window.step.fill if self._window else (0, 0, 0), dtype=np.uint8)
        # Looked at for every sample: decided once.
        self._is_plain = self._table.dtype in (np.float32, np.uint8)  # or else the kernel cannot write it
        self._starts_with_window = bool(self._middle) and isinstance(self._middle[0].step, WindowStep)
        self._flip_at = [
            (flip.numbers.start, flip.step.p, isinstance(flip.step, RandomHorizontalFlip))
            for flip in self._flips
        ]
        self._changes_nothing = not self._converts and not self._unfused
        self.output = self._fixed_output(size)
        if channels_last and not self._converts:
            raise ArgumentError("channels_last is for tensors: put ToTensor() into the transform.")

    def _fixed_output(self, size: tuple[int, int] | None) -> Output | None:
        for step in self.steps:
            size = step.size_after(size)
        if size is None or not self._is_plain:
            return None
        shape = (3, *size) if self._converts else (*size, 3)
        dtype = torch.from_numpy(self._table).dtype
        return Output(shape, dtype, self._channels_last, self._converts)

    @property
    def layers(self) -> tuple[Step, ...]:
        """The steps, as the smallest ones between which the pipeline can be cut."""
        return tuple(layer for step in self.steps for layer in step.layers)

    def cut(self, place: int) -> tuple[Pipeline, Pipeline]:
        """The first `place` layers and the rest: the first gives images, and the other goes on with them."""
        first = Pipeline(self.layers[:place], pixel_limit=self.pixel_limit, size=self._size)
        rest = Pipeline(self.layers[place:], dtype=self._dtype, channels_last=self._channels_last)
        return first, rest

    # One sample.

    def run(self, data: Stored, numbers: Numbers, out: NDArray[Any]) -> None:
        """Write what the steps make of a file's bytes (or of pixels) to `out`, which is as `output` says."""
        self._finish(self._begin(data, numbers), numbers, out)

    def make(self, data: Stored, numbers: Numbers) -> Any:
        """What the steps make of a file's bytes (or of pixels), in memory of its own."""
        return self._finish(self._begin(data, numbers), numbers, None)

    def run_image(self, image: Image, numbers: Numbers, out: NDArray[Any]) -> None:
        """The same as `run` for an image that is decoded already."""
        self._finish(self._prepare(image, numbers), numbers, out)

    def make_image(self, image: Image, numbers: Numbers) -> Any:
        """The same as `make` for an image that is decoded already."""
        return self._finish(self._prepare(image, numbers), numbers, None)

    def _begin(self, data: Stored, numbers: Numbers) -> Any:
        """Decode and take the middle steps; the result may lie in scratch memory."""
        if isinstance(data, np.ndarray):
            return self._begin_pixels(check_pixels(data), numbers)
        header = read_header(data, self.pixel_limit)
        if header.decoder == "ppm":
            return self._begin_pixels(pixels_of(header, data), numbers)
        if not self._starts_with_window:
            return self._prepare(decode_with(header, data, scratch=True), numbers)
        first = self._middle[0]
        image = decoded_window(header, data, first.step, numbers[first.numbers])
        return self._prepare(image, numbers, done=1)

    def _begin_pixels(self, image: Image, numbers: Numbers) -> Any:
        """The same for pixels that are there already, which may lie in a file."""
        image, done = cut_out(image, self._middle[0], numbers) if self._starts_with_window else (image, 0)
        return self._prepare(own(image), numbers, done)

    def _prepare(self, image: Any, numbers: Numbers, done: int = 0) -> Any:
        for step in self._middle[done:]:
            image = step.apply(image, numbers)
        return image

    def _finish(self, image: Any, numbers: Numbers, out: NDArray[Any] | None) -> Any:
        plain = (
            type(image) is np.ndarray and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
        )
        if not plain or not self._is_plain:
            return self._finish_unfused(image, numbers, out)
        height, width = image.shape[:2]
        top = left = 0
        if self._window is not None:
            window = self._window.step.window(height, width, numbers[self._window.numbers])
            top, left, height, width = window.box
        mirrored, upside_down = self._flipped(numbers)
        given = out is not None
        if out is None:
            if self._changes_nothing:
                return image if image.flags.owndata else image.copy()
            out = self._empty(height, width)
        planes = out if self._converts else out.transpose(2, 0, 1)
        if planes.shape[1:] != (height, width):
            raise ArgumentError(f"an image of {height} × {width} pixels does not fit {out.shape}")
        flags = image.flags
        if not (flags.c_contiguous and flags.writeable):  # or else the kernel does not take it
            image = np.array(image, order="C")
        kernel.finish(image, top, left, mirrored, upside_down, self._fill, self._table, self._normal, planes)
        if not self._converts:
            return out
        if given and not self._after:
            return None
        made = torch.from_numpy(out)
        for step in self._after:
            made = step.apply(made, numbers)
        moved = made.data_ptr() != out.__array_interface__["data"][0]
        if moved and (given or self.output is not None):
            np.copyto(out, made.numpy())
            return torch.from_numpy(out)
        return made

    def _flipped(self, numbers: Numbers) -> tuple[bool, bool]:
        mirrored = upside_down = False
        for place, p, horizontal in self._flip_at:
            if numbers[place] < p:
                mirrored, upside_down = mirrored ^ horizontal, upside_down ^ (not horizontal)
        return mirrored, upside_down

    def _empty(self, height: int, width: int) -> NDArray[Any]:
        if not self._converts:
            return np.empty((height, width, 3), dtype=np.uint8)
        if self._channels_last:
            return np.empty((height, width, 3), dtype=self._table.dtype).transpose(2, 0, 1)
        return np.empty((3, height, width), dtype=self._table.dtype)

    def _finish_unfused(self, image: Any, numbers: Numbers, out: NDArray[Any] | None) -> Any:
        """The last steps one by one: after a function that made something else of the image."""
        for step in self._unfused:
            image = step.apply(image, numbers)
        if isinstance(image, np.ndarray):
            image = image.copy()  # It may lie in scratch memory.
        if out is None:
            return image
        np.copyto(out, image.numpy() if isinstance(image, torch.Tensor) else image)
        return out

    # Many samples of one size that lie in memory.

    def runs_many(self) -> bool:
        """Whether `run_many` can do what the steps do: flips, one crop, conversion and normalisation."""
        crop = self._window is None or type(self._window.step) in (CenterCrop, RandomCrop, Pad)
        return self._is_plain and crop and not self._middle and not self._after

    def run_many(
        self, images: Image, indices: Sequence[int] | NDArray[np.int64], numbers: Numbers, out: NDArray[Any]
    ) -> None:
        """Write what becomes of `images[index]` for each index to its row of `out`, in one call."""
        count = len(indices)
        tops, lefts = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        height, width = images.shape[1:3]
        if self._window is not None:
            tops, lefts, height, width = _windows(self._window, height, width, numbers)
        mirrored, upside_down = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        for place, p, horizontal in self._flip_at:
            flips = numbers[:, place] < p
            if horizontal:
                mirrored ^= flips
            else:
                upside_down ^= flips
        planes = out if self._converts else out.transpose(0, 3, 1, 2)
        if planes.shape != (count, 3, height, width):
            raise ArgumentError(f"{count} images of {height} × {width} pixels do not fit {out.shape}")
        chosen = np.asarray(indices, dtype=np.int64)
        if count and not (chosen.min() >= 0 and chosen.max() < len(images)):
            raise IndexError(f"an index is out of range: there are {len(images)} images")
        kernel.finish_many(
            images, chosen, tops, lefts, mirrored, upside_down, self._fill, self._table, self._normal, planes
        )

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(map(repr, self.steps))}])"


def _flat(steps: Iterable[Any]) -> Iterable[Any]:
    for step in [steps] if isinstance(steps, Step) else steps:
        if isinstance(step, Compose):
            yield from _flat(step.transforms)
        else:
            yield step


def _has_lambda(step: Any) -> bool:
    return isinstance(step, Lambda) or any(map(_has_lambda, getattr(step, "transforms", ())))


def _placed(steps: Sequence[Step]) -> list[_Placed]:
    placed, used = [], 0
    for step in steps:
        placed.append(_Placed(step, slice(used, used + step.uniforms)))
        used += step.uniforms
    return placed


def _split_at_conversion(steps: list[_Placed]) -> tuple[list[_Placed], list[_Placed]]:
    for number, placed in enumerate(steps):
        if isinstance(placed.step, Conversion):
            return steps[:number], steps[number:]
    return steps, []


def _split_tail(
    steps: list[_Placed],
) -> tuple[list[_Placed], _Placed | None, list[_Placed], NDArray[np.uint8] | None]:
    """Middle steps, then what the kernel does: a crop, flips, and point operations as a table."""
    window: _Placed | None = None
    flips: list[_Placed] = []
    points: NDArray[np.uint8] | None = None
    rest = list(steps)
    while rest:
        step = rest[-1].step
        if isinstance(step, RandomHorizontalFlip | RandomVerticalFlip):
            # A flip before the crop is another picture than one after it, unless the kernel crops first.
            if window is not None:
                break
            flips.insert(0, rest.pop())
        elif isinstance(step, PointStep) and not step.needs_image:
            # What a crop adds at the edges is not the operation's to change, if the crop comes after it.
            if window is not None:
                break
            table = by_channel(step.table())
            points = table if points is None else np.take_along_axis(points, table.astype(np.intp), axis=0)
            rest.pop()
        elif isinstance(step, CenterCrop | RandomCrop | Pad) and step.padding_mode == "constant":
            if window is not None:
                break
            window = rest.pop()
        else:
            break
    return rest, window, flips, points


def _with_joined_points(steps: list[_Placed]) -> list[_Placed]:
    joined: list[_Placed] = []
    table: NDArray[np.uint8] | None = None
    for placed in steps:
        if isinstance(placed.step, PointStep) and not placed.step.needs_image:
            new = by_channel(placed.step.table())
            if table is None:
                joined.append(placed)
                table = new
            else:
                table = np.take_along_axis(new, table.astype(np.intp), axis=0)
                joined[-1] = replace(placed, step=_JoinedPoints(np.ascontiguousarray(table)))
        else:
            joined.append(placed)
            table = None
    return joined


def _windows(
    placed: _Placed, height: int, width: int, numbers: Numbers
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Where the crop starts for each row of numbers, and its size."""
    step, count = placed.step, len(numbers)
    lowest = step.window(height, width, np.zeros(step.uniforms))
    highest = step.window(height, width, np.full(step.uniforms, math.nextafter(1, 0)))
    starts = []
    for number, (low, high) in enumerate(((lowest.top, highest.top), (lowest.left, highest.left))):
        if high == low:
            starts.append(np.full(count, low, dtype=np.int64))
        else:  # `whole_number`, for all of them
            drawn = np.floor(numbers[:, placed.numbers.start + number] * (high + 1 - low))
            starts.append(low + np.minimum(drawn, high - low).astype(np.int64))
    return starts[0], starts[1], lowest.height, lowest.width
