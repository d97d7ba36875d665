"""RandAugment and TrivialAugmentWide: operations chosen at random from one list."""

from __future__ import annotations

from collections import Counter

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.augmentation_ops import (
    RANDAUGMENT,
    TRIVIALAUGMENT_WIDE,
    compile_operations,
    distinct_outcomes,
    magnitude,
    magnitudes,
    perform,
)
from rekindle.prepare.steps.geometry import WARP_MODES
from rekindle.prepare.steps.image_step import ImageStep
from rekindle.prepare.steps.outcomes import Outcomes, of_probabilities
from rekindle.prepare.steps.parameters import Fill, FillArgument, InterpolationArgument, InterpolationMode
from rekindle.prepare.steps.step import Image, Step, Uniforms, is_ours, random_integer

_RANDAUGMENT = tuple(RANDAUGMENT.items())
_TRIVIALAUGMENT = tuple(TRIVIALAUGMENT_WIDE.items())


class RandAugmentLayer(ImageStep):
    """Apply one of RandAugment's fourteen operations: what `RandAugment(1)` does.

    `diversity` counts the operations, 14; the sign of a magnitude is not counted.
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

    def choice(self, height: int, width: int, uniforms: Uniforms) -> tuple[str, float]:
        """The operation and its signed magnitude for an image of this size."""
        name, strength = _RANDAUGMENT[random_integer(uniforms[0], 0, len(_RANDAUGMENT))]
        amount = magnitude(strength, self.magnitude, self.num_magnitude_bins, height, width)
        return name, -amount if strength.signed and uniforms[1] >= 0.5 else amount

    def compile_kernels(self) -> None:
        compile_operations()

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        name, amount = self.choice(image.shape[0], image.shape[1], uniforms)
        return perform(image, name, amount, self.interpolation, self.fill)


class RandAugment(ImageStep):
    """Apply `num_ops` operations, each chosen from fourteen, all at one magnitude.

    Cubuk et al., "RandAugment: practical automated data augmentation with a reduced search space", 2019. It
    can be split between any two of its operations; `diversity` is 14 to the power of `num_ops`.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: InterpolationArgument = InterpolationMode.NEAREST,
        fill: FillArgument = None,
    ) -> None:
        self.num_ops = parameters.positive_integer("RandAugment", "num_ops", num_ops)
        self.num_magnitude_bins = _bins("RandAugment", num_magnitude_bins)
        if not isinstance(magnitude, int) or not 0 <= magnitude < self.num_magnitude_bins:
            raise ArgumentError(
                f"RandAugment: magnitude is {magnitude!r}. "
                f"Give an integer from 0 to {self.num_magnitude_bins - 1} (num_magnitude_bins - 1)."
            )
        self.magnitude = magnitude
        self.interpolation = parameters.interpolation_mode("RandAugment", interpolation, WARP_MODES)
        self.fill = parameters.fill_colour("RandAugment", fill)

    @property
    def uniforms(self) -> int:  # type: ignore[override]
        return self.num_ops * RandAugmentLayer.uniforms

    @property
    def diversity(self) -> float:  # type: ignore[override]
        outcomes: int = RandAugmentLayer.diversity**self.num_ops
        return outcomes

    @property
    def layers(self) -> tuple[Step, ...]:
        return (self._layer(),) * self.num_ops if is_ours(self) else (self,)

    def _layer(self) -> RandAugmentLayer:
        """One of the operations, with the parameters as they are now."""
        return RandAugmentLayer(self.magnitude, self.num_magnitude_bins, self.interpolation, self.fill)

    def compile_kernels(self) -> None:
        compile_operations()

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        layer = self._layer()
        for start in range(0, self.uniforms, RandAugmentLayer.uniforms):
            image = layer.apply(image, uniforms[start : start + RandAugmentLayer.uniforms])
        return image


class TrivialAugmentWide(ImageStep):
    """Apply one of fourteen operations at a random magnitude.

    Müller and Hutter, "TrivialAugment: tuning-free yet state-of-the-art data augmentation", ICCV 2021.
    `diversity` counts the distinct pairs of operation and magnitude, without signs.
    """

    uniforms = 3

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: InterpolationArgument = InterpolationMode.NEAREST,
        fill: FillArgument = None,
    ) -> None:
        self.num_magnitude_bins = _bins("TrivialAugmentWide", num_magnitude_bins)
        self.interpolation = parameters.interpolation_mode("TrivialAugmentWide", interpolation, WARP_MODES)
        self.fill = parameters.fill_colour("TrivialAugmentWide", fill)
        self.diversity = distinct_outcomes(TRIVIALAUGMENT_WIDE, self.num_magnitude_bins)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        bins, operations = self.num_magnitude_bins, len(_TRIVIALAUGMENT)
        levels = [Counter(magnitudes(strength, bins)) for _, strength in _TRIVIALAUGMENT]
        return of_probabilities(n / bins / operations for counted in levels for n in counted.values())

    def choice(self, height: int, width: int, uniforms: Uniforms) -> tuple[str, float]:
        """The operation and its signed magnitude for an image of this size."""
        name, strength = _TRIVIALAUGMENT[random_integer(uniforms[0], 0, len(_TRIVIALAUGMENT))]
        level = random_integer(uniforms[1], 0, self.num_magnitude_bins)
        amount = magnitude(strength, level, self.num_magnitude_bins, height, width)
        return name, -amount if strength.signed and uniforms[2] >= 0.5 else amount

    def compile_kernels(self) -> None:
        compile_operations()

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        name, amount = self.choice(image.shape[0], image.shape[1], uniforms)
        return perform(image, name, amount, self.interpolation, self.fill)


def _bins(step: str, value: object) -> int:
    bins = parameters.positive_integer(step, "num_magnitude_bins", value)
    if bins < 2:
        raise ArgumentError(f"{step}: num_magnitude_bins is {value!r}. Give at least 2.")
    return bins
