"""Decoding only the window of an image that the first step reads, at no higher resolution than needed."""

from __future__ import annotations

from rekindle.fetch.source import Encoded
from rekindle.prepare.decode.decode import Header, decode_with
from rekindle.prepare.steps.antialiased_resize import resample
from rekindle.prepare.steps.crop_window import WindowStep
from rekindle.prepare.steps.step import Image, Uniforms

# A JPEG is decoded at a fraction of its resolution only if this many pixels are left for each one of the
# result. Two keep the rounding of the box to integers within a quarter of a pixel.
_PIXELS_LEFT = 2.0
_SHRINKS = (8, 4, 2)


def decode_window(header: Header, data: Encoded, step: WindowStep, uniforms: Uniforms) -> Image:
    """The image after the first step, decoded at no higher resolution than it needs."""
    window = step.checked_window(header.height, header.width, uniforms)
    if not window.lies_within(header.height, header.width):
        return step.apply(decode_with(header, data, scratch=True), uniforms)
    shrink = 1
    spare = min(window.height / window.new_height, window.width / window.new_width) / _PIXELS_LEFT
    if header.decoder == "jpeg" and spare >= 2:
        shrink = next((factor for factor in _SHRINKS if spare >= factor), 1)
    image = decode_with(header, data, shrink, window.top + window.height, scratch=True)
    if shrink == 1 or image.shape[1] == header.width:
        return resample(image, window.box, window.size, step.interpolation_of(uniforms))
    height, width = -(-header.height // shrink), image.shape[1]
    top, bottom = _scaled(window.top, window.height, height / header.height, height)
    left, right = _scaled(window.left, window.width, width / header.width, width)
    return resample(
        image, (top, left, bottom - top, right - left), window.size, step.interpolation_of(uniforms)
    )


def _scaled(start: int, length: int, scale: float, limit: int) -> tuple[int, int]:
    first = min(round(start * scale), limit - 1)
    return first, max(min(round((start + length) * scale), limit), first + 1)
