"""Translates torchvision's transforms into steps of ours, by their class names and attributes.

timm's are translated as well, where it has its own (`from_timm.py`). Neither library is imported.
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
from rekindle.prepare.steps.from_timm import timm_step
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
from rekindle.prepare.steps.same_steps import snapshot
from rekindle.prepare.steps.step import Step
from rekindle.prepare.steps.to_tensor import (
    Conversion,
    ConvertImageDtype,
    FirstChannel,
    Normalize,
    PILToTensor,
    ToTensor,
)
from rekindle.prepare.steps.unmodified import why_modified

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
# All that have a step of the same name.
NATIVE_NAMES = {
    *_SAME,
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "Lambda",
    "PILToTensor",
    "RandomApply",
    "ToTensor",
}
_LIBRARIES = ("torchvision", "torch", "timm")
_CONTAINERS = ("Compose", "Sequential")
_NOTHING_TO_DO = ("Identity", "ToPureTensor")
# timm's conversions, which leave tensors as they are.
_UNLESS_TENSOR: dict[str, type[Conversion]] = {"MaybeToTensor": ToTensor, "MaybePILToTensor": PILToTensor}


# A transform of torchvision's, which has no types; its parameters are attributes.
TorchvisionTransform: TypeAlias = Any


def from_torchvision(compose: TorchvisionTransform) -> Compose:
    """Translate a `Compose` of torchvision's (v1 or v2) or timm's, or one transform, into our steps.

    Conversions to tensors move to the first step that needs a tensor: the steps on images work on bytes.
    Raises an ArgumentError that names every transform without a corresponding step.
    """
    translation = translate_transform(compose)
    if translation.unknown:
        listed = "".join(f"\n  {line}" for line in translation.unknown)
        raise ArgumentError(
            f"from_torchvision: no native step for {len(translation.unknown)} of the transforms:{listed}\n"
            "Remove them, replace them (rekindle.transforms.Lambda takes any function of an array), or use "
            "the Compose as it is: it runs unchanged, in processes."
        )
    return translation.compose()


def translate_transform(transform: TorchvisionTransform, channels: int = 3) -> Translation:
    """The translation of a transform for images of 3 channels or, grey, of 1."""
    translation = Translation(channels)
    translation.take(transform, path="")
    translation.finish()
    return translation


class Translation:
    """The steps so far, and the transforms that could not be translated.

    Attributes:
        steps: Our steps.
        unknown: A line for each transform without one.
        channels: 1 if images are grey at this point, 3 otherwise.
        makes_tensors: Whether an image has become a tensor.

    """

    def __init__(self, channels: int = 3, dtype: torch.dtype | None = None) -> None:
        self.steps: list[Step] = []
        self.unknown: list[str] = []
        self.channels = channels
        self._dtype = dtype  # of the tensors that torchvision has at this point; None if it has no tensors
        self._kind: str | None = None  # "Image" if these are tv_tensors.Image, "Tensor"; None if not known
        self._conversion: Conversion | None = None  # to a tensor, deferred until one is needed
        self._converted = False
        self._first_channel_taken = False

    @property
    def makes_tensors(self) -> bool:
        return self._converted or self._conversion is not None

    def compose(self) -> Compose:
        """The steps as one."""
        return Compose(self.steps)

    def take(self, transform: TorchvisionTransform, path: str) -> None:
        """Translate one transform, and those it contains."""
        name = type(transform).__name__
        where = f"{path}{name}"
        library = type(transform).__module__.split(".")[0]
        if isinstance(transform, Step):
            self._add(snapshot(transform), where)
        elif library not in _LIBRARIES:
            self._refuse(where, "not a transform of torchvision's or timm's")
        elif modified := why_modified(transform, _LIBRARIES):
            self._refuse(where, modified)
        elif name in _CONTAINERS and library != "timm":
            for number, part in enumerate(_parts(transform)):
                self.take(part, f"{path}{name}[{number}].")
        else:
            try:
                if library == "timm":
                    self._take_timms(transform, name, where)
                else:
                    self._take_known(transform, name, where)
            except (ArgumentError, AttributeError) as error:
                self._refuse(where, str(error))

    def finish(self) -> None:
        """Add the conversion, if no step needed it before."""
        if self._conversion is not None:
            self.steps.append(self._conversion)
            self._conversion, self._converted = None, True
        if self._converted:
            self._take_first_channel()

    def _take_timms(self, transform: TorchvisionTransform, name: str, where: str) -> None:
        if name in _UNLESS_TENSOR:
            if self._dtype is None:
                self._convert(_UNLESS_TENSOR[name]())
                self._kind = "Tensor"
            return
        self._check_scale(transform, name)
        if self.channels != 3:
            raise ArgumentError("works on images of three channels, and these are grey")
        self._add(timm_step(transform), where)

    def _take_known(self, transform: TorchvisionTransform, name: str, where: str) -> None:
        if name in _NOTHING_TO_DO:
            self._kind = self._kind_after(transform, name)
            return
        if self._dtype is not None and _differs_on_tensors(transform):
            raise ArgumentError(
                "resizes tensors without antialiasing, which is not what it does with images: put it before "
                "the conversion, or set antialias=True and another interpolation"
            )
        self._check_scale(transform, name)
        self._kind = self._kind_after(transform, name)
        if name in ("ToImage", "PILToTensor", "ToTensor"):
            if self._dtype is None or self._converted:
                self._convert(ToTensor() if name == "ToTensor" else PILToTensor())
            elif not _is_v2(transform):
                raise ArgumentError("a second conversion: it gets a tensor here, which it does not take")
        elif name in ("ConvertImageDtype", "ToDtype"):
            self._take_dtype(transform, name)
        elif name in ("Grayscale", "RGB"):
            self._take_channels(3 if name == "RGB" else transform.num_output_channels, name, where)
        elif name == "ColorJitter":
            spans = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
            self._add(ColorJitter(*(span or 0 for span in spans)), where)
        elif name == "Lambda":
            if self._dtype is None:
                raise ArgumentError("its function expects a Pillow image, but would get an array")
            if getattr(transform, "types", (object,)) != (object,):  # v2
                raise ArgumentError(f"its function is for some types only: {transform.types!r}")
            self._add(Lambda(transform.lambd), where)
        elif name == "ImageClassification":
            self._take_preset(transform, where)
        elif name == "RandomApply":
            self._add(RandomApply(self._inner_steps(transform, where), transform.p), where)
        elif name in _SAME:
            make, names = _SAME[name]
            values = {key: _plain(getattr(transform, key)) for key in names}
            if name == "RandomErasing" and values["value"] is None:  # how v2 stores "random"
                values["value"] = "random"
            if name == "RandomCrop" and values["padding"] is not None:
                values["padding"] = _padding_of_crop(transform)
            self._add(make(**values), where)
        else:
            self._refuse(where, "no native step does this")

    def _take_preset(self, preset: TorchvisionTransform, where: str) -> None:
        """What the weights of a network come with, as `weights.transforms()`."""
        if self._dtype is not None:
            raise ArgumentError("it converts images itself, and would resize a tensor here: put it first")
        self._add(Resize(preset.resize_size, preset.interpolation), where)
        self._add(CenterCrop(preset.crop_size), where)
        self._convert(ToTensor())
        self._kind = "Tensor"
        self._add(Normalize(preset.mean, preset.std), where)

    def _inner_steps(self, transform: TorchvisionTransform, where: str) -> list[Step]:
        inner = Translation(self.channels, self._dtype)
        inner._kind = self._kind
        for number, part in enumerate(_parts(transform)):
            inner.take(part, f"{where}[{number}].")
        if inner._dtype != self._dtype or inner.channels != self.channels:
            inner._refuse(where, "images would become something else in some cases only")
        elif not all(isinstance(step, ImageStep | RandomApply) for step in inner.steps):
            inner._refuse(where, "steps on tensors that are applied in some cases only")
        self.unknown += inner.unknown
        return inner.steps

    def _check_scale(self, transform: TorchvisionTransform, name: str) -> None:
        """ArgumentError for a colour that is meant from 0 to 1: the steps on images have them to 255."""
        if self._dtype is None or not self._dtype.is_floating_point:
            return
        if name == "RandomSolarize" or _fills(transform):
            given = "threshold" if name == "RandomSolarize" else "fill"
            raise ArgumentError(
                f"its {given}={getattr(transform, given)!r} is a value of float tensors here, from 0 to 1: "
                "put it before the conversion, with a value from 0 to 255"
            )

    def _take_dtype(self, transform: TorchvisionTransform, name: str) -> None:
        dtype = _dtype_of(transform, self._kind)
        if self._dtype is None:
            raise ArgumentError("it converts tensors, and gets a Pillow image here: put ToImage() before it")
        if dtype is None or (dtype == self._dtype and not self._converted):
            return  # It is that already.
        if name == "ToDtype" and not transform.scale:
            raise ArgumentError(
                f"scale=False leaves the values of {self._dtype} as they are in {dtype}; set scale=True"
            )
        self._convert(ToTensor() if dtype == torch.float32 else ConvertImageDtype(dtype))

    def _kind_after(self, transform: TorchvisionTransform, name: str) -> str | None:
        """The kind of tensor that a transform returns."""
        if name == "ToImage":
            return "Image"
        if name == "ToPureTensor" or (self._dtype is None and name in ("PILToTensor", "ToTensor")):
            return "Tensor"
        if name == "Lambda" or (self._kind == "Image" and not _is_v2(transform)):
            return None
        return self._kind

    def _take_channels(self, channels: int, name: str, where: str) -> None:
        """Grey images with 1 or 3 channels; with RGB, grey ones get 3, and others stay as they are."""
        if self._converted:
            raise ArgumentError("works on bytes here, but comes after a step on tensors: put it before")
        if name != "RGB" and self.channels == 3:
            self._add(RandomGrayscale(p=1), where)
        self.channels = channels

    def _convert(self, conversion: Conversion) -> None:
        if self._converted:
            raise ArgumentError("a second conversion, after steps on tensors")
        self._conversion, self._dtype = conversion, conversion.dtype

    def _add(self, step: Step, where: str) -> None:
        if isinstance(step, ImageStep | RandomApply):
            if self._converted:
                self._refuse(where, "works on bytes here, but comes after a step on tensors: put it before")
        else:
            if self._conversion is not None:
                self.steps.append(self._conversion)
                self._conversion, self._converted = None, True
            if not isinstance(step, Normalize):
                self._take_first_channel()
            elif self.channels == 1 and max(len(step.mean), len(step.std)) > 1:
                self._refuse(where, "has a number for each of several channels, and images are grey")
        self.steps.append(step)

    def _take_first_channel(self) -> None:
        """Leave one of three equal channels of a grey image, once it is a tensor."""
        if self.channels == 1 and self._converted and not self._first_channel_taken:
            self.steps.append(FirstChannel())
            self._first_channel_taken = True

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


def _dtype_of(transform: TorchvisionTransform, kind: str | None) -> torch.dtype | None:
    """The dtype that tensors of this kind get; None if they keep theirs."""
    dtype = transform.dtype
    if isinstance(dtype, dict):  # v2 has one for each type of input.
        named = {getattr(key, "__name__", key): one for key, one in dtype.items()}
        if kind is None or not {kind, "others"} & {*named}:
            raise ArgumentError(f"its dtype {dtype!r} depends on the type of the input")
        dtype = named.get(kind, named.get("others"))
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"its dtype {transform.dtype!r} is none of torch's")
    return dtype


def _is_v2(transform: TorchvisionTransform) -> bool:
    return type(transform).__module__.startswith("torchvision.transforms.v2.")


def _fills(transform: TorchvisionTransform) -> bool:
    """Whether a transform fills what it adds to an image with anything but black."""
    fill = getattr(transform, "fill", None)
    return any(fill) if isinstance(fill, list | tuple) else bool(fill)


def _differs_on_tensors(transform: TorchvisionTransform) -> bool:
    """Whether a resize does with tensors what it does not do with Pillow images."""
    if type(transform).__name__ not in ("Resize", "RandomResizedCrop"):
        return False
    mode = getattr(transform.interpolation, "value", transform.interpolation)
    return not getattr(transform, "antialias", True) or mode in ("nearest", "nearest-exact", 0)


def _padding_of_crop(crop: TorchvisionTransform) -> object:
    """Left, top, right and bottom, as one number, two or four."""
    if _is_v2(crop):
        left, right, top, bottom = crop.padding  # in the order of torch's function
        return left, top, right, bottom
    if crop.pad_if_needed and crop.padding_mode in ("reflect", "symmetric"):
        raise ArgumentError(
            f"pads twice, and mirrors in the second padding what it mirrored in the first: give padding or "
            f"pad_if_needed with padding_mode={crop.padding_mode!r}, or use the one of torchvision's v2"
        )
    return crop.padding
