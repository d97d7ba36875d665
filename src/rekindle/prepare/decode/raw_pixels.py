"""Images that need no decoding: pixels stored in a packed file, read in place and never written to."""

from __future__ import annotations

from rekindle.errors import DecodeError
from rekindle.prepare.rgb import Pixels, is_rgb
from rekindle.prepare.steps.antialiased_resize import resample
from rekindle.prepare.steps.crop_window import WindowStep
from rekindle.prepare.steps.step import Image, Uniforms


def check_pixels(pixels: Pixels) -> Image:
    """The array itself; DecodeError if it is no RGB image."""
    if is_rgb(pixels) and pixels.size:
        return pixels
    raise DecodeError(
        f"an array of {pixels.dtype} {pixels.shape} is no image: expected bytes (uint8), height × width × 3"
    )


def crop_first(image: Image, step: WindowStep, uniforms: Uniforms) -> Image | None:
    """The image after the first step, of which only its window is read; None if that exceeds the image."""
    height, width = image.shape[:2]
    window = step.checked_window(height, width, uniforms)
    if not window.lies_within(height, width):
        return None
    return resample(image, window.box, window.size, step.interpolation_of(uniforms))


def writable(image: Image) -> Image:
    """The image, or a copy of it if it is read-only: compiled steps take only writable arrays."""
    return image if image.flags.writeable else image.copy()
