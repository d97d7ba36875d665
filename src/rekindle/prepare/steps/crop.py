"""Crops and padding: CenterCrop, RandomCrop, RandomResizedCrop, Pad."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from rekindle.core import counter_rng
from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.antialiased_resize import RESIZE_MODES, compile_resize
from rekindle.prepare.steps.crop_window import PADDING_MODES, Window, WindowStep
from rekindle.prepare.steps.image_step import more_uniforms
from rekindle.prepare.steps.outcomes import CONTINUOUS, Outcomes, of_counts
from rekindle.prepare.steps.parameters import FillArgument, InterpolationArgument
from rekindle.prepare.steps.step import Uniforms, random_integer

ATTEMPTS = 10
_WINDOWS = 1024  # are drawn to see how many there are


class CenterCrop(WindowStep):
    """Crop the centre of the image; black where the crop is larger than the image."""

    size: tuple[int, int]

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = parameters.size_pair("CenterCrop", size)

    def window(self, height: int, width: int, uniforms: Uniforms | None = None) -> Window:
        new_height, new_width = self.size
        return Window(
            _centred_offset(height, new_height), _centred_offset(width, new_width), *self.size, *self.size
        )


class Pad(WindowStep):
    """Add a border to the image.

    Args:
        padding: One number for all sides, two (left and right, top and bottom), or four (left, top, right,
            bottom); negative numbers crop.
        fill: The border's colour if `padding_mode` is "constant": one number, or three (RGB).
        padding_mode: "constant", "edge", "reflect" or "symmetric".

    """

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: FillArgument = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.padding = _four_sides("Pad", padding)
        self.fill = parameters.fill_colour("Pad", fill)
        self.padding_mode = _padding_mode("Pad", padding_mode)

    def window(self, height: int, width: int, uniforms: Uniforms | None = None) -> Window:
        left, top, right, bottom = self.padding
        size = height + top + bottom, width + left + right
        if min(size) < 1:
            raise ArgumentError(
                f"Pad: padding {self.padding} leaves nothing of an image of {height} × {width}. "
                "Give padding that crops less."
            )
        return Window(-top, -left, *size, *size)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if size is None else self.window(*size).size


class RandomCrop(WindowStep):
    """Crop a box of this size at a random offset, after padding.

    `diversity` is infinite: the number of offsets, (h − height + 1) · (w − width + 1), depends on the image;
    `outcomes` counts them.
    """

    uniforms = 2
    diversity = math.inf
    size: tuple[int, int]

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: FillArgument = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = parameters.size_pair("RandomCrop", size)
        self.padding = None if padding is None else _four_sides("RandomCrop", padding)
        self.pad_if_needed = pad_if_needed
        self.fill = parameters.fill_colour("RandomCrop", fill)
        self.padding_mode = _padding_mode("RandomCrop", padding_mode)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return _windows(self, size)

    def window(self, height: int, width: int, uniforms: Uniforms) -> Window:
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        spare_height = height + top + bottom - self.size[0]
        spare_width = width + left + right - self.size[1]
        if self.pad_if_needed:  # on either side as much as is missing in total, as torchvision pads
            top, spare_height = top + max(-spare_height, 0), abs(spare_height)
            left, spare_width = left + max(-spare_width, 0), abs(spare_width)
        if spare_height < 0 or spare_width < 0:
            raise ArgumentError(
                f"RandomCrop: the crop of {self.size} is larger than an image of {height} × {width}"
                f" with padding {self.padding}. Set pad_if_needed=True, or resize the image first."
            )
        offset_y = random_integer(uniforms[0], 0, spare_height + 1)
        offset_x = random_integer(uniforms[1], 0, spare_width + 1)
        return Window(offset_y - top, offset_x - left, *self.size, *self.size)


class RandomResizedCrop(WindowStep):
    """Crop a box of random area and aspect ratio at a random offset, and resize it to `size`.

    Drawn as torchvision does: the area uniform, the logarithm of the ratio uniform, up to ten attempts to fit
    the image, then the largest box in the centre whose ratio is allowed.
    """

    uniforms = 4
    diversity = math.inf
    size: tuple[int, int]

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: InterpolationArgument = parameters.InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:
        self.size = parameters.size_pair("RandomResizedCrop", size)
        self.scale = parameters.ordered_pair("RandomResizedCrop", "scale", scale, 0)
        self.ratio = parameters.ordered_pair("RandomResizedCrop", "ratio", ratio, 1e-6)
        self.interpolation = parameters.interpolation_mode("RandomResizedCrop", interpolation, RESIZE_MODES)

    def compile_kernels(self) -> None:
        compile_resize(self.interpolation)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return _windows(self, size)

    def window(self, height: int, width: int, uniforms: Uniforms) -> Window:
        area, shape, offset_y, offset_x = uniforms.tolist()
        (smallest, largest), (narrowest, widest) = self.scale, map(math.log, self.ratio)
        retries = None
        for _ in range(ATTEMPTS):
            target = height * width * (smallest + area * (largest - smallest))
            ratio = math.exp(narrowest + shape * (widest - narrowest))
            box_width, box_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
            if 0 < box_width <= width and 0 < box_height <= height:
                top = random_integer(offset_y, 0, height - box_height + 1)
                left = random_integer(offset_x, 0, width - box_width + 1)
                return Window(top, left, box_height, box_width, *self.size)
            retries = retries or more_uniforms(uniforms)
            area, shape = islice(retries, 2)
        return self._centred(height, width)

    def _centred(self, height: int, width: int) -> Window:
        box_height, box_width = height, width
        if width / height < self.ratio[0]:
            box_height = max(round(width / self.ratio[0]), 1)
        elif width / height > self.ratio[1]:
            box_width = max(round(height * self.ratio[1]), 1)
        top, left = (height - box_height) // 2, (width - box_width) // 2
        return Window(top, left, box_height, box_width, *self.size)


def _windows(step: RandomCrop | RandomResizedCrop, size: tuple[int, int] | None) -> Outcomes:
    """How probable the boxes are in an image of this size, from some draws; a continuum, if it is unknown."""
    if size is None:
        return CONTINUOUS
    drawn = counter_rng.uniforms(0, range(_WINDOWS), count=step.uniforms)
    try:
        return of_counts(Counter(step.window(*size, uniforms).box for uniforms in drawn).values())
    except ArgumentError:  # The image is too small: workers will raise it.
        return CONTINUOUS


def _centred_offset(old: int, new: int) -> int:
    """The offset of a length of `new` centred in `old`; negative if it is the longer one."""
    return -((new - old) // 2) if new > old else round((old - new) / 2)


def _four_sides(step: str, padding: object) -> tuple[int, int, int, int]:
    """Left, top, right, bottom."""
    sides = list(padding) if isinstance(padding, Sequence) and not isinstance(padding, str) else [padding]
    lengths = [side for side in sides if isinstance(side, int)]
    if len(sides) not in (1, 2, 4) or len(lengths) != len(sides):
        raise ArgumentError(
            f"{step}: padding is {padding!r}. Give one integer, two (left and right, top and bottom), "
            "or four (left, top, right, bottom)."
        )
    left, top, right, bottom = (lengths * 4)[:4]
    return left, top, right, bottom


def _padding_mode(step: str, mode: str) -> str:
    if mode not in PADDING_MODES:
        raise ArgumentError(
            f"{step}: padding_mode is {mode!r}. Give one of {', '.join(map(repr, PADDING_MODES))}."
        )
    return mode
