"""Blur and sharpness: GaussianBlur, Sharpness and RandomAdjustSharpness."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rekindle.errors import ArgumentError
from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.colour import TRUNCATE
from rekindle.prepare.steps.image_step import ChanceStep, ImageStep
from rekindle.prepare.steps.sharpness_kernel import blend_with_means, load_blend
from rekindle.prepare.steps.step import Image, Uniforms, random_between

_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], dtype=np.float32) / 13  # Pillow's
# From here on, the rounding of a mean of 3 × 3 pixels, which takes a third of the time, would count.
_STRONG = 2.0


def gaussian_blur(image: Image, kernel_size: tuple[int, int], sigma: float) -> Image:
    """The image blurred by a kernel of this width and height, reflected at its edges."""
    return cv2.GaussianBlur(  # type: ignore[return-value]
        image, kernel_size, sigmaX=sigma, sigmaY=sigma, borderType=cv2.BORDER_REFLECT_101
    )


def adjust_sharpness(image: Image, factor: float) -> Image:
    """The image with `factor` times its difference from a smoothed one: 0 is smooth, 1 unchanged, 2 sharp.

    Pillow's smoothed image is (the sum of 3 × 3 pixels + 4 · the pixel) / 13; edge pixels stay as they are.
    """
    if image.shape[0] < 3 or image.shape[1] < 3:
        return image
    rest = 1 - factor
    if factor > _STRONG:
        smooth = cv2.filter2D(image, -1, _SMOOTH)
        result: Image = cv2.addWeighted(image, factor, smooth, rest, TRUNCATE)  # type: ignore[assignment]
    else:
        result = blend_with_means(image, factor + rest * 4 / 13, rest * 9 / 13, TRUNCATE)
    result[0], result[-1] = image[0], image[-1]
    result[:, 0], result[:, -1] = image[:, 0], image[:, -1]
    return result


class GaussianBlur(ImageStep):
    """Blur with a standard deviation drawn from `sigma` (a range, or one number to fix it).

    `kernel_size` is one number or, as in torchvision, (width, height).
    """

    uniforms = 1
    diversity = math.inf

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        self.kernel_size = parameters.size_pair("GaussianBlur", kernel_size, "kernel_size", "(width, height)")
        if any(length % 2 == 0 for length in self.kernel_size):
            raise ArgumentError(f"GaussianBlur: kernel_size is {kernel_size!r}. Give odd numbers.")
        fixed = parameters.is_number(sigma)
        self.sigma = parameters.ordered_pair(
            "GaussianBlur", "sigma", [sigma, sigma] if fixed else sigma, 1e-6
        )
        if self.sigma[0] == self.sigma[1]:
            self.uniforms, self.diversity = 0, 1

    def deviation(self, uniforms: Uniforms) -> float:
        """The standard deviation in pixels."""
        return random_between(uniforms[0], *self.sigma) if self.uniforms else self.sigma[0]

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return gaussian_blur(image, self.kernel_size, self.deviation(uniforms))


class Sharpness(ImageStep):
    """Change the sharpness by a factor: 0 is smooth, 1 unchanged, 2 sharp."""

    def __init__(self, sharpness_factor: float) -> None:
        self.sharpness_factor = parameters.number("Sharpness", "sharpness_factor", sharpness_factor, 0)

    def compile_kernels(self) -> None:
        load_blend()

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return adjust_sharpness(image, self.sharpness_factor)


class RandomAdjustSharpness(ChanceStep):
    """Change the sharpness by a factor with probability `p`."""

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        self.sharpness_factor = parameters.number(
            "RandomAdjustSharpness", "sharpness_factor", sharpness_factor, 0
        )
        super().__init__(p)

    def compile_kernels(self) -> None:
        load_blend()

    def change(self, image: Image) -> Image:
        return adjust_sharpness(image, self.sharpness_factor)
