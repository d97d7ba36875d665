"""timm's crops and resizes: those of create_transform that torchvision does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.antialiased_resize import RESIZE_MODES
from rekindle.prepare.steps.crop import RandomResizedCrop
from rekindle.prepare.steps.crop_window import PADDING_MODES, Window, WindowStep
from rekindle.prepare.steps.outcomes import CONTINUOUS, Outcomes
from rekindle.prepare.steps.parameters import FillArgument, InterpolationArgument, InterpolationMode
from rekindle.prepare.steps.step import Uniforms, random_between, random_integer


class _RandomInterpolation(WindowStep):
    """A crop or resize whose interpolation is chosen at random; the last random number chooses it."""

    interpolations: tuple[InterpolationMode, ...]

    def interpolation_of(self, uniforms: Uniforms) -> InterpolationMode:
        if len(self.interpolations) == 1:
            return self.interpolations[0]
        return self.interpolations[random_integer(uniforms[-1], 0, len(self.interpolations))]


class TimmRandomResizedCrop(_RandomInterpolation):
    """timm's RandomResizedCropAndInterpolation: torchvision's box, an interpolation that may be random."""

    uniforms = 5
    diversity = math.inf
    size: tuple[int, int]

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float],
        ratio: Sequence[float],
        interpolations: Sequence[InterpolationArgument],
    ) -> None:
        self._crop = RandomResizedCrop(size, scale, ratio)
        self.size, self.scale, self.ratio = self._crop.size, self._crop.scale, self._crop.ratio
        self.interpolations = _modes("RandomResizedCropAndInterpolation", interpolations)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return self._crop.outcomes(size)

    def window(self, height: int, width: int, uniforms: Uniforms) -> Window:
        return self._crop.window(height, width, uniforms[:4])


class ResizeKeepRatio(_RandomInterpolation):
    """timm's: resize so that the shorter edge fits `size` (`longest=0`), or the longer one (1), or between.

    With probabilities, the scale and the aspect ratio are changed by random factors.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        longest: float,
        interpolations: Sequence[InterpolationArgument],
        random_scale_prob: float = 0.0,
        random_scale_range: Sequence[float] = (0.85, 1.05),
        random_scale_area: bool = False,
        random_aspect_prob: float = 0.0,
        random_aspect_range: Sequence[float] = (0.9, 1.11),
    ) -> None:
        name = "ResizeKeepRatio"
        self.target = parameters.size_pair(name, size)
        self.longest = parameters.number(name, "longest", longest)
        self.interpolations = _modes(name, interpolations)
        self.random_scale_prob = parameters.number(name, "random_scale_prob", random_scale_prob, 0, 1)
        self.random_scale_range = tuple(map(float, random_scale_range))
        self.random_scale_area = bool(random_scale_area)
        self.random_aspect_prob = parameters.number(name, "random_aspect_prob", random_aspect_prob, 0, 1)
        self.random_aspect_range = tuple(map(float, random_aspect_range))
        is_random = self.random_scale_prob > 0 or self.random_aspect_prob > 0
        self.uniforms = 5 if is_random else int(len(self.interpolations) > 1)
        self.diversity = math.inf if is_random else len(self.interpolations)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        if not math.isinf(self.diversity):
            return super().outcomes(size)
        scaled = CONTINUOUS.with_probability(self.random_scale_prob)
        return scaled.then(CONTINUOUS.with_probability(self.random_aspect_prob))

    def window(self, height: int, width: int, uniforms: Uniforms) -> Window:
        by_height, by_width = height / self.target[0], width / self.target[1]
        ratio = max(by_height, by_width) * self.longest + min(by_height, by_width) * (1.0 - self.longest)
        factor_y = factor_x = 1.0
        if self.random_scale_prob > 0 and uniforms[0] < self.random_scale_prob:
            factor = random_between(uniforms[1], *self.random_scale_range)
            factor_y = factor_x = 1.0 / math.sqrt(factor) if self.random_scale_area else factor
        if self.random_aspect_prob > 0 and uniforms[2] < self.random_aspect_prob:
            low, high = map(math.log, self.random_aspect_range)
            aspect = math.sqrt(math.exp(random_between(uniforms[3], low, high)))
            factor_y, factor_x = factor_y / aspect, factor_x * aspect
        size = round(height * factor_y / ratio), round(width * factor_x / ratio)
        if min(size) < 1:
            raise ArgumentError(f"ResizeKeepRatio: nothing is left of an image of {height} × {width}.")
        return Window(0, 0, height, width, *size)


class CenterCropOrPad(WindowStep):
    """timm's: crop the centre of the image, or add a border where the crop is larger."""

    size: tuple[int, int]

    def __init__(
        self, size: int | Sequence[int], fill: FillArgument = 0, padding_mode: str = "constant"
    ) -> None:
        self.size = parameters.size_pair("CenterCropOrPad", size)
        self.fill = parameters.fill_colour("CenterCropOrPad", fill)
        self.padding_mode = _padding_mode("CenterCropOrPad", padding_mode)

    def window(self, height: int, width: int, uniforms: Uniforms | None = None) -> Window:
        return Window(_centred(height, self.size[0]), _centred(width, self.size[1]), *self.size, *self.size)


class RandomCropOrPad(WindowStep):
    """timm's: crop a box at a random offset, or put the image at a random place in a larger one."""

    uniforms = 2
    diversity = math.inf
    size: tuple[int, int]

    def __init__(
        self, size: int | Sequence[int], fill: FillArgument = 0, padding_mode: str = "constant"
    ) -> None:
        self.size = parameters.size_pair("RandomCropOrPad", size)
        self.fill = parameters.fill_colour("RandomCropOrPad", fill)
        self.padding_mode = _padding_mode("RandomCropOrPad", padding_mode)

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        if size is None:
            return CONTINUOUS
        places = (abs(size[0] - self.size[0]) + 1) * (abs(size[1] - self.size[1]) + 1)
        return Outcomes(((1 / places, float(places)),))

    def window(self, height: int, width: int, uniforms: Uniforms) -> Window:
        spare = height - self.size[0], width - self.size[1]
        top, left = (
            int(math.copysign(random_integer(u, 0, abs(one) + 1), one))
            for u, one in zip(uniforms[:2].tolist(), spare, strict=True)
        )
        return Window(top, left, *self.size, *self.size)


class TrimBorder(WindowStep):
    """timm's: remove a border of `border_size` pixels."""

    def __init__(self, border_size: int) -> None:
        self.border_size = parameters.positive_integer("TrimBorder", "border_size", border_size)

    def window(self, height: int, width: int, uniforms: Uniforms | None = None) -> Window:
        size = height - 2 * self.border_size, width - 2 * self.border_size
        if min(size) < 1:
            raise ArgumentError(
                f"TrimBorder: a border of {self.border_size} pixels is all of an image of {height} × {width}."
            )
        return Window(self.border_size, self.border_size, *size, *size)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if size is None else self.window(*size).size


def _centred(old: int, new: int) -> int:
    """The offset of a length of `new` centred in `old`; negative if it is the longer one."""
    return -((new - old) // 2) if new > old else round((old - new) / 2.0)


def _modes(step: str, modes: Sequence[InterpolationArgument]) -> tuple[InterpolationMode, ...]:
    return tuple(parameters.interpolation_mode(step, mode, RESIZE_MODES) for mode in modes)


def _padding_mode(step: str, mode: str) -> str:
    if mode not in PADDING_MODES:
        raise ArgumentError(
            f"{step}: padding_mode is {mode!r}. Give one of {', '.join(map(repr, PADDING_MODES))}."
        )
    return mode
