"""The box of an image that a step reads, and the size it resizes the box to.

Crops and resizes know what they will do before there are pixels: the decoder can then decode no more, and at
no higher resolution, than they need.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps.antialiased_resize import resample
from rekindle.prepare.steps.image_step import ImageStep
from rekindle.prepare.steps.parameters import Fill, InterpolationMode
from rekindle.prepare.steps.step import Image, Uniforms

PADDING_MODES = {
    "constant": cv2.BORDER_CONSTANT,
    "edge": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT_101,
    "symmetric": cv2.BORDER_REFLECT,
}
_BLACK: Fill = (0, 0, 0)


class Window(NamedTuple):
    """A box of the source, and the height and width it is resized to. It may extend beyond the image."""

    top: int
    left: int
    height: int
    width: int
    new_height: int
    new_width: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        return self[:4]

    @property
    def size(self) -> tuple[int, int]:
        return self[4:]

    def lies_within(self, height: int, width: int) -> bool:
        """Whether the box lies inside an image of this size."""
        return (
            self.top >= 0
            and self.left >= 0
            and self.top + self.height <= height
            and self.left + self.width <= width
        )


class WindowStep(ImageStep):
    """A step that crops a box, resizes it, or both. The box depends on the image's size, not on its pixels.

    Attributes:
        interpolation: How the box is resized, if its size changes.
        fill: The colour outside the image, where the box extends beyond it and `padding_mode` is "constant".
        padding_mode: What lies outside the image: "constant", "edge", "reflect" or "symmetric".

    """

    keeps_size = False
    interpolation: InterpolationMode = InterpolationMode.BILINEAR
    fill: Fill = _BLACK
    padding_mode: str = "constant"

    @abstractmethod
    def window(self, height: int, width: int, uniforms: Uniforms) -> Window:
        """The box in an image of this size, and its new size, given `uniforms` random numbers."""

    def checked_window(self, height: int, width: int, uniforms: Uniforms) -> Window:
        """The same; DecodeError if the result, or what is made on the way to it, is larger than allowed."""
        window = self.window(height, width, uniforms)
        # Rows are resized before columns.
        rows, columns = window.new_height, max(window.width, window.new_width)
        if self.padding_mode != "constant" and not window.lies_within(
            height, width
        ):  # The border is added first.
            rows = max(rows, height + max(-window.top, 0) + max(window.top + window.height - height, 0))
            columns = max(columns, width + max(-window.left, 0) + max(window.left + window.width - width, 0))
        if rows * columns > self._limits.pixels:
            self._limits.check_image(rows, columns, f"after {type(self).__name__}")
        return window

    def interpolation_of(self, uniforms: Uniforms) -> InterpolationMode:
        """How the box is resized, given `uniforms` random numbers."""
        return self.interpolation

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        height, width = image.shape[:2]
        window = self.checked_window(height, width, uniforms)
        mode = self.interpolation_of(uniforms)
        if window.lies_within(height, width):
            return resample(image, window.box, window.size, mode)
        cropped = crop_with_border(image, window.box, self.fill, self.padding_mode)
        return resample(cropped, (0, 0, window.height, window.width), window.size, mode)


def crop_with_border(
    image: Image, box: tuple[int, int, int, int], fill: Fill = _BLACK, padding_mode: str = "constant"
) -> Image:
    """The box (top, left, height, width), with a border where it extends beyond the image."""
    (height, width), (top, left, box_height, box_width) = image.shape[:2], box
    above, before = max(-top, 0), max(-left, 0)
    below, after = max(top + box_height - height, 0), max(left + box_width - width, 0)
    if padding_mode == "constant":
        inside = image[max(top, 0) : max(top + box_height, 0), max(left, 0) : max(left + box_width, 0)]
        if inside.size == 0 or above + below >= box_height or before + after >= box_width:
            return np.full((box_height, box_width, 3), fill, dtype=np.uint8)
        return _bordered(inside, above, below, before, after, fill, padding_mode)
    whole = _bordered(image, above, below, before, after, fill, padding_mode)
    top, left = top + above, left + before
    return whole[top : top + box_height, left : left + box_width]


def _bordered(
    image: Image, above: int, below: int, before: int, after: int, fill: Fill, padding_mode: str
) -> Image:
    return cv2.copyMakeBorder(  # type: ignore[return-value]
        image, above, below, before, after, PADDING_MODES[padding_mode], value=fill
    )
