"""What the steps on images share: the inputs they accept, a probability, and random numbers for retries."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import ArgumentError
from rekindle.prepare.rgb import is_pillow, is_rgb, pillow_to_rgb
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.outcomes import Outcomes, chance
from rekindle.prepare.steps.step import Image, Step, Uniforms, Value

_MASK = 0xFFFFFFFFFFFFFFFF


class ImageStep(Step):
    """A step from an image to an image: height × width × 3 bytes, RGB. Most keep height and width.

    The result may share memory with the input.
    """

    keeps_size = True
    _limits = DEFAULT_LIMITS

    def with_limits(self, limits: Limits) -> Step:
        limited = copy.copy(self)
        limited._limits = limits
        return limited

    def __call__(self, image: Value) -> Value:
        """Apply to an array or a Pillow image, with random numbers from torch's global generator."""
        return super().__call__(as_image(image, type(self).__name__))


class ChanceStep(ImageStep):
    """A step that changes the image with probability `p` and returns it unchanged otherwise."""

    uniforms = 1

    def __init__(self, p: float) -> None:
        self.p = parameters.probability(type(self).__name__, p)
        self.diversity = 2 if 0 < self.p < 1 else 1

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return chance(self.p)

    def happens(self, uniforms: Uniforms) -> bool:
        """Whether the image is changed."""
        return bool(uniforms[0] < self.p)

    def happens_in(self, uniforms: Uniforms) -> NDArray[np.bool_]:
        """Which images of a batch are changed, given a row of random numbers for each."""
        return uniforms[:, 0] < self.p

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return self.change(image) if self.happens(uniforms) else image

    @abstractmethod
    def change(self, image: Image) -> Image:
        """The changed image."""


def as_image(image: object, step: str) -> Image:
    """The image as an array of height × width × 3 bytes; Pillow images are converted."""
    if is_rgb(image):
        return image
    if is_pillow(image):
        return pillow_to_rgb(image)
    kind = f"{type(image).__name__} of {getattr(image, 'dtype', '?')} {tuple(getattr(image, 'shape', ()))}"
    raise ArgumentError(
        f"{step}: the image is a {kind}. Give an RGB array of bytes, height × width × 3, or a Pillow image; "
        "steps on images come before ToTensor, and before a function that returns something else."
    )


def more_uniforms(uniforms: Uniforms) -> Iterator[float]:
    """An endless stream of random numbers derived from those given, for steps that may have to retry.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), seeded with the bits of the given numbers. A step that
    seldom retries then needs only a few random numbers for each sample.
    """
    state = 0
    for bits in np.asarray(uniforms, dtype=np.float64).view(np.uint64).tolist():
        state = _mixed(state ^ bits)
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        yield (_mixed(state) >> 11) * 2.0**-53


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
