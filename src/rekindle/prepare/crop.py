"""Crops and padding: CenterCrop, RandomCrop, RandomResizedCrop, Pad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.image_step import further_numbers
from rekindle.prepare.resampling import RESIZE_MODES
from rekindle.prepare.step import Numbers, whole_number
from rekindle.prepare.window import PADDING_MODES, Window, WindowStep

_TRIES = 10


class CenterCrop(WindowStep):
    """The middle of the image; black where the crop is larger than the image."""

    size: tuple[int, int]

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = parameters.size_pair("CenterCrop", size)

    def window(self, height: int, width: int, numbers: Numbers | None = None) -> Window:
        new_height, new_width = self.size
        return Window(_middle(height, new_height), _middle(width, new_width), *self.size, *self.size)


class Pad(WindowStep):
    """The image with a border.

    `padding`: one number for all sides; left and right, top and bottom; or left, top, right, bottom.
    """

    def __init__(self, padding: int | Sequence[int], fill: Any = 0, padding_mode: str = "constant") -> None:
        self.padding = _four_sides("Pad", padding)
        self.fill = parameters.fill_colour("Pad", fill)
        self.padding_mode = _padding_mode("Pad", padding_mode)

    def window(self, height: int, width: int, numbers: Numbers | None = None) -> Window:
        left, top, right, bottom = self.padding
        size = height + top + bottom, width + left + right
        if min(size) < 1:
            raise ArgumentError(
                f"Pad: padding {self.padding} leaves nothing of an image of {height} × {width}. "
                "Give padding that cuts away less."
            )
        return Window(-top, -left, *size, *size)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if size is None else self.window(*size).size


class RandomCrop(WindowStep):
    """A part of this size from anywhere in the image, after padding.

    `diversity` is infinite: the number of places, (h − height + 1) · (w − width + 1), depends on the image.
    """

    uniforms = 2
    diversity = math.inf
    size: tuple[int, int]

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = parameters.size_pair("RandomCrop", size)
        self.padding = None if padding is None else _four_sides("RandomCrop", padding)
        self.pad_if_needed = pad_if_needed
        self.fill = parameters.fill_colour("RandomCrop", fill)
        self.padding_mode = _padding_mode("RandomCrop", padding_mode)

    def window(self, height: int, width: int, numbers: Numbers) -> Window:
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        spare_height = height + top + bottom - self.size[0]
        spare_width = width + left + right - self.size[1]
        if self.pad_if_needed:  # as much on either side as is missing in all, as torchvision pads
            top, spare_height = top + max(-spare_height, 0), abs(spare_height)
            left, spare_width = left + max(-spare_width, 0), abs(spare_width)
        if spare_height < 0 or spare_width < 0:
            raise ArgumentError(
                f"RandomCrop: the crop of {self.size} is larger than an image of {height} × {width}"
                f" with padding {self.padding}. Set pad_if_needed=True, or resize the image first."
            )
        down = whole_number(numbers[0], 0, spare_height + 1)
        along = whole_number(numbers[1], 0, spare_width + 1)
        return Window(down - top, along - left, *self.size, *self.size)


class RandomResizedCrop(WindowStep):
    """A part of random area and aspect ratio from anywhere in the image, resized to `size`.

    As torchvision draws it: area uniform, the logarithm of the ratio uniform, up to ten tries to fit the
    image, then the largest box in the middle whose ratio is allowed.
    """

    uniforms = 4
    diversity = math.inf
    size: tuple[int, int]

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Any = parameters.InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:
        self.size = parameters.size_pair("RandomResizedCrop", size)
        self.scale = parameters.ordered_pair("RandomResizedCrop", "scale", scale, 0)
        self.ratio = parameters.ordered_pair("RandomResizedCrop", "ratio", ratio, 1e-6)
        self.interpolation = parameters.interpolation_mode("RandomResizedCrop", interpolation, RESIZE_MODES)
        self._log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])

    def window(self, height: int, width: int, numbers: Numbers) -> Window:
        area, shape, down, along = numbers.tolist()
        (least, most), (narrowest, widest) = self.scale, self._log_ratio
        retries = None
        for _ in range(_TRIES):
            target = height * width * (least + area * (most - least))
            ratio = math.exp(narrowest + shape * (widest - narrowest))
            box_width, box_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
            if 0 < box_width <= width and 0 < box_height <= height:
                top = whole_number(down, 0, height - box_height + 1)
                left = whole_number(along, 0, width - box_width + 1)
                return Window(top, left, box_height, box_width, *self.size)
            retries = retries or further_numbers(numbers)
            area, shape = islice(retries, 2)
        return self._middle(height, width)

    def _middle(self, height: int, width: int) -> Window:
        box_height, box_width = height, width
        if width / height < self.ratio[0]:
            box_height = max(round(width / self.ratio[0]), 1)
        elif width / height > self.ratio[1]:
            box_width = max(round(height * self.ratio[1]), 1)
        top, left = (height - box_height) // 2, (width - box_width) // 2
        return Window(top, left, box_height, box_width, *self.size)


def _middle(old: int, new: int) -> int:
    """Where a length of `new` starts in the middle of `old`; negative if it is the longer one."""
    return -((new - old) // 2) if new > old else round((old - new) / 2)


def _four_sides(step: str, padding: Any) -> tuple[int, int, int, int]:
    """Left, top, right, bottom."""
    sides = list(padding) if isinstance(padding, Sequence) and not isinstance(padding, str) else [padding]
    if len(sides) not in (1, 2, 4) or not all(isinstance(side, int) for side in sides):
        raise ArgumentError(
            f"{step}: padding is {padding!r}. Give one whole number, two (left and right, top and bottom), "
            "or four (left, top, right, bottom)."
        )
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


def _padding_mode(step: str, mode: str) -> str:
    if mode not in PADDING_MODES:
        raise ArgumentError(
            f"{step}: padding_mode is {mode!r}. Give one of {', '.join(map(repr, PADDING_MODES))}."
        )
    return mode
