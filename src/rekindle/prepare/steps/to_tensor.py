"""Conversion to tensors and normalization: ToTensor, PILToTensor, ConvertImageDtype, Normalize, FirstChannel.

After the conversion an image is a tensor, channels × height × width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.image_step import as_image
from rekindle.prepare.steps.step import Image, Step, Uniforms, Value

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8)


class Conversion(Step):
    """A step from an image of bytes to a tensor: steps on images come before it, on tensors after it."""

    keeps_size = True
    dtype: torch.dtype

    def apply(self, image: Image, uniforms: Uniforms) -> torch.Tensor:
        return convert(_channels_first(image), self.dtype)

    def __call__(self, image: Value) -> torch.Tensor:
        return convert(_channels_first(as_image(image, type(self).__name__)), self.dtype)


class TensorStep(Step):
    """A step on tensors, channels × height × width."""

    keeps_size = True


class ToTensor(Conversion):
    """Convert to a float32 tensor, channels × height × width, with values from 0 to 1."""

    dtype = torch.float32


class PILToTensor(Conversion):
    """Convert to a uint8 tensor, channels × height × width."""

    dtype = torch.uint8


class ConvertImageDtype(Conversion):
    """Convert an image or tensor to a tensor of this dtype; floats are from 0 to 1."""

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in _DTYPES:
            names = ", ".join(map(str, _DTYPES))
            raise ArgumentError(f"ConvertImageDtype: dtype is {dtype!r}. Give one of {names}.")
        self.dtype = dtype

    def apply(self, image: Image | torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
        tensor = image if isinstance(image, torch.Tensor) else _channels_first(image)
        return convert(tensor, self.dtype)

    def __call__(self, image: Value) -> torch.Tensor:
        if isinstance(image, torch.Tensor):
            return convert(image, self.dtype)
        return super().__call__(image)


class Normalize(TensorStep):
    """Subtract `mean` and divide by `std`, for each channel. Takes batches too, on any device."""

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

    def apply(self, image: Value, uniforms: Uniforms) -> torch.Tensor:
        if not isinstance(image, torch.Tensor) or not image.is_floating_point():
            kind = image.dtype if isinstance(image, torch.Tensor) else type(image).__name__
            raise ArgumentError(f"Normalize: the image is {kind}. Put ToTensor() before Normalize.")
        numbers, channels = max(len(self.mean), len(self.std)), image.shape[-3] if image.ndim > 2 else 1
        if channels != numbers and numbers > 1 and channels > 1:
            raise ArgumentError(
                f"Normalize: mean and std have {numbers} numbers, and the image has {channels} channels. "
                "Give one for each channel."
            )
        mean = torch.tensor(self.mean, dtype=image.dtype, device=image.device).view(-1, 1, 1)
        std = torch.tensor(self.std, dtype=image.dtype, device=image.device).view(-1, 1, 1)
        return image.sub_(mean).div_(std) if self.inplace else image.sub(mean).div_(std)


class FirstChannel(TensorStep):
    """Keep the first channel: grey images have three equal ones, and become tensors of one.

    >>> FirstChannel()(torch.zeros(3, 4, 5)).shape
    torch.Size([1, 4, 5])
    """

    def apply(self, image: Value, uniforms: Uniforms) -> torch.Tensor:
        if not isinstance(image, torch.Tensor):
            raise ArgumentError(
                f"FirstChannel: the image is a {type(image).__name__}. Put ToTensor() before FirstChannel."
            )
        return image[:1]


def convert(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor as another dtype: bytes from 0 to 255 become floats from 0 to 1, and vice versa."""
    if tensor.dtype == dtype:
        return tensor
    if dtype.is_floating_point:
        floats = tensor.to(dtype)
        return floats if tensor.is_floating_point() else floats.div_(255)
    return tensor.mul(256 - 1e-3).to(dtype)  # as torchvision does: 1.0 becomes 255, all bins are equally wide


def _channels_first(image: Image) -> torch.Tensor:
    # A copy, since torch warns about read-only arrays.
    copied = np.array(np.transpose(image, (2, 0, 1)), order="C")
    return torch.from_numpy(copied)


def _per_channel(name: str, values: object) -> tuple[float, ...]:
    given = values.tolist() if isinstance(values, torch.Tensor | np.ndarray) else values
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ArgumentError(
            f"Normalize: {name} is {given!r}. Give a sequence with a number for each channel."
        )
    return tuple(parameters.number("Normalize", f"a part of {name}", value) for value in given)
