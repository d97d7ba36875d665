"""The operations that augmentation policies choose from, and how strong they are.

Names, ranges and signs are those of torchvision's RandAugment, TrivialAugmentWide and AutoAugment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from rekindle.prepare.blur_and_sharpness import adjust_sharpness
from rekindle.prepare.colour import adjust_brightness, adjust_contrast, adjust_saturation
from rekindle.prepare.geometry import Matrix, affine, affine_matrix, rotate, rotation_matrix
from rekindle.prepare.parameters import Fill, InterpolationMode
from rekindle.prepare.point_operations import (
    autocontrast_table,
    equalize_table,
    invert,
    look_up,
    posterize,
    solarize_table,
)
from rekindle.prepare.step import Image


class Strength(NamedTuple):
    """The magnitudes of an operation: evenly from weakest to strongest; `signed` ones go either way.

    `per` multiplies them by the image's "width" or "height"; `whole` rounds what has been taken away from the
    weakest to whole numbers.
    """

    weakest: float = 0.0
    strongest: float = 0.0
    signed: bool = False
    per: str | None = None
    whole: bool = False


Space = dict[str, Strength]
NONE = Strength()


def space(geometry: float, turn: float, colour: float, bits: int, move: Strength) -> Space:
    """The fourteen operations with Identity first, at these strengths."""
    signed_colour = Strength(0.0, colour, signed=True)
    return {
        "Identity": NONE,
        "ShearX": Strength(0.0, geometry, signed=True),
        "ShearY": Strength(0.0, geometry, signed=True),
        "TranslateX": move._replace(per=move.per and "width"),
        "TranslateY": move._replace(per=move.per and "height"),
        "Rotate": Strength(0.0, turn, signed=True),
        "Brightness": signed_colour,
        "Color": signed_colour,
        "Contrast": signed_colour,
        "Sharpness": signed_colour,
        "Posterize": Strength(8, bits, whole=True),
        "Solarize": Strength(255.0, 0.0),
        "AutoContrast": NONE,
        "Equalize": NONE,
    }


_SHARE = Strength(0.0, 150.0 / 331.0, signed=True, per="size")
RANDAUGMENT = space(geometry=0.3, turn=30.0, colour=0.9, bits=4, move=_SHARE)
TRIVIALAUGMENT_WIDE = space(
    geometry=0.99, turn=135.0, colour=0.99, bits=2, move=Strength(0.0, 32.0, signed=True)
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
    """The magnitudes at all levels; in torch's arithmetic, since some are cut off to whole numbers later."""
    if strength.whole:
        steps = strength.weakest - strength.strongest
        taken = (torch.arange(bins) / ((bins - 1) / steps)).round()
        return tuple((strength.weakest - taken).tolist())
    return tuple(torch.linspace(strength.weakest, strength.strongest * extent, bins).tolist())


def distinct_outcomes(space: Space, bins: int) -> int:
    """How many (operation, magnitude) pairs there are when every level is possible; signs are not counted."""
    return sum(len(set(magnitudes(strength, bins))) for strength in space.values())


def perform(image: Image, name: str, magnitude: float, mode: InterpolationMode, fill: Fill) -> Image:
    """The image after the operation of this name, with a signed magnitude."""
    return _OPERATIONS[name](image, magnitude, mode, fill)


class _Move(NamedTuple):
    """What a geometric operation does, all about the upper left corner."""

    translate: tuple[int, int] = (0, 0)
    shear: tuple[float, float] = (0.0, 0.0)


_MOVES: dict[str, Callable[[float], _Move]] = {
    "ShearX": lambda m: _Move(shear=(math.degrees(math.atan(m)), 0.0)),
    "ShearY": lambda m: _Move(shear=(0.0, math.degrees(math.atan(m)))),
    "TranslateX": lambda m: _Move(translate=(int(m), 0)),
    "TranslateY": lambda m: _Move(translate=(0, int(m))),
}
_CORNER = (0.0, 0.0)


def geometric_matrix(name: str, magnitude: float, height: int, width: int) -> Matrix | None:
    """From result to source, for the operations that move pixels; None for all others."""
    if name == "Rotate":
        return rotation_matrix(height, width, magnitude)
    if name not in _MOVES:
        return None
    move = _MOVES[name](magnitude)
    return affine_matrix(_CORNER, 0, move.translate, 1, move.shear)


def factor(magnitude: float) -> float:
    """By how much Brightness, Color, Contrast and Sharpness multiply; 1 changes nothing."""
    return 1 + magnitude


_Operation = Callable[[Image, float, InterpolationMode, Fill], Image]


def _moved(name: str) -> _Operation:
    def perform(image: Image, magnitude: float, mode: InterpolationMode, fill: Fill) -> Image:
        move = _MOVES[name](magnitude)
        return affine(image, 0, move.translate, 1, move.shear, mode, fill, _CORNER)

    return perform


_OPERATIONS: dict[str, _Operation] = {
    "Identity": lambda image, _, __, ___: image,
    **{name: _moved(name) for name in _MOVES},
    "Rotate": lambda image, m, mode, fill: rotate(image, m, mode, fill=fill),
    "Brightness": lambda image, m, _, __: adjust_brightness(image, factor(m)),
    "Color": lambda image, m, _, __: adjust_saturation(image, factor(m)),
    "Contrast": lambda image, m, _, __: adjust_contrast(image, factor(m)),
    "Sharpness": lambda image, m, _, __: adjust_sharpness(image, factor(m)),
    "Posterize": lambda image, m, _, __: posterize(image, int(m)),
    "Solarize": lambda image, m, _, __: look_up(image, solarize_table(m)),
    "AutoContrast": lambda image, _, __, ___: look_up(image, autocontrast_table(image)),
    "Equalize": lambda image, _, __, ___: look_up(image, equalize_table(image)),
    "Invert": lambda image, _, __, ___: invert(image),
}
