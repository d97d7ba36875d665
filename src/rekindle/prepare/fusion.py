"""Which steps the compiled kernel does in one pass, and which run before it.

The kernel does what comes last before the conversion to a tensor, if it is no more than a crop, then flips
and point operations. Consecutive point operations anywhere become one lookup table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rekindle.prepare.lookup_table import by_channel
from rekindle.prepare.steps.crop import CenterCrop, Pad, RandomCrop, RandomResizedCrop
from rekindle.prepare.steps.crop_window import WindowStep
from rekindle.prepare.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from rekindle.prepare.steps.image_step import ChanceStep, as_image
from rekindle.prepare.steps.parameters import InterpolationMode
from rekindle.prepare.steps.point_operations import PointStep, Table, load_tables, look_up
from rekindle.prepare.steps.step import Image, Step, Uniforms, Value
from rekindle.prepare.steps.to_tensor import Conversion

StepT = TypeVar("StepT", bound=Step, covariant=True)


@dataclass(frozen=True)
class BoundStep(Generic[StepT]):
    """A step, and the slice of a sample's uniforms that belongs to it."""

    step: StepT
    uniforms: slice
    checks_input: bool = False  # which a user's function returned
    is_function: bool = False  # of a user's: nothing else is run in the place of its `apply`

    def apply(self, image: Value, uniforms: Uniforms) -> Value:
        """The result for one image, given all of the sample's uniforms."""
        if self.checks_input:
            image = as_image(image, type(self.step).__name__)
        return self.step.apply(image, uniforms[self.uniforms])


class _MergedPoints(Step):
    """Several point operations as one table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def compile_kernels(self) -> None:
        load_tables()

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return look_up(image, self._table)


class FusedTail(NamedTuple):
    """The steps that run one by one, and what the kernel does after them: a crop, flips, a lookup table."""

    before: list[BoundStep[Step]]
    crop: BoundStep[WindowStep] | None
    flips: list[BoundStep[ChanceStep]]
    points: NDArray[np.uint8] | None  # 256 × 3


def bind(
    steps: Sequence[Step], input_checks: Sequence[bool], functions: Sequence[bool]
) -> list[BoundStep[Step]]:
    """Each step with its slice of the sample's uniforms, whether it checks its input, and is a function."""
    bound, used = [], 0
    for step, checks, is_function in zip(steps, input_checks, functions, strict=True):
        bound.append(BoundStep(step, slice(used, used + step.uniforms), checks, is_function))
        used += step.uniforms
    return bound


def split_at_conversion(
    steps: list[BoundStep[Step]],
) -> tuple[list[BoundStep[Step]], list[BoundStep[Step]]]:
    """The steps on images, and those from the conversion to a tensor on."""
    for number, bound in enumerate(steps):
        if isinstance(bound.step, Conversion):
            return steps[:number], steps[number:]
    return steps, []


def find_fused_tail(steps: list[BoundStep[Step]]) -> FusedTail:
    """Which of the steps on images the kernel does."""
    crop: BoundStep[WindowStep] | None = None
    flips: list[BoundStep[ChanceStep]] = []
    points: NDArray[np.uint8] | None = None
    before = list(steps)
    # The kernel crops first: a flip before the crop is another picture, and a point operation before it does
    # not change the colour that padding adds.
    while before and crop is None:
        step, uniforms = before[-1].step, before[-1].uniforms
        if before[-1].is_function:
            break
        if isinstance(step, RandomHorizontalFlip | RandomVerticalFlip):
            flips.insert(0, BoundStep(step, uniforms))
        elif isinstance(step, PointStep) and not step.needs_image:
            table = by_channel(step.table())
            points = table if points is None else np.take_along_axis(points, table.astype(np.intp), axis=0)
        elif isinstance(step, CenterCrop | RandomCrop | Pad) and step.padding_mode == "constant":
            crop = BoundStep(step, uniforms)
        else:
            break
        before.pop()
    return FusedTail(before, crop, flips, points)


def crop_of_unit(tail: FusedTail) -> BoundStep[RandomResizedCrop] | None:
    """The step before what the kernel does, if it is the only one and `resized_crop_units` knows it."""
    if len(tail.before) != 1 or tail.crop is not None:
        return None
    bound = tail.before[0]
    step = bound.step
    if type(step) is not RandomResizedCrop or step.interpolation is not InterpolationMode.BILINEAR:
        return None
    return None if bound.checks_input else BoundStep(step, bound.uniforms)


def merge_point_steps(steps: list[BoundStep[Step]]) -> list[BoundStep[Step]]:
    """The steps with consecutive point operations merged into one table."""
    merged: list[BoundStep[Step]] = []
    table: NDArray[np.uint8] | None = None
    for bound in steps:
        if isinstance(bound.step, PointStep) and not bound.step.needs_image and not bound.is_function:
            new = by_channel(bound.step.table())
            if table is None:
                merged.append(bound)
                table = new
            else:
                table = np.take_along_axis(new, table.astype(np.intp), axis=0)
                merged[-1] = BoundStep(_MergedPoints(np.ascontiguousarray(table)), bound.uniforms)
        else:
            merged.append(bound)
            table = None
    return merged


def crops_many(crop: BoundStep[WindowStep] | None) -> bool:
    """Whether `crop_offsets` knows the step."""
    return crop is None or type(crop.step) in (CenterCrop, RandomCrop, Pad)


def crop_offsets(
    crop: BoundStep[WindowStep], height: int, width: int, uniforms: Uniforms
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Tops and lefts of the crop for each row of uniforms, and its height and width.

    ArgumentError or DecodeError if it cannot be cropped from an image of this size.
    """
    step, count = crop.step, len(uniforms)
    lowest = step.checked_window(height, width, np.zeros(step.uniforms))
    highest = step.window(height, width, np.full(step.uniforms, math.nextafter(1, 0)))
    offsets = []
    for number, (low, high) in enumerate(((lowest.top, highest.top), (lowest.left, highest.left))):
        if high == low:
            offsets.append(np.full(count, low, dtype=np.int64))
        else:  # `random_integer`, for all rows at once
            drawn = np.floor(uniforms[:, crop.uniforms.start + number] * (high + 1 - low))
            offsets.append(low + np.minimum(drawn, high - low).astype(np.int64))
    return offsets[0], offsets[1], lowest.height, lowest.width
