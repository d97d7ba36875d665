"""Decoding only the window of an image that the first step reads, at no higher resolution than needed."""

from __future__ import annotations

from typing import TypeAlias

from rekindle.fetch.source import Encoded
from rekindle.prepare.decode.decode import Header, decode_with, pixels_of
from rekindle.prepare.decode.jpeg_box import decode_jpeg_box
from rekindle.prepare.steps.antialiased_resize import resample
from rekindle.prepare.steps.crop_window import WindowStep
from rekindle.prepare.steps.parameters import InterpolationMode
from rekindle.prepare.steps.step import Image, Uniforms

# A JPEG is decoded at a fraction of its resolution only if this many pixels are left for each one of the
# result. Two keep the rounding of the box to integers within a quarter of a pixel.
_PIXELS_LEFT = 2.0
_SHRINKS = (8, 4, 2)
# Modes that take single pixels, or cut off sharply: those of a smaller image, means of several, are others.
_NEED_ALL_PIXELS = (InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT, InterpolationMode.BOX)

Box: TypeAlias = tuple[int, int, int, int]  # top, left, height, width


def decode_window(header: Header, data: Encoded, step: WindowStep, uniforms: Uniforms) -> Image:
    """The image after the first step, decoded at no higher resolution than it needs."""
    window = step.checked_window(header.height, header.width, uniforms)
    if not window.lies_within(header.height, header.width):
        return step.apply(decode_with(header, data, scratch=True), uniforms)
    mode = step.interpolation_of(uniforms)
    shrinks = mode not in _NEED_ALL_PIXELS
    image, box = decode_box(header, data, window.box, window.size, shrinks)
    return resample(image, box, window.size, mode)


def decode_box(
    header: Header, data: Encoded, box: Box, size: tuple[int, int], shrinks: bool = True
) -> tuple[Image, Box]:
    """An image to resize a box of to `size`, and that box in it: of no more than that, or of fewer pixels.

    Pixels are fewer only if it `shrinks`.
    """
    top, left, height, width = box
    if header.decoder == "ppm":
        return pixels_of(header, data), box
    shrink = 1
    spare = min(height / size[0], width / size[1]) / _PIXELS_LEFT
    if header.decoder == "jpeg" and spare >= 2 and shrinks:
        shrink = next((factor for factor in _SHRINKS if spare >= factor), 1)
    if header.frame is not None and shrink == 1:
        pixels = decode_jpeg_box(header.frame, data, box, scratch=True)
        if pixels is not None:
            return pixels, (0, 0, height, width)
    image = decode_with(header, data, shrink, top + height, scratch=True)
    if shrink == 1 or image.shape[1] == header.width:
        return image, box
    rows, columns = -(-header.height // shrink), image.shape[1]
    top, bottom = _scaled(top, height, rows / header.height, rows)
    left, right = _scaled(left, width, columns / header.width, columns)
    return image, (top, left, bottom - top, right - left)


def _scaled(start: int, length: int, scale: float, limit: int) -> tuple[int, int]:
    first = min(round(start * scale), limit - 1)
    return first, max(min(round((start + length) * scale), limit), first + 1)
