"""Translates torchvision's transforms into steps of ours, by their class names and attributes.

torchvision itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.steps.auto_augment import AutoAugment
from rekindle.prepare.steps.blur_and_sharpness import GaussianBlur, RandomAdjustSharpness
from rekindle.prepare.steps.colour import ColorJitter, RandomGrayscale
from rekindle.prepare.steps.compose import Compose, Lambda, RandomApply
from rekindle.prepare.steps.crop import CenterCrop, Pad, RandomCrop, RandomResizedCrop
from rekindle.prepare.steps.erasing import RandomErasing
from rekindle.prepare.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from rekindle.prepare.steps.geometry import RandomAffine, RandomRotation
from rekindle.prepare.steps.image_step import ImageStep
from rekindle.prepare.steps.point_operations import (
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from rekindle.prepare.steps.rand_augment import RandAugment, TrivialAugmentWide
from rekindle.prepare.steps.resize import Resize
from rekindle.prepare.steps.step import Step
from rekindle.prepare.steps.to_tensor import ConvertImageDtype, Normalize, PILToTensor, ToTensor

# The steps whose parameters are attributes of torchvision's transform of the same name.
_SAME: dict[str, tuple[Callable[..., Step], tuple[str, ...]]] = {
    step.__name__: (step, names)
    for step, names in {
        Resize: ("size", "interpolation", "max_size"),
        CenterCrop: ("size",),
        RandomCrop: ("size", "padding", "pad_if_needed", "fill", "padding_mode"),
        RandomResizedCrop: ("size", "scale", "ratio", "interpolation"),
        Pad: ("padding", "fill", "padding_mode"),
        RandomHorizontalFlip: ("p",),
        RandomVerticalFlip: ("p",),
        RandomRotation: ("degrees", "interpolation", "expand", "center", "fill"),
        RandomAffine: ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center"),
        RandomGrayscale: ("p",),
        GaussianBlur: ("kernel_size", "sigma"),
        RandomSolarize: ("threshold", "p"),
        RandomPosterize: ("bits", "p"),
        RandomEqualize: ("p",),
        RandomAutocontrast: ("p",),
        RandomAdjustSharpness: ("sharpness_factor", "p"),
        RandomInvert: ("p",),
        RandomErasing: ("p", "scale", "ratio", "value", "inplace"),
        RandAugment: ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill"),
        TrivialAugmentWide: ("num_magnitude_bins", "interpolation", "fill"),
        AutoAugment: ("policy", "interpolation", "fill"),
        Normalize: ("mean", "std", "inplace"),
    }.items()
}
_CONTAINERS = ("Compose", "Sequential")
_NOTHING_TO_DO = ("Identity", "ToPureTensor", "RGB")


# A transform of torchvision's, which has no types; its parameters are attributes.
TorchvisionTransform: TypeAlias = Any


def from_torchvision(compose: TorchvisionTransform) -> Compose:
    """Translate torchvision's `Compose` (v1 or v2), or one transform, into steps of `rekindle.transforms`.

    Conversions to tensors move to the first step that needs a tensor: the steps on images work on bytes.
    Raises an ArgumentError that names every transform without a corresponding step.
    """
    translation = _Translation()
    translation.take(compose, path="")
    translation.finish()
    if translation.unknown:
        listed = "".join(f"\n  {line}" for line in translation.unknown)
        raise ArgumentError(
            f"from_torchvision: no native step for {len(translation.unknown)} of the transforms:{listed}\n"
            "Remove them, replace them (rekindle.transforms.Lambda takes any function of an array), or use "
            "the Compose as it is: it runs unchanged, in processes."
        )
    return Compose(translation.steps)


class _Translation:
    """The steps so far, and the transforms that could not be translated."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.unknown: list[str] = []
        self._conversion: Step | None = None  # to a tensor, deferred until one is needed
        self._converted = False

    def take(self, transform: TorchvisionTransform, path: str) -> None:
        """Translate one transform, and those it contains."""
        name = type(transform).__name__
        where = f"{path}{name}"
        if isinstance(transform, Step):
            self._add(transform, where)
        elif type(transform).__module__.split(".")[0] not in ("torchvision", "torch"):
            self._refuse(where, "not a transform of torchvision's")
        elif name in _CONTAINERS:
            for number, part in enumerate(_parts(transform)):
                self.take(part, f"{path}{name}[{number}].")
        else:
            try:
                self._take_known(transform, name, where)
            except (ArgumentError, AttributeError) as error:
                self._refuse(where, str(error))

    def finish(self) -> None:
        """Add the conversion, if no step needed it before."""
        if self._conversion is not None:
            self.steps.append(self._conversion)

    def _take_known(self, transform: TorchvisionTransform, name: str, where: str) -> None:
        if name in _NOTHING_TO_DO:
            return
        if name in ("ToImage", "PILToTensor"):
            self._convert(PILToTensor())
        elif name == "ToTensor":
            self._convert(ToTensor())
        elif name in ("ConvertImageDtype", "ToDtype"):
            self._convert(_dtype_conversion(transform, name))
        elif name == "ColorJitter":
            spans = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
            self._add(ColorJitter(*(span or 0 for span in spans)), where)
        elif name == "Lambda":
            if self._conversion is None and not self._converted:
                raise ArgumentError("its function expects a Pillow image, but would get an array")
            self._add(Lambda(transform.lambd), where)
        elif name == "RandomApply":
            self._add(RandomApply(self._inner_steps(transform, where), transform.p), where)
        elif name in _SAME:
            make, names = _SAME[name]
            values = {key: _plain(getattr(transform, key)) for key in names}
            if name == "RandomErasing" and values["value"] is None:  # how v2 stores "random"
                values["value"] = "random"
            self._add(make(**values), where)
        else:
            self._refuse(where, "no native step does this")

    def _inner_steps(self, transform: TorchvisionTransform, where: str) -> list[Step]:
        inner = _Translation()
        for number, part in enumerate(_parts(transform)):
            inner.take(part, f"{where}[{number}].")
        inner.finish()
        self.unknown += inner.unknown
        return inner.steps

    def _convert(self, conversion: Step) -> None:
        if self._converted:
            raise ArgumentError("a second conversion, after steps on tensors")
        self._conversion = conversion

    def _add(self, step: Step, where: str) -> None:
        if isinstance(step, ImageStep | RandomApply):
            if self._converted:
                self._refuse(where, "works on bytes here, but comes after a step on tensors: put it before")
        elif self._conversion is not None:
            self.steps.append(self._conversion)
            self._conversion, self._converted = None, True
        self.steps.append(step)

    def _refuse(self, where: str, reason: str) -> None:
        self.unknown.append(f"{where}: {reason}")


def _parts(container: TorchvisionTransform) -> Iterable[TorchvisionTransform]:
    """The transforms in a Compose or RandomApply (`.transforms`), or in a Sequential (its children)."""
    if hasattr(container, "transforms"):
        container = container.transforms
    return list(container)


def _plain(value: object) -> object:
    """The value; ArgumentError if there is one for each type of input, as v2 transforms allow."""
    if isinstance(value, dict):
        raise ArgumentError(f"its parameter {value!r} depends on the type of the input")
    return value


def _dtype_conversion(transform: TorchvisionTransform, name: str) -> Step:
    dtype = transform.dtype
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"its dtype {dtype!r} depends on the type of the input")
    if name == "ToDtype" and dtype.is_floating_point and not transform.scale:
        raise ArgumentError("scale=False leaves floats from 0 to 255; set scale=True")
    return ToTensor() if dtype == torch.float32 else ConvertImageDtype(dtype)
