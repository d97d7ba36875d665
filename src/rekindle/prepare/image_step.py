"""What the steps on images share: what they accept, chance, and numbers beyond the ones drawn for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.step import Image, Numbers, Step

# Samples are prepared in parallel; threads inside one image would only get in each other's way.
cv2.setNumThreads(1)

_MASK = 0xFFFFFFFFFFFFFFFF


class ImageStep(Step):
    """A step from an image to an image: height × width × 3 bytes, RGB. Most keep height and width.

    What comes out may share memory with what went in.
    """

    keeps_size = True

    def __call__(self, image: Any) -> Any:
        """Apply to an array or a Pillow image, with numbers from torch's global generator."""
        return super().__call__(as_image(image, type(self).__name__))


class ChanceStep(ImageStep):
    """A step that changes the image with probability `p` and leaves it as it is otherwise."""

    uniforms = 1

    def __init__(self, p: float) -> None:
        self.p = parameters.probability(type(self).__name__, p)
        self.diversity = 2 if 0 < self.p < 1 else 1

    def happens(self, numbers: Numbers) -> Any:
        """Whether the image is changed; for rows of numbers, an array that says it of each row."""
        return numbers[..., 0] < self.p

    def apply(self, image: Image, numbers: Numbers) -> Image:
        return self.change(image) if self.happens(numbers) else image

    @abstractmethod
    def change(self, image: Image) -> Image:
        """The image, changed."""


def as_image(image: Any, step: str) -> Image:
    """The image as an array of height × width × 3 bytes; Pillow images are converted."""
    if hasattr(image, "convert") and hasattr(image, "getbands"):
        image = np.array(image.convert("RGB"))
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return image
    kind = f"{type(image).__name__} of {getattr(image, 'dtype', '?')} {tuple(getattr(image, 'shape', ()))}"
    raise ArgumentError(
        f"{step}: the image is a {kind}. Give an RGB array of bytes, height × width × 3, or a Pillow image; "
        "steps on images come before ToTensor."
    )


def further_numbers(numbers: Numbers) -> Iterator[float]:
    """Uniform numbers without end that follow from those given, for steps that may have to try again.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), started from the bits of the numbers given. A step that
    seldom tries again then needs few numbers of its own for each sample.
    """
    state = 0
    for bits in np.asarray(numbers, dtype=np.float64).view(np.uint64).tolist():
        state = _mixed(state ^ bits)
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        yield (_mixed(state) >> 11) * 2.0**-53


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
