"""Each step of `rekindle.transforms` on a whole batch: its own parameters, then operations on all images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from rekindle.prepare.auto_augment import AutoAugment
from rekindle.prepare.batched import neighbours, values
from rekindle.prepare.batched.operations import perform
from rekindle.prepare.batched.rows import change_rows, to_device
from rekindle.prepare.batched.warping import warp
from rekindle.prepare.batched.windows import take_windows
from rekindle.prepare.blur_and_sharpness import GaussianBlur, RandomAdjustSharpness, Sharpness
from rekindle.prepare.colour import ColorJitter, RandomGrayscale
from rekindle.prepare.compose import Compose, RandomApply
from rekindle.prepare.crop import CenterCrop, Pad, RandomCrop, RandomResizedCrop
from rekindle.prepare.erasing import RandomErasing
from rekindle.prepare.flip import RandomHorizontalFlip, RandomVerticalFlip
from rekindle.prepare.geometry import RandomAffine, RandomRotation, rotation_matrix
from rekindle.prepare.image_step import ImageStep
from rekindle.prepare.point_operations import (
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
from rekindle.prepare.policies import RandAugment, RandAugmentLayer, TrivialAugmentWide
from rekindle.prepare.resize import Resize
from rekindle.prepare.step import Numbers, Step
from rekindle.prepare.tensors import Conversion, ConvertImageDtype, Normalize, PILToTensor, ToTensor, convert

_ADJUSTMENTS = (
    values.adjust_brightness,
    values.adjust_contrast,
    values.adjust_saturation,
    values.adjust_hue,
)


def apply(step: Step, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """What becomes of the images, given a row of `uniforms` numbers for each."""
    return _BATCHED[type(step)](step, images, numbers)


def has_batched_form(step: Step) -> bool:
    """Whether a step is known here. A user's own is not, even if it descends from one that is."""
    if isinstance(step, RandomRotation) and step.expand:
        return False  # Images of different sizes would come out.
    if type(step) in (Compose, RandomApply):
        inner: list[Step] = step.transforms  # type: ignore[attr-defined]
        whole = type(step) is Compose or all(isinstance(one, ImageStep) and one.keeps_size for one in inner)
        return whole and all(map(has_batched_form, inner))
    return type(step) in _BATCHED


def _window(step: Any, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    windows = [step.window(*images.shape[2:], row) for row in numbers]
    return take_windows(images, windows, step.interpolation, step.fill, step.padding_mode)


def _by_chance(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def batched(step: Any, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
        return change_rows(images, step.happens(numbers), partial(change, step))

    return batched


def _always(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda step, images, _: change(step, images)


def _colour_jitter(step: ColorJitter, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    amounts = [step.amounts(row) for row in numbers]
    for turn in range(max(map(len, amounts), default=0)):
        for kind, adjust in enumerate(_ADJUSTMENTS):
            rows = [row for row, changes in enumerate(amounts) if changes[turn][0] == kind]
            some = [float(amounts[row][turn][1]) for row in rows]
            images = change_rows(images, rows, lambda images, f=adjust, x=some: f(images, x))  # type: ignore[misc]
    return images


def _rotate(step: RandomRotation, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    height, width = images.shape[2:]
    matrices = [rotation_matrix(height, width, step.angle(row), step.center) for row in numbers]
    return warp(images, matrices, step.interpolation, step.fill)


def _affine(step: RandomAffine, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    height, width = images.shape[2:]
    matrices = [step.matrix(height, width, row) for row in numbers]
    return warp(images, matrices, step.interpolation, step.fill)


def _blur(step: GaussianBlur, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    return neighbours.gaussian_blur(images, step.kernel_size, [step.deviation(row) for row in numbers])


def _sharpen(step: Any, images: torch.Tensor) -> torch.Tensor:
    return neighbours.adjust_sharpness(images, [step.sharpness_factor] * len(images))


def _policy(step: Any, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    choices = [step.choice(*images.shape[2:], row) for row in numbers]
    return perform(images, choices, step.interpolation, step.fill)


def _rand_augment(step: RandAugment, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    return _one_by_one(step.layers, images, numbers)


def _auto_augment(step: AutoAugment, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    height, width = images.shape[2:]
    chosen = [step.choice(height, width, row) for row in numbers]
    for turn in range(max(map(len, chosen), default=0)):
        choices = [pair[turn] if turn < len(pair) else ("Identity", 0.0) for pair in chosen]
        images = perform(images, choices, step.interpolation, step.fill)
    return images


def _erase(step: RandomErasing, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    channels, height, width = images.shape[1:]
    result = images.clone()
    for row, own in enumerate(numbers):
        box = step.box(height, width, own)
        if box is not None:
            top, left, box_height, box_width = box
            new = step.replacement((channels, box_height, box_width), own)
            result[row, :, top : top + box_height, left : left + box_width] = new.to(
                images.device, images.dtype, non_blocking=True
            )
    return result


def _one_by_one(steps: Any, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    used = 0
    for step in steps:
        images = apply(step, images, numbers[:, used : used + step.uniforms])
        used += step.uniforms
    return images


def _random_apply(step: RandomApply, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    rows = np.flatnonzero(step.happens(numbers))
    return change_rows(images, rows, lambda some: _one_by_one(step.transforms, some, numbers[rows, 1:]))


def _convert(step: Conversion, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    return convert(images, step.dtype)


def _normalize(step: Normalize, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    mean, std = (
        to_device(np.asarray(part, dtype=np.float64), images.device).to(images.dtype).view(-1, 1, 1)
        for part in (step.mean, step.std)
    )
    return images.sub(mean).div_(std)


_solarize = lambda step, images: values.solarize(images, [step.threshold])  # noqa: E731
_posterize = lambda step, images: values.posterize(images, [step.bits])  # noqa: E731

_BATCHED: dict[type[Step], Callable[[Any, torch.Tensor, Numbers], torch.Tensor]] = {
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
    RandomGrayscale: _by_chance(lambda _, images: values.grey(images)),
    GaussianBlur: _blur,
    Sharpness: _always(_sharpen),
    RandomAdjustSharpness: _by_chance(_sharpen),
    Solarize: _always(_solarize),
    RandomSolarize: _by_chance(_solarize),
    Posterize: _always(_posterize),
    RandomPosterize: _by_chance(_posterize),
    Invert: _always(lambda _, images: values.invert(images)),
    RandomInvert: _by_chance(lambda _, images: values.invert(images)),
    AutoContrast: _always(lambda _, images: values.autocontrast(images)),
    RandomAutocontrast: _by_chance(lambda _, images: values.autocontrast(images)),
    Equalize: _always(lambda _, images: values.equalize(images)),
    RandomEqualize: _by_chance(lambda _, images: values.equalize(images)),
    RandAugment: _rand_augment,
    RandAugmentLayer: _policy,
    TrivialAugmentWide: _policy,
    AutoAugment: _auto_augment,
    RandomErasing: _erase,
    Compose: lambda step, images, numbers: _one_by_one(step.transforms, images, numbers),
    RandomApply: _random_apply,
    ToTensor: _convert,
    PILToTensor: _convert,
    ConvertImageDtype: _convert,
    Normalize: _normalize,
}
