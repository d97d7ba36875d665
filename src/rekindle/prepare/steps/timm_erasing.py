"""timm's RandomErasing: one or more rectangles of the normalized tensor, overwritten."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.image_step import more_uniforms
from rekindle.prepare.steps.outcomes import CONTINUOUS, Outcomes
from rekindle.prepare.steps.step import Uniforms, Value, random_between, random_integer
from rekindle.prepare.steps.to_tensor import TensorStep

_ATTEMPTS = 10
_MODES = ("const", "rand", "pixel")


class TimmRandomErasing(TensorStep):
    """Overwrite rectangles of the tensor with probability `probability`.

    Args:
        probability: The probability.
        area: The range of their area in all, as a fraction of the image's.
        aspect: The range of a rectangle's height divided by its width.
        mode: What is written: "const" zeros, "rand" one normal random number a channel, "pixel" one for each
            value.
        count: The range of how many rectangles there are.

    """

    uniforms = 2
    diversity = math.inf

    def __init__(
        self,
        probability: float,
        area: Sequence[float],
        aspect: Sequence[float],
        mode: str,
        count: Sequence[int],
    ) -> None:
        name = "RandomErasing"
        self.probability = parameters.number(name, "probability", probability, 0, 1)
        self.area = parameters.ordered_pair(name, "area", area, 0)
        self.aspect = parameters.ordered_pair(name, "aspect", aspect, 1e-6)
        if mode not in _MODES:
            raise ArgumentError(f"RandomErasing: mode is {mode!r}. Give one of {', '.join(_MODES)}.")
        self.mode = mode
        least, most = (parameters.positive_integer(name, "count", one) for one in count)
        self.count = least, most

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return CONTINUOUS.with_probability(self.probability)

    def apply(self, image: Value, uniforms: Uniforms) -> torch.Tensor:
        if not isinstance(image, torch.Tensor) or image.ndim != 3:
            raise ArgumentError(f"RandomErasing: the image is a {type(image).__name__}, and no tensor.")
        if uniforms[0] > self.probability:
            return image
        result = image.clone()
        channels, height, width = image.shape
        least, most = self.count
        draws = more_uniforms(uniforms)
        count = random_integer(next(draws), least, most + 1)
        low, high = map(math.log, self.aspect)
        for _ in range(count):
            for _ in range(_ATTEMPTS):
                target = random_between(next(draws), *self.area) * height * width / count
                aspect = math.exp(random_between(next(draws), low, high))
                rows, columns = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
                if columns < width and rows < height:
                    top = random_integer(next(draws), 0, height - rows + 1)
                    left = random_integer(next(draws), 0, width - columns + 1)
                    box = result[:, top : top + rows, left : left + columns]
                    box[...] = self._values(channels, rows, columns, next(draws)).to(image)
                    break
        return result

    def _values(self, channels: int, rows: int, columns: int, draw: float) -> torch.Tensor:
        if self.mode == "const":
            return torch.zeros((channels, 1, 1))
        shape = (channels, rows, columns) if self.mode == "pixel" else (channels, 1, 1)
        return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(int(draw * 2**53)))
