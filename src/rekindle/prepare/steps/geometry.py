"""Rotation and affine maps: RandomRotation and RandomAffine.

Matrices and conventions are torchvision's for Pillow images: a matrix maps coordinates in the result to
coordinates in the source, and the centre of a pixel is at one half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import ArgumentError
from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.crop_window import crop_with_border
from rekindle.prepare.steps.image_step import ImageStep
from rekindle.prepare.steps.nearest_warp import load_nearest_warp, warp_nearest
from rekindle.prepare.steps.parameters import Fill, FillArgument, InterpolationArgument, InterpolationMode
from rekindle.prepare.steps.step import Image, Uniforms, random_between

Matrix = tuple[float, float, float, float, float, float]

WARP_MODES = (InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
_TIE = 1 / 1024  # the resolution of OpenCV's coordinates
_FLAGS = {
    InterpolationMode.BILINEAR: cv2.INTER_LINEAR,
    InterpolationMode.BICUBIC: cv2.INTER_CUBIC,
}


def affine_matrix(
    centre: tuple[float, float],
    angle: float,
    translate: tuple[float, float],
    scale: float,
    shear: tuple[float, float],
) -> Matrix:
    """From result to source: rotation by `angle` degrees and shear about the centre, scale, translation."""
    turn, shear_x, shear_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -a * math.tan(shear_x) - math.sin(turn)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = -c * math.tan(shear_x) + math.cos(turn)
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    x, y = centre[0] + translate[0], centre[1] + translate[1]
    return a, b, centre[0] - a * x - b * y, c, d, centre[1] - c * x - d * y


def warp(
    image: Image, matrix: Matrix, mode: InterpolationMode, fill: Fill, size: tuple[int, int] | None = None
) -> Image:
    """The image warped by the matrix; `fill` where that falls outside the source."""
    height, width = size or image.shape[:2]
    m = between_centres(matrix, mode)
    if mode is InterpolationMode.NEAREST:
        return warp_nearest(image, m, (height, width), fill)
    flags = _FLAGS[mode] | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, m, (width, height), flags=flags, borderValue=fill)  # type: ignore[return-value]


def between_centres(matrix: Matrix, mode: InterpolationMode) -> NDArray[np.float64]:
    """The matrix (2 × 3) for coordinates in which the centre of a pixel is an integer, as in OpenCV."""
    a, b, x, c, d, y = matrix
    # A coordinate halfway between two pixels belongs to the second one.
    tie = _TIE if mode is InterpolationMode.NEAREST else 0.0
    return np.array([[a, b, x + (a + b - 1) / 2 + tie], [c, d, y + (c + d - 1) / 2 + tie]])


def affine(
    image: Image,
    angle: float,
    translate: tuple[float, float],
    scale: float,
    shear: tuple[float, float],
    mode: InterpolationMode = InterpolationMode.NEAREST,
    fill: Fill = (0, 0, 0),
    centre: tuple[float, float] | None = None,
) -> Image:
    """The image rotated clockwise, translated by (x, y), scaled and sheared about its centre."""
    height, width = image.shape[:2]
    if angle == 0 and scale == 1 and not any(shear) and all(move % 1 == 0 for move in translate):
        return crop_with_border(image, (-int(translate[1]), -int(translate[0]), height, width), fill)
    matrix = affine_matrix(centre or _centre(height, width), angle, translate, scale, shear)
    return warp(image, matrix, mode, fill)


def rotation_matrix(
    height: int, width: int, angle: float, centre: tuple[float, float] | None = None
) -> Matrix:
    """From result to source: rotation counter-clockwise by `angle` degrees."""
    return affine_matrix(centre or _centre(height, width), -(angle % 360), (0, 0), 1, (0, 0))


def _centre(height: int, width: int) -> tuple[float, float]:
    return width / 2, height / 2


def rotate(
    image: Image,
    angle: float,
    mode: InterpolationMode = InterpolationMode.NEAREST,
    expand: bool = False,
    centre: tuple[float, float] | None = None,
    fill: Fill = (0, 0, 0),
    limits: Limits = DEFAULT_LIMITS,
) -> Image:
    """The image rotated counter-clockwise by `angle` degrees; with `expand`, enlarged to hold all of it."""
    height, width = image.shape[:2]
    angle %= 360
    if centre is None and angle % 90 == 0 and (angle % 180 == 0 or expand or height == width):
        return np.ascontiguousarray(np.rot90(image, round(angle / 90)))
    matrix = rotation_matrix(height, width, angle, centre)
    if not expand:
        return warp(image, matrix, mode, fill)
    a, b, x, c, d, y = matrix
    # Pillow takes the extent of the corners mapped to the source: the same by symmetry.
    xs = [a * u + b * v + x for u, v in ((0, 0), (width, 0), (width, height), (0, height))]
    ys = [c * u + d * v + y for u, v in ((0, 0), (width, 0), (width, height), (0, height))]
    new_width = math.ceil(max(xs)) - math.floor(min(xs))
    new_height = math.ceil(max(ys)) - math.floor(min(ys))
    limits.check_image(new_height, new_width, "after RandomRotation")
    u, v = (width - new_width) / 2, (height - new_height) / 2
    grown = a, b, a * u + b * v + x, c, d, c * u + d * v + y
    return warp(image, grown, mode, fill, (new_height, new_width))


class RandomRotation(ImageStep):
    """Rotate by a random angle: from −`degrees` to +`degrees`, or between two given angles."""

    uniforms = 1
    diversity = math.inf

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: InterpolationArgument = InterpolationMode.NEAREST,
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: FillArgument = 0,
    ) -> None:
        self.degrees = parameters.angle_range("RandomRotation", "degrees", degrees)
        self.interpolation = parameters.interpolation_mode("RandomRotation", interpolation, WARP_MODES)
        self.expand = expand
        self.center = parameters.point("RandomRotation", "center", center)
        self.fill = parameters.fill_colour("RandomRotation", fill)
        self.keeps_size = not expand

    def compile_kernels(self) -> None:
        if self.interpolation is InterpolationMode.NEAREST:
            load_nearest_warp()

    def angle(self, uniforms: Uniforms) -> float:
        """The angle in degrees, counter-clockwise."""
        return random_between(uniforms[0], *self.degrees)

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        return rotate(
            image,
            self.angle(uniforms),
            self.interpolation,
            self.expand,
            self.center,
            self.fill,
            self._limits,
        )


class RandomAffine(ImageStep):
    """Rotate, translate, scale and shear about the centre, each by a random amount.

    `translate` is the largest translation as fractions of width and height; `shear` is a range of angles
    along x or, with four numbers, along x and along y.
    """

    uniforms = 6
    diversity = math.inf

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: InterpolationArgument = InterpolationMode.NEAREST,
        fill: FillArgument = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        name = "RandomAffine"
        self.degrees = parameters.angle_range(name, "degrees", degrees)
        self.translate = None if translate is None else _fractions(translate)
        self.scale = None if scale is None else parameters.ordered_pair(name, "scale", scale, 1e-6)
        self.shear = None if shear is None else _shear_ranges(shear)
        self.interpolation = parameters.interpolation_mode(name, interpolation, WARP_MODES)
        self.fill = parameters.fill_colour(name, fill)
        self.center = parameters.point(name, "center", center)

    def compile_kernels(self) -> None:
        if self.interpolation is InterpolationMode.NEAREST:
            load_nearest_warp()

    def amounts(
        self, height: int, width: int, uniforms: Uniforms
    ) -> tuple[float, tuple[int, int], float, tuple[float, float]]:
        """Angle, translation (x, y), scale and shear (x, y) for an image of this size."""
        angle, translate_x, translate_y, scale, shear_x, shear_y = uniforms.tolist()
        fraction_x, fraction_y = self.translate or (0, 0)
        translation = (
            round(random_between(translate_x, -fraction_x * width, fraction_x * width)),
            round(random_between(translate_y, -fraction_y * height, fraction_y * height)),
        )
        shear = self.shear or (0, 0, 0, 0)
        return (
            random_between(angle, *self.degrees),
            translation,
            random_between(scale, *self.scale) if self.scale else 1.0,
            (random_between(shear_x, *shear[:2]), random_between(shear_y, *shear[2:])),
        )

    def matrix(self, height: int, width: int, uniforms: Uniforms) -> Matrix:
        """From result to source, for an image of this size."""
        return affine_matrix(self.center or _centre(height, width), *self.amounts(height, width, uniforms))

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        height, width = image.shape[:2]
        amounts = self.amounts(height, width, uniforms)
        return affine(image, *amounts, self.interpolation, self.fill, self.center)


def _fractions(translate: Sequence[float]) -> tuple[float, float]:
    if not isinstance(translate, Sequence) or len(translate) != 2:
        raise ArgumentError(f"RandomAffine: translate is {translate!r}. Give two numbers: (x, y).")
    x, y = (parameters.number("RandomAffine", "a part of translate", part, 0, 1) for part in translate)
    return x, y


def _shear_ranges(shear: float | Sequence[float]) -> tuple[float, float, float, float]:
    """The ranges of the angles along x and along y, in degrees."""
    if isinstance(shear, Sequence) and len(shear) == 4:
        low_x, high_x = parameters.ordered_pair("RandomAffine", "shear", shear[:2])
        return low_x, high_x, *parameters.ordered_pair("RandomAffine", "shear", shear[2:])
    return *parameters.angle_range("RandomAffine", "shear", shear), 0.0, 0.0
