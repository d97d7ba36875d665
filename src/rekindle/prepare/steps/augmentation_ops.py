"""The operations that augmentation policies choose from, and their magnitudes.

Names, ranges and signs are those of torchvision's RandAugment, TrivialAugmentWide and AutoAugment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from rekindle.prepare.steps.blur_and_sharpness import Sharpness, adjust_sharpness
from rekindle.prepare.steps.colour import adjust_brightness, adjust_contrast, adjust_saturation
from rekindle.prepare.steps.geometry import Matrix, affine, affine_matrix, rotate, rotation_matrix
from rekindle.prepare.steps.nearest_warp import load_nearest_warp
from rekindle.prepare.steps.parameters import Fill, InterpolationMode
from rekindle.prepare.steps.point_operations import (
    AutoContrast,
    Equalize,
    autocontrast,
    equalize_table,
    invert,
    look_up,
    posterize,
    solarize,
)
from rekindle.prepare.steps.step import Image


class Strength(NamedTuple):
    """The magnitudes of an operation, evenly spaced from weakest to strongest.

    Attributes:
        signed: Whether the sign is random.
        per: "width" or "height": magnitudes are multiplied by that length of the image.
        integer: Whether the difference from the weakest is rounded to integers.

    """

    weakest: float = 0.0
    strongest: float = 0.0
    signed: bool = False
    per: str | None = None
    integer: bool = False


Space = dict[str, Strength]
NONE = Strength()


def space(geometry: float, degrees: float, colour: float, bits: int, translate: Strength) -> Space:
    """The fourteen operations, Identity first, with these ranges."""
    signed_colour = Strength(0.0, colour, signed=True)
    return {
        "Identity": NONE,
        "ShearX": Strength(0.0, geometry, signed=True),
        "ShearY": Strength(0.0, geometry, signed=True),
        "TranslateX": translate._replace(per=translate.per and "width"),
        "TranslateY": translate._replace(per=translate.per and "height"),
        "Rotate": Strength(0.0, degrees, signed=True),
        "Brightness": signed_colour,
        "Color": signed_colour,
        "Contrast": signed_colour,
        "Sharpness": signed_colour,
        "Posterize": Strength(8, bits, integer=True),
        "Solarize": Strength(255.0, 0.0),
        "AutoContrast": NONE,
        "Equalize": NONE,
    }


_FRACTION = Strength(0.0, 150.0 / 331.0, signed=True, per="size")
RANDAUGMENT = space(geometry=0.3, degrees=30.0, colour=0.9, bits=4, translate=_FRACTION)
TRIVIALAUGMENT_WIDE = space(
    geometry=0.99, degrees=135.0, colour=0.99, bits=2, translate=Strength(0.0, 32.0, signed=True)
)
AUTOAUGMENT = {name: strength for name, strength in RANDAUGMENT.items() if name != "Identity"} | {
    "Invert": NONE
}


def magnitude(strength: Strength, level: int, bins: int, height: int, width: int) -> float:
    """The magnitude at a level, from 0 to bins − 1, without its sign."""
    if strength.weakest == strength.strongest:
        return 0.0
    extent = {"height": height, "width": width}.get(strength.per or "", 1)
    return magnitudes(strength, bins, extent)[level]


@lru_cache(maxsize=4096)
def magnitudes(strength: Strength, bins: int, extent: int = 1) -> tuple[float, ...]:
    """The magnitudes at all levels; computed by torch, since some are truncated to integers later."""
    if strength.integer:
        steps = strength.weakest - strength.strongest
        difference = (torch.arange(bins) / ((bins - 1) / steps)).round()
        return tuple((strength.weakest - difference).tolist())
    return tuple(torch.linspace(strength.weakest, strength.strongest * extent, bins).tolist())


def distinct_outcomes(space: Space, bins: int) -> int:
    """The number of (operation, magnitude) pairs if every level is possible; signs are not counted."""
    return sum(len(set(magnitudes(strength, bins))) for strength in space.values())


def compile_operations() -> None:
    """Compile what the operations need, or load it."""
    for step in (AutoContrast(), Equalize(), Sharpness(0)):
        step.compile_kernels()
    load_nearest_warp()


def perform(image: Image, name: str, magnitude: float, mode: InterpolationMode, fill: Fill) -> Image:
    """The image after the operation of this name, with a signed magnitude."""
    return _OPERATIONS[name](image, magnitude, mode, fill)


class _AffineMap(NamedTuple):
    """A translation or shear, relative to the upper left corner."""

    translate: tuple[int, int] = (0, 0)
    shear: tuple[float, float] = (0.0, 0.0)


_AFFINE_MAPS: dict[str, Callable[[float], _AffineMap]] = {
    "ShearX": lambda m: _AffineMap(shear=(math.degrees(math.atan(m)), 0.0)),
    "ShearY": lambda m: _AffineMap(shear=(0.0, math.degrees(math.atan(m)))),
    "TranslateX": lambda m: _AffineMap(translate=(int(m), 0)),
    "TranslateY": lambda m: _AffineMap(translate=(0, int(m))),
}
_CORNER = (0.0, 0.0)


def geometric_matrix(name: str, magnitude: float, height: int, width: int) -> Matrix | None:
    """From result to source, for the geometric operations; None for all others."""
    if name == "Rotate":
        return rotation_matrix(height, width, magnitude)
    if name not in _AFFINE_MAPS:
        return None
    mapped = _AFFINE_MAPS[name](magnitude)
    return affine_matrix(_CORNER, 0, mapped.translate, 1, mapped.shear)


def factor(magnitude: float) -> float:
    """The factor of Brightness, Color, Contrast and Sharpness; 1 leaves the image unchanged."""
    return 1 + magnitude


_Operation = Callable[[Image, float, InterpolationMode, Fill], Image]


def _affine_operation(name: str) -> _Operation:
    def perform(image: Image, magnitude: float, mode: InterpolationMode, fill: Fill) -> Image:
        mapped = _AFFINE_MAPS[name](magnitude)
        return affine(image, 0, mapped.translate, 1, mapped.shear, mode, fill, _CORNER)

    return perform


_OPERATIONS: dict[str, _Operation] = {
    "Identity": lambda image, _, __, ___: image,
    **{name: _affine_operation(name) for name in _AFFINE_MAPS},
    "Rotate": lambda image, m, mode, fill: rotate(image, m, mode, fill=fill),
    "Brightness": lambda image, m, _, __: adjust_brightness(image, factor(m)),
    "Color": lambda image, m, _, __: adjust_saturation(image, factor(m)),
    "Contrast": lambda image, m, _, __: adjust_contrast(image, factor(m)),
    "Sharpness": lambda image, m, _, __: adjust_sharpness(image, factor(m)),
    "Posterize": lambda image, m, _, __: posterize(image, int(m)),
    "Solarize": lambda image, m, _, __: solarize(image, m),
    "AutoContrast": lambda image, _, __, ___: autocontrast(image),
    "Equalize": lambda image, _, __, ___: look_up(image, equalize_table(image)),
    "Invert": lambda image, _, __, ___: invert(image),
}
