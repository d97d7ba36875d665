"""Translates timm's transforms into steps of ours that do the same, in distribution exactly.

timm itself is not imported. What an operation's magnitude means is checked against the function that timm
computes it with: a version that defines it otherwise is refused.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.geometry import WARP_MODES
from rekindle.prepare.steps.step import Step
from rekindle.prepare.steps.timm_augment import TimmAutoAugment, TimmRandAugment
from rekindle.prepare.steps.timm_crop import (
    CenterCropOrPad,
    RandomCropOrPad,
    ResizeKeepRatio,
    TimmRandomResizedCrop,
    TrimBorder,
)
from rekindle.prepare.steps.timm_erasing import TimmRandomErasing
from rekindle.prepare.steps.timm_operations import ARGUMENTS, LEVELS, TimmOperation

TimmTransform: TypeAlias = Any  # which has no types; its parameters are attributes

_MODULE = "timm.data.auto_augment"
_FUNCTIONS = {
    "Rotate": "rotate", "AutoContrast": "auto_contrast", "Invert": "invert", "Equalize": "equalize",
    "Solarize": "solarize", "SolarizeIncreasing": "solarize", "SolarizeAdd": "solarize_add",
    "Posterize": "posterize", "PosterizeIncreasing": "posterize", "PosterizeOriginal": "posterize",
    "Color": "color", "ColorIncreasing": "color", "Contrast": "contrast", "ContrastIncreasing": "contrast",
    "Brightness": "brightness", "BrightnessIncreasing": "brightness", "Sharpness": "sharpness",
    "SharpnessIncreasing": "sharpness", "ShearX": "shear_x", "ShearY": "shear_y",
    "TranslateX": "translate_x_abs", "TranslateY": "translate_y_abs", "TranslateXRel": "translate_x_rel",
    "TranslateYRel": "translate_y_rel", "Desaturate": "desaturate", "GaussianBlur": "gaussian_blur",
    "GaussianBlurRand": "gaussian_blur_rand",
}  # fmt: skip
_PILLOW_NUMBERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}


def timm_step(transform: TimmTransform) -> Step:
    """Our step for one transform of timm's; ArgumentError if there is none that does exactly the same."""
    make = _STEPS.get(f"{type(transform).__module__}.{type(transform).__qualname__}")
    if make is None:
        raise ArgumentError("no native step does this")
    return make(transform)


def _random_resized_crop(crop: TimmTransform) -> Step:
    return TimmRandomResizedCrop(crop.size, crop.scale, crop.ratio, _several(crop.interpolation))


def _resize_keep_ratio(resize: TimmTransform) -> Step:
    return ResizeKeepRatio(
        resize.size,
        resize.longest,
        _several(resize.interpolation),
        resize.random_scale_prob,
        resize.random_scale_range,
        resize.random_scale_area,
        resize.random_aspect_prob,
        resize.random_aspect_range,
    )


def _several(modes: object) -> tuple[Any, ...]:
    return tuple(modes) if isinstance(modes, list | tuple) else (modes,)


def _random_erasing(erasing: TimmTransform) -> Step:
    low, high = erasing.log_aspect_ratio
    return TimmRandomErasing(
        erasing.probability,
        (erasing.min_area, erasing.max_area),
        (math.exp(low), math.exp(high)),
        erasing.mode or "const",
        (erasing.min_count, erasing.max_count),
    )


def _rand_augment(augment: TimmTransform) -> Step:
    ops = [_operation(op) for op in augment.ops]
    weights, layers = augment.choice_weights, augment.num_layers
    if weights is not None and sum(weight > 0 for weight in weights) < layers:
        raise ArgumentError(f"{layers} of {len(ops)} operations cannot be chosen without repetition")
    return TimmRandAugment(ops, layers, weights)


def _auto_augment(augment: TimmTransform) -> Step:
    return TimmAutoAugment([[_operation(op) for op in ops] for ops in augment.policy])


def _operation(op: TimmTransform) -> TimmOperation:
    kind, name = type(op), getattr(op, "name", None)
    if (kind.__module__, kind.__qualname__) != (_MODULE, "AugmentOp") or name not in _FUNCTIONS:
        raise ArgumentError(f"its operation {op!r} is none of timm's that are known here")
    function = op.aug_fn
    if (function.__module__, function.__qualname__) != (_MODULE, _FUNCTIONS[name]):
        raise ArgumentError(f"its operation {name} is done by {function!r}, and not as timm does it")
    fill = op.kwargs.get("fillcolor")
    if not isinstance(fill, tuple | list) or len(fill) != 3:
        raise ArgumentError(f"its operation {name} fills with {fill!r}, which is no colour of three numbers")
    found = TimmOperation(
        name,
        parameters.number("AugmentOp", "prob", op.prob, 0, 1),
        float(op.magnitude),
        _deviation(op.magnitude_std),
        None if op.magnitude_max is None else float(op.magnitude_max),
        parameters.fill_colour("AugmentOp", fill),
        tuple(
            _PILLOW_NUMBERS[parameters.interpolation_mode("AugmentOp", mode, WARP_MODES).value]
            for mode in _several(op.kwargs.get("resample"))
        ),
        (float(op.hparams.get("translate_const", 0)), float(op.hparams.get("translate_pct", 0.45))),
    )
    _check_arguments(found, op)
    return found


def _deviation(value: object) -> float:
    return math.inf if value == math.inf else parameters.number("AugmentOp", "magnitude_std", value, 0)


def _check_arguments(ours: TimmOperation, op: TimmTransform) -> None:
    """ArgumentError unless timm's own function gives the arguments that ours does, at several magnitudes."""
    if (op.level_fn is None) != (ARGUMENTS[ours.name] is None):
        raise ArgumentError(f"its operation {ours.name} has a magnitude in one of timm and this library only")
    if op.level_fn is None:
        return
    most = ours.magnitude_max or LEVELS
    state = random.getstate()  # timm's function draws a sign.
    try:
        for level in (0.0, most / 7, most / 2, ours.magnitude, most):
            level = max(0.0, min(level, most))
            expected = {ours.argument(level, negated) for negated in (False, True)}
            try:
                given = op.level_fn(level, op.hparams)
            except KeyError as error:
                raise ArgumentError(f"its operation {ours.name} lacks the parameter {error}") from None
            if len(given) != 1 or given[0] not in expected:
                raise ArgumentError(
                    f"its operation {ours.name} takes {given} at magnitude {level:g} in this version of "
                    f"timm, where {sorted(map(str, expected))} is known"
                )
    finally:
        random.setstate(state)


_STEPS: dict[str, Callable[[TimmTransform], Step]] = {
    "timm.data.transforms.RandomResizedCropAndInterpolation": _random_resized_crop,
    "timm.data.transforms.ResizeKeepRatio": _resize_keep_ratio,
    "timm.data.transforms.CenterCropOrPad": lambda one: CenterCropOrPad(one.size, one.fill, one.padding_mode),
    "timm.data.transforms.RandomCropOrPad": lambda one: RandomCropOrPad(one.size, one.fill, one.padding_mode),
    "timm.data.transforms.TrimBorder": lambda one: TrimBorder(one.border_size),
    "timm.data.random_erasing.RandomErasing": _random_erasing,
    "timm.data.auto_augment.RandAugment": _rand_augment,
    "timm.data.auto_augment.AutoAugment": _auto_augment,
}
