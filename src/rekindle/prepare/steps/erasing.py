"""RandomErasing: overwrites a rectangle of the tensor (Zhong et al., "Random Erasing", AAAI 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.image_step import more_uniforms
from rekindle.prepare.steps.outcomes import CONTINUOUS, Outcomes
from rekindle.prepare.steps.step import Uniforms, Value, random_between, random_integer
from rekindle.prepare.steps.to_tensor import TensorStep

_ATTEMPTS = 10


class RandomErasing(TensorStep):
    """Overwrite a random rectangle of the tensor with probability `p`.

    Args:
        p: The probability.
        scale: The range of the rectangle's area as a fraction of the image's.
        ratio: The range of the rectangle's height divided by its width.
        value: One number, one for each channel, or "random" for noise.
        inplace: Whether the tensor itself is overwritten.

    """

    uniforms = 5
    diversity = math.inf

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] = 0,
        inplace: bool = False,
    ) -> None:
        self.p = parameters.probability("RandomErasing", p)
        self.scale = parameters.ordered_pair("RandomErasing", "scale", scale, 0, 1)
        self.ratio = parameters.ordered_pair("RandomErasing", "ratio", ratio, 1e-6)
        self.value = value
        self.inplace = inplace
        _values(value)  # ArgumentError now, if it is none
        if self.p == 0:
            self.diversity = 1

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return CONTINUOUS.with_probability(self.p)

    def box(self, height: int, width: int, uniforms: Uniforms) -> tuple[int, int, int, int] | None:
        """The rectangle erased in an image of this size (top, left, height, width); None if none is."""
        chance, area, shape, offset_y, offset_x = uniforms.tolist()
        if chance >= self.p:
            return None
        retries = None
        for _ in range(_ATTEMPTS):
            target = height * width * random_between(area, *self.scale)
            ratio = math.exp(random_between(shape, *map(math.log, self.ratio)))
            box_height, box_width = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
            if box_height < height and box_width < width:
                top = random_integer(offset_y, 0, height - box_height + 1)
                left = random_integer(offset_x, 0, width - box_width + 1)
                return top, left, box_height, box_width
            retries = retries or more_uniforms(uniforms)
            area, shape = islice(retries, 2)
        return None

    def replacement(self, shape: tuple[int, int, int], uniforms: Uniforms) -> torch.Tensor:
        """The values for a rectangle of this shape (channels, height, width); they broadcast to it."""
        values = _values(self.value)
        if values is not None:
            if len(values) not in (1, shape[0]):
                raise ArgumentError(
                    f"RandomErasing: value has {len(values)} numbers and the image has "
                    f"{shape[0]} channels. Give one number, or one for each channel."
                )
            return torch.tensor(values).view(-1, 1, 1)
        seed = int(next(more_uniforms(uniforms[::-1])) * 2**53)
        return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))

    def apply(self, image: Value, uniforms: Uniforms) -> torch.Tensor:
        if not isinstance(image, torch.Tensor) or image.ndim != 3:
            raise ArgumentError(
                f"RandomErasing: the image is a {type(image).__name__}. Put ToTensor() before RandomErasing."
            )
        channels, height, width = image.shape
        box = self.box(height, width, uniforms)
        if box is None:
            return image
        top, left, box_height, box_width = box
        result = image if self.inplace else image.clone()
        values = self.replacement((channels, box_height, box_width), uniforms).to(image)
        result[:, top : top + box_height, left : left + box_width] = values
        return result


def _values(value: object) -> tuple[float, ...] | None:
    """The values to write, or None for noise."""
    if value == "random":
        return None
    parts = list(value) if isinstance(value, Sequence) else [value]
    values = tuple(float(part) for part in parts if parameters.is_number(part))
    if not parts or len(values) != len(parts):
        raise ArgumentError(
            f'RandomErasing: value is {value!r}. Give a number, one number for each channel, or "random".'
        )
    return values
