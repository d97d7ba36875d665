"""Each step of `rekindle.transforms` on a whole batch: its own parameters, then operations on all images.

A step's class is the key of `_BATCHED`, so the function registered for it gets a step of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from rekindle.prepare.device import filters, pixel_ops
from rekindle.prepare.device.affine import warp
from rekindle.prepare.device.augmentation_ops import perform
from rekindle.prepare.device.crops import take_windows
from rekindle.prepare.device.rows import change_rows, to_device
from rekindle.prepare.steps.auto_augment import AutoAugment
from rekindle.prepare.steps.blur_and_sharpness import GaussianBlur, RandomAdjustSharpness, Sharpness
from rekindle.prepare.steps.colour import ColorJitter, RandomGrayscale
from rekindle.prepare.steps.compose import Compose, RandomApply, StepContainer
from rekindle.prepare.steps.crop import CenterCrop, Pad, RandomCrop, RandomResizedCrop
from rekindle.prepare.steps.crop_window import WindowStep
from rekindle.prepare.steps.erasing import RandomErasing
from rekindle.prepare.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from rekindle.prepare.steps.geometry import RandomAffine, RandomRotation, rotation_matrix
from rekindle.prepare.steps.image_step import ChanceStep, ImageStep
from rekindle.prepare.steps.point_operations import (
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    Solarize,
)
from rekindle.prepare.steps.rand_augment import RandAugment, RandAugmentLayer, TrivialAugmentWide
from rekindle.prepare.steps.resize import Resize
from rekindle.prepare.steps.step import Step, Uniforms, is_ours
from rekindle.prepare.steps.to_tensor import (
    Conversion,
    ConvertImageDtype,
    FirstChannel,
    Normalize,
    PILToTensor,
    ToTensor,
    convert,
)

_ADJUSTMENTS = (
    pixel_ops.adjust_brightness,
    pixel_ops.adjust_contrast,
    pixel_ops.adjust_saturation,
    pixel_ops.adjust_hue,
)


# The step is of the class that the function is registered for, which a dict's type cannot express.
_Batched: TypeAlias = Callable[[Any, torch.Tensor, Uniforms], torch.Tensor]
_Change: TypeAlias = Callable[[Any, torch.Tensor], torch.Tensor]


def apply(step: Step, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    """The images after the step, given a row of `uniforms` random numbers for each."""
    return _BATCHED[type(step)](step, images, uniforms)


def has_batched_form(step: Step) -> bool:
    """Whether a step can run on batches. A user's own cannot, even if it is a subclass of one that can."""
    if isinstance(step, RandomRotation) and step.expand:
        return False  # The results would differ in size.
    has_function = any(map(callable, vars(step).values()))  # in the place of one of its methods, perhaps
    if type(step) not in _BATCHED or (has_function and not is_ours(step)):
        return False
    if isinstance(step, StepContainer):
        inner = step.transforms
        keeps_size = all(isinstance(one, ImageStep) and one.keeps_size for one in inner)
        return (isinstance(step, Compose) or keeps_size) and all(map(has_batched_form, inner))
    return True


def _window(step: WindowStep, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    height, width = images.shape[2:]
    windows = [step.window(height, width, row) for row in uniforms]
    return take_windows(images, windows, step.interpolation, step.fill, step.padding_mode)


def _by_chance(change: _Change) -> _Batched:
    def batched(step: ChanceStep, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
        return change_rows(images, step.happens_in(uniforms), partial(change, step))

    return batched


def _always(change: _Change) -> _Batched:
    return lambda step, images, _: change(step, images)


def _colour_jitter(step: ColorJitter, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    amounts = [step.amounts(row) for row in uniforms]
    for turn in range(max(map(len, amounts), default=0)):
        for kind, adjust in enumerate(_ADJUSTMENTS):
            rows = [row for row, changes in enumerate(amounts) if changes[turn][0] == kind]
            some = [float(amounts[row][turn][1]) for row in rows]
            images = change_rows(images, rows, _adjustment(adjust, some))
    return images


def _adjustment(
    adjust: Callable[[torch.Tensor, Sequence[float]], torch.Tensor], amounts: Sequence[float]
) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda images: adjust(images, amounts)


def _rotate(step: RandomRotation, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    height, width = images.shape[2:]
    matrices = [rotation_matrix(height, width, step.angle(row), step.center) for row in uniforms]
    return warp(images, matrices, step.interpolation, step.fill)


def _affine(step: RandomAffine, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    height, width = images.shape[2:]
    matrices = [step.matrix(height, width, row) for row in uniforms]
    return warp(images, matrices, step.interpolation, step.fill)


def _blur(step: GaussianBlur, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    return filters.gaussian_blur(images, step.kernel_size, [step.deviation(row) for row in uniforms])


def _sharpen(step: Sharpness | RandomAdjustSharpness, images: torch.Tensor) -> torch.Tensor:
    return filters.adjust_sharpness(images, [step.sharpness_factor] * len(images))


def _policy(
    step: RandAugmentLayer | TrivialAugmentWide, images: torch.Tensor, uniforms: Uniforms
) -> torch.Tensor:
    height, width = images.shape[2:]
    choices = [step.choice(height, width, row) for row in uniforms]
    return perform(images, choices, step.interpolation, step.fill)


def _rand_augment(step: RandAugment, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    return _one_by_one(step.layers, images, uniforms)


def _auto_augment(step: AutoAugment, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    height, width = images.shape[2:]
    chosen = [step.choice(height, width, row) for row in uniforms]
    for turn in range(max(map(len, chosen), default=0)):
        choices = [pair[turn] if turn < len(pair) else ("Identity", 0.0) for pair in chosen]
        images = perform(images, choices, step.interpolation, step.fill)
    return images


def _erase(step: RandomErasing, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    channels, height, width = images.shape[1:]
    result = images.clone()
    for row, row_uniforms in enumerate(uniforms):
        box = step.box(height, width, row_uniforms)
        if box is not None:
            top, left, box_height, box_width = box
            new = step.replacement((channels, box_height, box_width), row_uniforms)
            result[row, :, top : top + box_height, left : left + box_width] = new.to(
                images.device, images.dtype, non_blocking=True
            )
    return result


def _one_by_one(steps: Sequence[Step], images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    used = 0
    for step in steps:
        images = apply(step, images, uniforms[:, used : used + step.uniforms])
        used += step.uniforms
    return images


def _random_apply(step: RandomApply, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    rows = np.flatnonzero(step.happens_in(uniforms))
    return change_rows(images, rows, lambda some: _one_by_one(step.transforms, some, uniforms[rows, 1:]))


def _convert(step: Conversion, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    return convert(images, step.dtype)


def _normalize(step: Normalize, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    mean, std = (
        to_device(np.asarray(part, dtype=np.float64), images.device).to(images.dtype).view(-1, 1, 1)
        for part in (step.mean, step.std)
    )
    return images.sub(mean).div_(std)


def _solarize(step: Solarize | RandomSolarize, images: torch.Tensor) -> torch.Tensor:
    return pixel_ops.solarize(images, [step.threshold])


def _posterize(step: Posterize | RandomPosterize, images: torch.Tensor) -> torch.Tensor:
    return pixel_ops.posterize(images, [step.bits])


_BATCHED: dict[type[Step], _Batched] = {
    Resize: _window,
    CenterCrop: _window,
    Pad: _window,
    RandomCrop: _window,
    RandomResizedCrop: _window,
    RandomHorizontalFlip: _by_chance(lambda _, images: images.flip(3)),
    RandomVerticalFlip: _by_chance(lambda _, images: images.flip(2)),
    RandomRotation: _rotate,
    RandomAffine: _affine,
    ColorJitter: _colour_jitter,
    RandomGrayscale: _by_chance(lambda _, images: pixel_ops.grey(images)),
    GaussianBlur: _blur,
    Sharpness: _always(_sharpen),
    RandomAdjustSharpness: _by_chance(_sharpen),
    Solarize: _always(_solarize),
    RandomSolarize: _by_chance(_solarize),
    Posterize: _always(_posterize),
    RandomPosterize: _by_chance(_posterize),
    Invert: _always(lambda _, images: pixel_ops.invert(images)),
    RandomInvert: _by_chance(lambda _, images: pixel_ops.invert(images)),
    AutoContrast: _always(lambda _, images: pixel_ops.autocontrast(images)),
    RandomAutocontrast: _by_chance(lambda _, images: pixel_ops.autocontrast(images)),
    Equalize: _always(lambda _, images: pixel_ops.equalize(images)),
    RandomEqualize: _by_chance(lambda _, images: pixel_ops.equalize(images)),
    RandAugment: _rand_augment,
    RandAugmentLayer: _policy,
    TrivialAugmentWide: _policy,
    AutoAugment: _auto_augment,
    RandomErasing: _erase,
    Compose: lambda step, images, uniforms: _one_by_one(step.transforms, images, uniforms),
    RandomApply: _random_apply,
    ToTensor: _convert,
    PILToTensor: _convert,
    ConvertImageDtype: _convert,
    Normalize: _normalize,
    FirstChannel: _always(lambda _, images: images[:, :1]),
}
