"""From bytes to numbers: ToTensor, PILToTensor, ConvertImageDtype, Normalize.

From here on an image is a tensor of channels × height × width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.image_step import as_image
from rekindle.prepare.step import Image, Numbers, Step

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8)


class Conversion(Step):
    """A step from an image of bytes to a tensor: steps on images come before it, on tensors after it."""

    keeps_size = True
    dtype: torch.dtype

    def apply(self, image: Image, numbers: Numbers) -> torch.Tensor:
        return convert(_channels_first(image), self.dtype)

    def __call__(self, image: Any) -> torch.Tensor:
        converted = super().__call__(as_image(image, type(self).__name__))
        assert isinstance(converted, torch.Tensor)
        return converted


class TensorStep(Step):
    """A step on tensors of channels × height × width."""

    keeps_size = True


class ToTensor(Conversion):
    """The image as a float32 tensor of channels × height × width, from 0 to 1."""

    dtype = torch.float32


class PILToTensor(Conversion):
    """The image as a tensor of bytes, channels × height × width."""

    dtype = torch.uint8


class ConvertImageDtype(Conversion):
    """The image as a tensor of this type; floats go from 0 to 1. Takes images and tensors."""

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in _DTYPES:
            names = ", ".join(map(str, _DTYPES))
            raise ArgumentError(f"ConvertImageDtype: dtype is {dtype!r}. Give one of {names}.")
        self.dtype = dtype

    def apply(self, image: Any, numbers: Numbers) -> torch.Tensor:
        tensor = image if isinstance(image, torch.Tensor) else _channels_first(image)
        return convert(tensor, self.dtype)

    def __call__(self, image: Any) -> torch.Tensor:
        if isinstance(image, torch.Tensor):
            return convert(image, self.dtype)
        return super().__call__(image)


class Normalize(TensorStep):
    """The tensor less `mean`, divided by `std`, for each channel. Also for batches, on any device."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean = _per_channel("mean", mean)
        self.std = _per_channel("std", std)
        self.inplace = inplace
        if 0 in self.std:
            raise ArgumentError(f"Normalize: std is {std!r}. Give numbers that are not 0: they divide.")
        if len(self.mean) != len(self.std) and 1 not in (len(self.mean), len(self.std)):
            raise ArgumentError(
                f"Normalize: mean has {len(self.mean)} numbers and std {len(self.std)}. "
                "Give one for each channel."
            )

    def apply(self, image: Any, numbers: Numbers) -> torch.Tensor:
        if not isinstance(image, torch.Tensor) or not image.is_floating_point():
            kind = image.dtype if isinstance(image, torch.Tensor) else type(image).__name__
            raise ArgumentError(f"Normalize: the image is {kind}. Put ToTensor() before Normalize.")
        mean = torch.tensor(self.mean, dtype=image.dtype, device=image.device).view(-1, 1, 1)
        std = torch.tensor(self.std, dtype=image.dtype, device=image.device).view(-1, 1, 1)
        return image.sub_(mean).div_(std) if self.inplace else image.sub(mean).div_(std)


def convert(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another type, with bytes from 0 to 255 as floats from 0 to 1 and the other way round."""
    if tensor.dtype == dtype:
        return tensor
    if dtype.is_floating_point:
        floats = tensor.to(dtype)
        return floats if tensor.is_floating_point() else floats.div_(255)
    return tensor.mul(256 - 1e-3).to(dtype)  # as torchvision: 1.0 becomes 255, equal shares for all values


def _channels_first(image: Image) -> torch.Tensor:
    # torch warns of arrays that cannot be written to.
    copied = np.array(np.transpose(image, (2, 0, 1)), order="C")
    return torch.from_numpy(copied)


def _per_channel(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, torch.Tensor | np.ndarray):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ArgumentError(
            f"Normalize: {name} is {values!r}. Give a sequence with a number for each channel."
        )
    return tuple(parameters.number("Normalize", f"a part of {name}", value) for value in values)
