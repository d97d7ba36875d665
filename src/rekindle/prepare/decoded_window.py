"""The window of an image that the first step looks at, decoded no larger or further down than needed."""

from __future__ import annotations

from rekindle.fetch.source import Encoded
from rekindle.prepare.decode import Header, decode_with
from rekindle.prepare.resampling import resample
from rekindle.prepare.step import Image, Numbers
from rekindle.prepare.window import WindowStep

# A JPEG is decoded at a fraction of its size only if that leaves so many pixels for each one that is wanted.
# Twice as many keeps the rounding of the box, which is to whole pixels, within a quarter of a pixel.
_PIXELS_LEFT = 2.0
_SHRINKS = (8, 4, 2)


def decoded_window(header: Header, data: Encoded, step: WindowStep, numbers: Numbers) -> Image:
    """What the first step makes of the image, decoded no larger than it needs."""
    window = step.window(header.height, header.width, numbers)
    if not window.lies_within(header.height, header.width):
        return step.apply(decode_with(header, data, scratch=True), numbers)
    shrink = 1
    spare = min(window.height / window.new_height, window.width / window.new_width) / _PIXELS_LEFT
    if header.decoder == "jpeg" and spare >= 2:
        shrink = next((factor for factor in _SHRINKS if spare >= factor), 1)
    image = decode_with(header, data, shrink, window.top + window.height, scratch=True)
    if shrink == 1 or image.shape[1] == header.width:
        return resample(image, window.box, window.size, step.interpolation)
    height, width = -(-header.height // shrink), image.shape[1]
    top, bottom = _scaled(window.top, window.height, height / header.height, height)
    left, right = _scaled(window.left, window.width, width / header.width, width)
    return resample(image, (top, left, bottom - top, right - left), window.size, step.interpolation)


def _scaled(start: int, length: int, scale: float, limit: int) -> tuple[int, int]:
    first = min(round(start * scale), limit - 1)
    return first, max(min(round((start + length) * scale), limit), first + 1)
