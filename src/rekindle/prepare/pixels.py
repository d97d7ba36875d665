"""Images that need no decoding: pixels that lie in a packed file, looked at and never written to."""

from __future__ import annotations

from typing import Any

import numpy as np

from rekindle.errors import DecodeError
from rekindle.prepare.resampling import resample
from rekindle.prepare.step import Image, Numbers
from rekindle.prepare.window import WindowStep


def check_pixels(image: Image) -> Image:
    """The array itself; DecodeError if it is no image."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise DecodeError(
            f"an array of {image.dtype} {image.shape} is no image: bytes (uint8), height × width × 3, are"
        )
    return image


def cut_out(image: Image, first: Any, numbers: Numbers) -> tuple[Image, int]:
    """What the first step makes of an image, of which only the window is touched; and 1, for a step done.

    The image itself and 0, if the window reaches beyond it.
    """
    step: WindowStep = first.step
    height, width = image.shape[:2]
    window = step.window(height, width, numbers[first.numbers])
    if not window.lies_within(height, width):
        return image, 0
    return resample(image, window.box, window.size, step.interpolation), 1


def own(image: Image) -> Image:
    """The image, or a copy of it if it lies in a file: compiled steps take what they could write to."""
    return image if image.flags.writeable else image.copy()
