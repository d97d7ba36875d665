"""RandAugment and TrivialAugmentWide: operations chosen at random, from one list."""

from __future__ import annotations

from typing import Any

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.geometry import WARP_MODES
from rekindle.prepare.image_step import ImageStep
from rekindle.prepare.parameters import Fill, InterpolationMode
from rekindle.prepare.policy_space import (
    RANDAUGMENT,
    TRIVIALAUGMENT_WIDE,
    distinct_outcomes,
    magnitude,
    perform,
)
from rekindle.prepare.step import Image, Numbers, Step, whole_number

_RANDAUGMENT = tuple(RANDAUGMENT.items())
_TRIVIALAUGMENT = tuple(TRIVIALAUGMENT_WIDE.items())


class RandAugmentLayer(ImageStep):
    """The image after one of RandAugment's fourteen operations: what `RandAugment(1)` does.

    `diversity` counts the operations, 14; that many go either way is not counted.
    """

    uniforms = 2
    diversity = len(_RANDAUGMENT)

    def __init__(
        self, magnitude: int, num_magnitude_bins: int, interpolation: InterpolationMode, fill: Fill
    ) -> None:
        self.magnitude = magnitude
        self.num_magnitude_bins = num_magnitude_bins
        self.interpolation = interpolation
        self.fill = fill

    def choice(self, height: int, width: int, numbers: Numbers) -> tuple[str, float]:
        """The operation and its magnitude for an image of this size."""
        name, strength = _RANDAUGMENT[whole_number(numbers[0], 0, len(_RANDAUGMENT))]
        amount = magnitude(strength, self.magnitude, self.num_magnitude_bins, height, width)
        return name, -amount if strength.signed and numbers[1] >= 0.5 else amount

    def apply(self, image: Image, numbers: Numbers) -> Image:
        name, amount = self.choice(image.shape[0], image.shape[1], numbers)
        return perform(image, name, amount, self.interpolation, self.fill)


class RandAugment(ImageStep):
    """The image after `num_ops` operations, each one of fourteen, all at one magnitude.

    Cubuk et al., "RandAugment: practical automated data augmentation with a reduced search space", 2019. It
    can be cut between any two of its operations; `diversity` is 14 to the power of `num_ops`.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = InterpolationMode.NEAREST,
        fill: Any = None,
    ) -> None:
        self.num_ops = parameters.positive_integer("RandAugment", "num_ops", num_ops)
        self.num_magnitude_bins = _bins("RandAugment", num_magnitude_bins)
        if not isinstance(magnitude, int) or not 0 <= magnitude < self.num_magnitude_bins:
            raise ArgumentError(
                f"RandAugment: magnitude is {magnitude!r}. "
                f"Give a whole number from 0 to {self.num_magnitude_bins - 1} (num_magnitude_bins - 1)."
            )
        self.magnitude = magnitude
        self.interpolation = parameters.interpolation_mode("RandAugment", interpolation, WARP_MODES)
        self.fill = parameters.fill_colour("RandAugment", fill)
        self._layer = RandAugmentLayer(magnitude, self.num_magnitude_bins, self.interpolation, self.fill)
        self.uniforms = self.num_ops * RandAugmentLayer.uniforms
        self.diversity = RandAugmentLayer.diversity**self.num_ops

    @property
    def layers(self) -> tuple[Step, ...]:
        return (self._layer,) * self.num_ops

    def apply(self, image: Image, numbers: Numbers) -> Image:
        for start in range(0, self.uniforms, RandAugmentLayer.uniforms):
            image = self._layer.apply(image, numbers[start : start + RandAugmentLayer.uniforms])
        return image


class TrivialAugmentWide(ImageStep):
    """The image after one of fourteen operations, at a random magnitude.

    Müller and Hutter, "TrivialAugment: tuning-free yet state-of-the-art data augmentation", ICCV 2021.
    `diversity` counts the distinct pairs of operation and magnitude; signs are not counted.
    """

    uniforms = 3

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: Any = InterpolationMode.NEAREST,
        fill: Any = None,
    ) -> None:
        self.num_magnitude_bins = _bins("TrivialAugmentWide", num_magnitude_bins)
        self.interpolation = parameters.interpolation_mode("TrivialAugmentWide", interpolation, WARP_MODES)
        self.fill = parameters.fill_colour("TrivialAugmentWide", fill)
        self.diversity = distinct_outcomes(TRIVIALAUGMENT_WIDE, self.num_magnitude_bins)

    def choice(self, height: int, width: int, numbers: Numbers) -> tuple[str, float]:
        """The operation and its magnitude for an image of this size."""
        name, strength = _TRIVIALAUGMENT[whole_number(numbers[0], 0, len(_TRIVIALAUGMENT))]
        level = whole_number(numbers[1], 0, self.num_magnitude_bins)
        amount = magnitude(strength, level, self.num_magnitude_bins, height, width)
        return name, -amount if strength.signed and numbers[2] >= 0.5 else amount

    def apply(self, image: Image, numbers: Numbers) -> Image:
        name, amount = self.choice(image.shape[0], image.shape[1], numbers)
        return perform(image, name, amount, self.interpolation, self.fill)


def _bins(step: str, value: Any) -> int:
    if parameters.positive_integer(step, "num_magnitude_bins", value) < 2:
        raise ArgumentError(f"{step}: num_magnitude_bins is {value!r}. Give at least 2.")
    return int(value)
