"""AutoAugment: pairs of operations found by a search (Cubuk et al., "AutoAugment", CVPR 2019)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.augmentation_ops import AUTOAUGMENT, compile_operations, magnitude, perform
from rekindle.prepare.steps.geometry import WARP_MODES
from rekindle.prepare.steps.image_step import ImageStep
from rekindle.prepare.steps.outcomes import Outcomes, of_probabilities
from rekindle.prepare.steps.parameters import FillArgument, InterpolationArgument, InterpolationMode
from rekindle.prepare.steps.step import Image, Uniforms, random_integer

_BINS = 10

Operation = tuple[str, float, int | None]  # name, probability, level of magnitude


class AutoAugmentPolicy(Enum):
    """The dataset for which the pairs were found."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


class AutoAugment(ImageStep):
    """Apply one of 25 pairs of operations, each operation with its own probability.

    `diversity` counts the distinct sequences of operations and magnitudes, without signs.
    """

    uniforms = 5

    def __init__(
        self,
        policy: Enum | str = AutoAugmentPolicy.IMAGENET,
        interpolation: InterpolationArgument = InterpolationMode.NEAREST,
        fill: FillArgument = None,
    ) -> None:
        name = policy.value if isinstance(policy, Enum) else policy
        if name not in {member.value for member in AutoAugmentPolicy}:
            raise ArgumentError(f'AutoAugment: policy is {policy!r}. Give "imagenet", "cifar10" or "svhn".')
        self.policy = AutoAugmentPolicy(name)
        self.interpolation = parameters.interpolation_mode("AutoAugment", interpolation, WARP_MODES)
        self.fill = parameters.fill_colour("AutoAugment", fill)
        self.diversity = len({sequence for pair in POLICIES[self.policy] for sequence, _ in _sequences(pair)})

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        pairs = POLICIES[self.policy]
        probable: defaultdict[tuple[tuple[str, int | None], ...], float] = defaultdict(float)
        for pair in pairs:
            for sequence, probability in _sequences(pair):
                probable[sequence] += probability / len(pairs)
        return of_probabilities(probable.values())

    def choice(self, height: int, width: int, uniforms: Uniforms) -> list[tuple[str, float]]:
        """The operations and their signed magnitudes for an image of this size."""
        pairs = POLICIES[self.policy]
        chosen = []
        for turn, (name, probability, level) in enumerate(pairs[random_integer(uniforms[0], 0, len(pairs))]):
            if uniforms[1 + turn] < probability:
                strength = AUTOAUGMENT[name]
                amount = magnitude(strength, level or 0, _BINS, height, width)
                chosen.append((name, -amount if strength.signed and uniforms[3 + turn] < 0.5 else amount))
        return chosen

    def compile_kernels(self) -> None:
        compile_operations()

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        for name, amount in self.choice(image.shape[0], image.shape[1], uniforms):
            image = perform(image, name, amount, self.interpolation, self.fill)
        return image


def _sequences(
    pair: tuple[Operation, Operation],
) -> Iterator[tuple[tuple[tuple[str, int | None], ...], float]]:
    """The sequences that a pair can result in, as each operation is applied or not, and their probability."""
    for applied in ((False, False), (False, True), (True, False), (True, True)):
        outcome = list(zip(pair, applied, strict=True))
        probability = math.prod(p if done else 1 - p for (_, p, _), done in outcome)
        if probability > 0:
            yield tuple((name, level) for (name, _, level), done in outcome if done), probability


POLICIES: dict[AutoAugmentPolicy, tuple[tuple[Operation, Operation], ...]] = {
    AutoAugmentPolicy.IMAGENET: (
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, None), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, None)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, None)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, None), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, None)),
        (("Equalize", 0.0, None), ("Equalize", 0.8, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, None)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, None)),
        (("Color", 0.4, 0), ("Equalize", 0.6, None)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
    ),
    AutoAugmentPolicy.CIFAR10: (
        (("Invert", 0.1, None), ("Contrast", 0.2, 6)),
        (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
        (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
        (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.5, None), ("Equalize", 0.9, None)),
        (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
        (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
        (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
        (("Equalize", 0.6, None), ("Equalize", 0.5, None)),
        (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
        (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
        (("Equalize", 0.3, None), ("AutoContrast", 0.4, None)),
        (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
        (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
        (("Solarize", 0.5, 2), ("Invert", 0.0, None)),
        (("Equalize", 0.2, None), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.2, None), ("Equalize", 0.6, None)),
        (("Color", 0.9, 9), ("Equalize", 0.6, None)),
        (("AutoContrast", 0.8, None), ("Solarize", 0.2, 8)),
        (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
        (("Solarize", 0.4, 5), ("AutoContrast", 0.9, None)),
        (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.9, None), ("Solarize", 0.8, 3)),
        (("Equalize", 0.8, None), ("Invert", 0.1, None)),
        (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, None)),
    ),
    AutoAugmentPolicy.SVHN: (
        (("ShearX", 0.9, 4), ("Invert", 0.2, None)),
        (("ShearY", 0.9, 8), ("Invert", 0.7, None)),
        (("Equalize", 0.6, None), ("Solarize", 0.6, 6)),
        (("Invert", 0.9, None), ("Equalize", 0.6, None)),
        (("Equalize", 0.6, None), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("AutoContrast", 0.8, None)),
        (("ShearY", 0.9, 8), ("Invert", 0.4, None)),
        (("ShearY", 0.9, 5), ("Solarize", 0.2, 6)),
        (("Invert", 0.9, None), ("AutoContrast", 0.8, None)),
        (("Equalize", 0.6, None), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("Solarize", 0.3, 3)),
        (("ShearY", 0.8, 8), ("Invert", 0.7, None)),
        (("Equalize", 0.9, None), ("TranslateY", 0.6, 6)),
        (("Invert", 0.9, None), ("Equalize", 0.6, None)),
        (("Contrast", 0.3, 3), ("Rotate", 0.8, 4)),
        (("Invert", 0.8, None), ("TranslateY", 0.0, 2)),
        (("ShearY", 0.7, 6), ("Solarize", 0.4, 8)),
        (("Invert", 0.6, None), ("Rotate", 0.8, 4)),
        (("ShearY", 0.3, 7), ("TranslateX", 0.9, 3)),
        (("ShearX", 0.1, 6), ("Invert", 0.6, None)),
        (("Solarize", 0.7, 2), ("TranslateY", 0.6, 7)),
        (("ShearY", 0.8, 4), ("Invert", 0.8, None)),
        (("ShearX", 0.7, 9), ("TranslateY", 0.8, 3)),
        (("ShearY", 0.8, 5), ("AutoContrast", 0.7, None)),
        (("ShearX", 0.7, 2), ("Invert", 0.1, None)),
    ),
}
