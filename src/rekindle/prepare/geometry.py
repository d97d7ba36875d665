"""Rotation and affine maps: RandomRotation and RandomAffine.

Matrices and conventions are torchvision's for Pillow images: a matrix takes places in the result to places in
the source, and the middle of a pixel is at one half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.image_step import ImageStep
from rekindle.prepare.parameters import Fill, InterpolationMode
from rekindle.prepare.step import Image, Numbers, between
from rekindle.prepare.window import cut_with_border

Matrix = tuple[float, float, float, float, float, float]

WARP_MODES = (InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
_TIE = 1 / 1024  # OpenCV's unit of places
_FLAGS = {
    InterpolationMode.NEAREST: cv2.INTER_NEAREST,
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
    """The image seen through the matrix; `fill` where that looks outside."""
    height, width = size or image.shape[:2]
    flags = _FLAGS[mode] | cv2.WARP_INVERSE_MAP
    m = between_middles(matrix, mode)
    return cv2.warpAffine(image, m, (width, height), flags=flags, borderValue=fill)  # type: ignore[return-value]


def between_middles(matrix: Matrix, mode: InterpolationMode) -> NDArray[np.float64]:
    """The matrix (2 × 3) where the middle of a pixel is at whole numbers, as OpenCV has it."""
    a, b, x, c, d, y = matrix
    # A place between two pixels belongs to the second one.
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
    """The image rotated clockwise, moved by `translate` (x, y), scaled and sheared about its centre."""
    height, width = image.shape[:2]
    if angle == 0 and scale == 1 and not any(shear) and all(move % 1 == 0 for move in translate):
        return cut_with_border(image, (-int(translate[1]), -int(translate[0]), height, width), fill)
    matrix = affine_matrix(centre or _middle(height, width), angle, translate, scale, shear)
    return warp(image, matrix, mode, fill)


def rotation_matrix(
    height: int, width: int, angle: float, centre: tuple[float, float] | None = None
) -> Matrix:
    """From result to source: rotation counter-clockwise by `angle` degrees."""
    return affine_matrix(centre or _middle(height, width), -(angle % 360), (0, 0), 1, (0, 0))


def _middle(height: int, width: int) -> tuple[float, float]:
    return width / 2, height / 2


def rotate(
    image: Image,
    angle: float,
    mode: InterpolationMode = InterpolationMode.NEAREST,
    expand: bool = False,
    centre: tuple[float, float] | None = None,
    fill: Fill = (0, 0, 0),
) -> Image:
    """The image rotated counter-clockwise by `angle` degrees; with `expand`, all of it."""
    height, width = image.shape[:2]
    angle %= 360
    if centre is None and angle % 90 == 0 and (angle % 180 == 0 or expand or height == width):
        return np.ascontiguousarray(np.rot90(image, round(angle / 90)))
    matrix = rotation_matrix(height, width, angle, centre)
    if not expand:
        return warp(image, matrix, mode, fill)
    a, b, x, c, d, y = matrix
    # Pillow takes the extent of the corners seen through the matrix to the source: the same by symmetry.
    xs = [a * u + b * v + x for u, v in ((0, 0), (width, 0), (width, height), (0, height))]
    ys = [c * u + d * v + y for u, v in ((0, 0), (width, 0), (width, height), (0, height))]
    new_width = math.ceil(max(xs)) - math.floor(min(xs))
    new_height = math.ceil(max(ys)) - math.floor(min(ys))
    u, v = (width - new_width) / 2, (height - new_height) / 2
    grown = a, b, a * u + b * v + x, c, d, c * u + d * v + y
    return warp(image, grown, mode, fill, (new_height, new_width))


class RandomRotation(ImageStep):
    """The image rotated by an angle from `degrees`: − to + one number, or between two."""

    uniforms = 1
    diversity = math.inf

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Any = InterpolationMode.NEAREST,
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Any = 0,
    ) -> None:
        self.degrees = parameters.angle_range("RandomRotation", "degrees", degrees)
        self.interpolation = parameters.interpolation_mode("RandomRotation", interpolation, WARP_MODES)
        self.expand = expand
        self.center = parameters.point("RandomRotation", "center", center)
        self.fill = parameters.fill_colour("RandomRotation", fill)
        self.keeps_size = not expand

    def angle(self, numbers: Numbers) -> float:
        """By how many degrees the image is rotated, counter-clockwise."""
        return between(numbers[0], *self.degrees)

    def apply(self, image: Image, numbers: Numbers) -> Image:
        return rotate(image, self.angle(numbers), self.interpolation, self.expand, self.center, self.fill)


class RandomAffine(ImageStep):
    """The image rotated, moved, scaled and sheared about its centre, each by a random amount.

    `translate` is the largest move as parts of width and height; `shear` gives angles along x, or, with four
    numbers, along x and along y.
    """

    uniforms = 6
    diversity = math.inf

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Any = InterpolationMode.NEAREST,
        fill: Any = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        name = "RandomAffine"
        self.degrees = parameters.angle_range(name, "degrees", degrees)
        self.translate = None if translate is None else _shares(translate)
        self.scale = None if scale is None else parameters.ordered_pair(name, "scale", scale, 1e-6)
        self.shear = None if shear is None else _shear_ranges(shear)
        self.interpolation = parameters.interpolation_mode(name, interpolation, WARP_MODES)
        self.fill = parameters.fill_colour(name, fill)
        self.center = parameters.point(name, "center", center)

    def amounts(
        self, height: int, width: int, numbers: Numbers
    ) -> tuple[float, tuple[int, int], float, tuple[float, float]]:
        """Angle, move (x, y), scale and shear (x, y) for an image of this size."""
        angle, along, down, scale, shear_x, shear_y = numbers.tolist()
        share_x, share_y = self.translate or (0, 0)
        move = (
            round(between(along, -share_x * width, share_x * width)),
            round(between(down, -share_y * height, share_y * height)),
        )
        shear = self.shear or (0, 0, 0, 0)
        return (
            between(angle, *self.degrees),
            move,
            between(scale, *self.scale) if self.scale else 1.0,
            (between(shear_x, *shear[:2]), between(shear_y, *shear[2:])),
        )

    def matrix(self, height: int, width: int, numbers: Numbers) -> Matrix:
        """From result to source, for an image of this size."""
        return affine_matrix(self.center or _middle(height, width), *self.amounts(height, width, numbers))

    def apply(self, image: Image, numbers: Numbers) -> Image:
        height, width = image.shape[:2]
        amounts = self.amounts(height, width, numbers)
        return affine(image, *amounts, self.interpolation, self.fill, self.center)


def _shares(translate: Sequence[float]) -> tuple[float, float]:
    if not isinstance(translate, Sequence) or len(translate) != 2:
        raise ArgumentError(f"RandomAffine: translate is {translate!r}. Give two numbers: (x, y).")
    along, down = (parameters.number("RandomAffine", "a part of translate", part, 0, 1) for part in translate)
    return along, down


def _shear_ranges(shear: float | Sequence[float]) -> tuple[float, float, float, float]:
    """The ranges of the angles along x and along y."""
    if isinstance(shear, Sequence) and len(shear) == 4:
        low_x, high_x = parameters.ordered_pair("RandomAffine", "shear", shear[:2])
        return low_x, high_x, *parameters.ordered_pair("RandomAffine", "shear", shear[2:])
    return *parameters.angle_range("RandomAffine", "shear", shear), 0.0, 0.0
