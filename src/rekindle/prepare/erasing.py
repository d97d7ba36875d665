"""RandomErasing: a rectangle of the tensor overwritten (Zhong et al., "Random Erasing", AAAI 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.image_step import further_numbers
from rekindle.prepare.step import Numbers, between, whole_number
from rekindle.prepare.tensors import TensorStep

_TRIES = 10


class RandomErasing(TensorStep):
    """The tensor with a rectangle overwritten, with probability `p`.

    `scale` is the range of the rectangle's share of the image, `ratio` that of its height to its width;
    `value` is one number, one for each channel, or "random" for noise.
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
        self._values = _values(value)
        self._log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        if self.p == 0:
            self.diversity = 1

    def box(self, height: int, width: int, numbers: Numbers) -> tuple[int, int, int, int] | None:
        """What is erased of an image of this size: (top, left, height, width), or None for nothing."""
        chance, area, shape, down, along = numbers.tolist()
        if chance >= self.p:
            return None
        retries = None
        for _ in range(_TRIES):
            target = height * width * between(area, *self.scale)
            ratio = math.exp(between(shape, *self._log_ratio))
            box_height, box_width = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
            if box_height < height and box_width < width:
                top = whole_number(down, 0, height - box_height + 1)
                left = whole_number(along, 0, width - box_width + 1)
                return top, left, box_height, box_width
            retries = retries or further_numbers(numbers)
            area, shape = islice(retries, 2)
        return None

    def replacement(self, shape: tuple[int, int, int], numbers: Numbers) -> torch.Tensor:
        """What is written into the box of this shape (channels, height, width); broadcasts."""
        if self._values is not None:
            if len(self._values) not in (1, shape[0]):
                raise ArgumentError(
                    f"RandomErasing: value has {len(self._values)} numbers and the image has "
                    f"{shape[0]} channels. Give one number, or one for each channel."
                )
            return torch.tensor(self._values).view(-1, 1, 1)
        seed = int(next(further_numbers(numbers[::-1])) * 2**53)
        return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))

    def apply(self, image: Any, numbers: Numbers) -> torch.Tensor:
        if not isinstance(image, torch.Tensor) or image.ndim != 3:
            raise ArgumentError(
                f"RandomErasing: the image is a {type(image).__name__}. Put ToTensor() before RandomErasing."
            )
        channels, height, width = image.shape
        box = self.box(height, width, numbers)
        if box is None:
            return image
        top, left, box_height, box_width = box
        result = image if self.inplace else image.clone()
        values = self.replacement((channels, box_height, box_width), numbers).to(image)
        result[:, top : top + box_height, left : left + box_width] = values
        return result


def _values(value: Any) -> tuple[float, ...] | None:
    """The numbers to write, or None for noise."""
    if value == "random":
        return None
    values = list(value) if isinstance(value, Sequence) else [value]
    if not values or not all(parameters.is_number(part) for part in values):
        raise ArgumentError(
            f'RandomErasing: value is {value!r}. Give a number, one number for each channel, or "random".'
        )
    return tuple(float(part) for part in values)
