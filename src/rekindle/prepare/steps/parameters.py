"""Checks of the image steps' parameters, so that a wrong one is found when the step is constructed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from numbers import Integral, Real
from typing import TypeAlias, TypeGuard

from rekindle.errors import ArgumentError

Fill: TypeAlias = tuple[int, int, int]  # a colour, checked
FillArgument: TypeAlias = (
    float | Sequence[float] | None
)  # one number for all channels, or three; None is black
InterpolationArgument: TypeAlias = Enum | str | int  # ours, torchvision's, a name, or Pillow's number


class InterpolationMode(str, Enum):  # noqa: UP042 - a member prints and compares as torchvision's does
    """How values between pixels are interpolated; the members of torchvision's enum of this name."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"

    def __repr__(self) -> str:
        return f"InterpolationMode.{self.name}"


_PILLOW_NUMBERS = {
    0: InterpolationMode.NEAREST,
    1: InterpolationMode.LANCZOS,
    2: InterpolationMode.BILINEAR,
    3: InterpolationMode.BICUBIC,
    4: InterpolationMode.BOX,
    5: InterpolationMode.HAMMING,
}


def interpolation_mode(step: str, value: object, allowed: Sequence[InterpolationMode]) -> InterpolationMode:
    """The mode, given as one of ours, as torchvision's, by its name or by Pillow's number."""
    name = value.value if isinstance(value, Enum) else value
    mode = _PILLOW_NUMBERS.get(name) if isinstance(name, int) else None
    if isinstance(name, str) and name in {member.value for member in InterpolationMode}:
        mode = InterpolationMode(name)
    if mode is None or mode not in allowed:
        names = ", ".join(repr(member.value) for member in allowed)
        raise ArgumentError(f"{step}: interpolation is {value!r}. Give one of {names}.")
    return mode


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite real number (a bool is not)."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def number(step: str, name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """The value, a number from low to high."""
    if not is_number(value) or not low <= value <= high:
        limits = "" if low == -math.inf and high == math.inf else f" from {low:g} to {high:g}"
        raise ArgumentError(f"{step}: {name} is {value!r}. Give a number{limits}.")
    return float(value)


def probability(step: str, value: object) -> float:
    """The value, a probability."""
    return number(step, "p", value, 0, 1)


def positive_integer(step: str, name: str, value: object) -> int:
    """The value, an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ArgumentError(f"{step}: {name} is {value!r}. Give an integer of at least 1.")
    return int(value)


def size_pair(
    step: str, value: object, name: str = "size", order: str = "(height, width)"
) -> tuple[int, int]:
    """Height and width, or what `order` says, from one number for both or from a sequence of one or two."""
    parts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if len(parts) not in (1, 2):
        raise ArgumentError(f"{step}: {name} is {value!r}. Give one number, or two: {order}.")
    first, second = (positive_integer(step, name, part) for part in (parts * 2)[:2])
    return first, second


def ordered_pair(
    step: str, name: str, value: object, low: float = -math.inf, high: float = math.inf
) -> tuple[float, float]:
    """Two numbers from low to high, the smaller first."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ArgumentError(f"{step}: {name} is {value!r}. Give two numbers: (smallest, largest).")
    smallest, largest = (number(step, f"a bound of {name}", bound, low, high) for bound in value)
    if smallest > largest:
        raise ArgumentError(f"{step}: {name} is {value!r}. Give the smaller number first.")
    return smallest, largest


def angle_range(step: str, name: str, value: object) -> tuple[float, float]:
    """Angles from − value to + value, or between the two given."""
    if is_number(value):
        limit = number(step, name, value, 0)
        return -limit, limit
    return ordered_pair(step, name, value)


def fill_colour(step: str, value: object) -> Fill:
    """The colour outside the image: black for None, one number for all channels, or three (RGB)."""
    parts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value or 0]
    colours = [int(part) for part in parts if is_number(part) and 0 <= part <= 255]
    if len(parts) not in (1, 3) or len(colours) != len(parts):
        raise ArgumentError(f"{step}: fill is {value!r}. Give one number from 0 to 255, or three (RGB).")
    red, green, blue = (colours * 3)[:3]
    return red, green, blue


def point(step: str, name: str, value: object) -> tuple[float, float] | None:
    """A point of the image as (x, y), or None."""
    if value is None:
        return None
    if not isinstance(value, Sequence) or len(value) != 2 or not all(is_number(part) for part in value):
        raise ArgumentError(f"{step}: {name} is {value!r}. Give (x, y) in pixels, or None for the centre.")
    return float(value[0]), float(value[1])
