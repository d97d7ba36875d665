"""The operations of timm's RandAugment and AutoAugment, with timm's ranges of magnitudes.

They differ from torchvision's: in their ranges, in noise on the magnitude (`mstd`), in a probability for
each, in what lies outside the image, and in an interpolation that may be random. What moves pixels, and the
blur, is left to Pillow, as timm does; blends are within one grey level of Pillow's, all others are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rekindle.prepare.steps.blur_and_sharpness import adjust_sharpness
from rekindle.prepare.steps.colour import adjust_brightness, adjust_contrast, adjust_saturation
from rekindle.prepare.steps.parameters import Fill
from rekindle.prepare.steps.point_operations import autocontrast, equalize_table, invert, look_up
from rekindle.prepare.steps.step import Image, Uniforms, random_between, random_integer

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

LEVELS = 10.0  # the magnitude of the strongest effect, unless `magnitude_max` allows more
UNIFORMS = 5  # whether, how strong, which sign, which interpolation, and one for a blur of random radius

_VALUES = np.arange(256)


@dataclass(frozen=True)
class TimmOperation:
    """One operation with its probability and magnitude, as timm's `AugmentOp` has them.

    Attributes:
        magnitude_std: The standard deviation of the noise on the magnitude; infinity draws it uniformly from
            0 to `magnitude`.
        magnitude_max: The largest magnitude after noise; None is 10.
        fill: The colour outside the image.
        resample: Pillow's numbers of the interpolations that are chosen from.
        translate: The largest translation in pixels, and as a share of the image.

    """

    name: str
    prob: float
    magnitude: float
    magnitude_std: float = 0.0
    magnitude_max: float | None = None
    fill: Fill = (128, 128, 128)
    resample: tuple[int, ...] = (2, 3)
    translate: tuple[float, float] = (250.0, 0.45)

    @property
    def is_continuous(self) -> bool:
        """Whether hardly any outcome comes twice."""
        has_noise = self.magnitude_std > 0 and ARGUMENTS[self.name] is not None
        return has_noise or self.name == "GaussianBlurRand"

    def level(self, uniform: float) -> float:
        """The magnitude after noise."""
        drawn = self.magnitude
        if self.magnitude_std == math.inf:
            drawn = random_between(uniform, 0, self.magnitude)
        elif self.magnitude_std > 0:
            drawn = NormalDist(self.magnitude, self.magnitude_std).inv_cdf(max(uniform, 2.0**-54))
        return max(0.0, min(drawn, self.magnitude_max or LEVELS))

    def argument(self, level: float, negated: bool) -> float | None:
        """What the operation is called with; None if it has no magnitude."""
        to_argument = ARGUMENTS[self.name]
        return None if to_argument is None else to_argument(level, -1 if negated else 1, self.translate)

    def apply(self, image: Image, uniforms: Uniforms) -> Image:
        """The image after the operation, given `UNIFORMS` random numbers."""
        chance, noise, sign, mode, radius = uniforms.tolist()
        if chance > self.prob:
            return image
        argument = self.argument(self.level(noise), sign > 0.5)
        if self.name == "GaussianBlurRand":
            assert argument is not None
            argument = random_between(radius, 0.1, 2.0 * argument)
        resample = self.resample[random_integer(mode, 0, len(self.resample))]
        return perform(image, self.name, argument, resample, self.fill)


# From a magnitude, a sign and the largest translations to what an operation is called with.
_ToArgument = Callable[[float, int, tuple[float, float]], float]


def _enhance(level: float, sign: int, _: object) -> float:
    return (level / LEVELS) * 1.8 + 0.1


def _enhance_increasing(level: float, sign: int, _: object) -> float:
    return max(0.1, 1.0 + sign * ((level / LEVELS) * 0.9))


def _bits(level: float, sign: int, _: object) -> int:
    return int((level / LEVELS) * 4)


def _threshold(level: float, sign: int, _: object) -> int:
    return min(256, int((level / LEVELS) * 256))


def _between(low: float, high: float) -> _ToArgument:
    return lambda level, _, __: max(low, min(high, low + (high - low) * (level / LEVELS)))


def _shear(level: float, sign: int, _: object) -> float:
    return sign * ((level / LEVELS) * 0.3)


ARGUMENTS: dict[str, _ToArgument | None] = {
    "AutoContrast": None,
    "Equalize": None,
    "Invert": None,
    "Rotate": lambda level, sign, _: sign * ((level / LEVELS) * 30.0),
    "Posterize": _bits,
    "PosterizeIncreasing": lambda level, sign, _: 4 - _bits(level, sign, _),
    "PosterizeOriginal": lambda level, sign, _: _bits(level, sign, _) + 4,
    "Solarize": _threshold,
    "SolarizeIncreasing": lambda level, sign, _: 256 - _threshold(level, sign, _),
    "SolarizeAdd": lambda level, _, __: min(128, int((level / LEVELS) * 110)),
    **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), _enhance),
    **{f"{name}Increasing": _enhance_increasing for name in ("Color", "Contrast", "Brightness", "Sharpness")},
    "ShearX": _shear,
    "ShearY": _shear,
    "TranslateX": lambda level, sign, most: sign * ((level / LEVELS) * most[0]),
    "TranslateY": lambda level, sign, most: sign * ((level / LEVELS) * most[0]),
    "TranslateXRel": lambda level, sign, most: sign * ((level / LEVELS) * most[1]),
    "TranslateYRel": lambda level, sign, most: sign * ((level / LEVELS) * most[1]),
    "Desaturate": _between(0.5, 1.0),
    "GaussianBlur": _between(0.1, 2.0),
    "GaussianBlurRand": _between(0.0, 1.0),
}


def perform(image: Image, name: str, argument: float | None, resample: int, fill: Fill) -> Image:
    """The image after the operation of this name, called with this argument."""
    if argument is None:
        return _WITHOUT_MAGNITUDE[name](image)
    kind = name.removesuffix("Increasing")
    if kind in _ON_PIXELS:
        return _ON_PIXELS[kind](image, argument)
    return np.asarray(_BY_PILLOW[kind](_pillow(image), argument, {"resample": resample, "fillcolor": fill}))


_WITHOUT_MAGNITUDE: dict[str, Callable[[Image], Image]] = {
    "AutoContrast": autocontrast,
    "Equalize": lambda image: look_up(image, equalize_table(image)),
    "Invert": invert,
}


def _by_value(table: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.clip(table, 0, 255).astype(np.uint8)


def _posterize(image: Image, bits: float) -> Image:
    keep = int(bits)
    return image if keep >= 8 else look_up(image, _by_value(_VALUES & ~(2 ** (8 - keep) - 1)))


def _solarize(image: Image, threshold: float) -> Image:
    return look_up(image, _by_value(np.where(threshold > _VALUES, _VALUES, 255 - _VALUES)))


def _solarize_add(image: Image, added: float) -> Image:
    return look_up(image, _by_value(np.where(_VALUES < 128, _VALUES + int(added), _VALUES)))


_ON_PIXELS: dict[str, Callable[[Image, float], Image]] = {
    "Posterize": _posterize,
    "PosterizeOriginal": _posterize,
    "Solarize": _solarize,
    "SolarizeAdd": _solarize_add,
    "Color": adjust_saturation,
    "Contrast": adjust_contrast,
    "Brightness": adjust_brightness,
    "Sharpness": adjust_sharpness,
    "Desaturate": lambda image, amount: adjust_saturation(image, min(1.0, max(0.0, 1.0 - amount))),
}


def _pillow(image: Image) -> PillowImage:
    from PIL import Image as pillow  # noqa: N813

    return pillow.fromarray(np.ascontiguousarray(image))


def _affine(image: PillowImage, matrix: tuple[float, ...], options: dict[str, Any]) -> PillowImage:
    from PIL.Image import Transform

    return image.transform(image.size, Transform.AFFINE, matrix, **options)


def _blur(image: PillowImage, radius: float, _: dict[str, Any]) -> PillowImage:
    from PIL.ImageFilter import GaussianBlur

    return image.filter(GaussianBlur(radius=radius))


_BY_PILLOW: dict[str, Callable[[PillowImage, float, dict[str, Any]], PillowImage]] = {
    "Rotate": lambda image, degrees, options: image.rotate(degrees, **options),
    "ShearX": lambda image, factor, options: _affine(image, (1, factor, 0, 0, 1, 0), options),
    "ShearY": lambda image, factor, options: _affine(image, (1, 0, 0, factor, 1, 0), options),
    "TranslateX": lambda image, pixels, options: _affine(image, (1, 0, pixels, 0, 1, 0), options),
    "TranslateY": lambda image, pixels, options: _affine(image, (1, 0, 0, 0, 1, pixels), options),
    "TranslateXRel": lambda image, share, options: _affine(
        image, (1, 0, share * image.size[0], 0, 1, 0), options
    ),
    "TranslateYRel": lambda image, share, options: _affine(
        image, (1, 0, 0, 0, 1, share * image.size[1]), options
    ),
    "GaussianBlur": _blur,
    "GaussianBlurRand": _blur,
}
