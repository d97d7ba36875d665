"""With the same image and parameters, steps return torchvision's result on Pillow images.

TOLERANCES has the largest mean difference in grey levels that an image may have, for each operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle.transforms as rk
from light_torchvision import functional, transforms
from photographs import photographs
from rekindle.prepare.steps import augmentation_ops
from rekindle.prepare.steps.blur_and_sharpness import adjust_sharpness, gaussian_blur
from rekindle.prepare.steps.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    grey,
)
from rekindle.prepare.steps.geometry import affine, rotate
from rekindle.prepare.steps.parameters import InterpolationMode

NO_NUMBERS = np.empty(0)
BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
MODES = {mode: transforms.InterpolationMode(mode.value) for mode in InterpolationMode}
F = functional

Case = tuple[float, Callable[[Any], Any], Callable[[Any], Any]]  # tolerance, ours, torchvision's


def resize_cases() -> dict[str, Case]:
    sizes = {"down": (96, 128), "one edge": 224, "up": (700, 900), "flat": (64, 600)}
    tolerances = dict.fromkeys(InterpolationMode, 0.3) | {
        InterpolationMode.NEAREST: 0.0,
        InterpolationMode.NEAREST_EXACT: 0.0,
        InterpolationMode.LANCZOS: 0.6,
    }
    return {
        f"Resize {mode.value} {name}": (
            tolerances[mode],
            rk.Resize(size, interpolation=mode),
            transforms.Resize(size, interpolation=MODES[mode]),
        )
        for mode in InterpolationMode
        for name, size in sizes.items()
        if mode is not InterpolationMode.NEAREST_EXACT  # which torchvision does not have for Pillow images
    }


def warp_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for mode, tolerance in ((InterpolationMode.NEAREST, 0.3), (BILINEAR, 0.75), (BICUBIC, 2.0)):
        for angle in (-30.0, 7.3, 90.0, 180.0, 135.0):
            for expand in (False, True):
                cases[f"rotate {mode.value} {angle} {expand}"] = (
                    tolerance,
                    lambda image, a=angle, m=mode, e=expand: rotate(image, a, m, e, fill=(7, 8, 9)),
                    lambda image, a=angle, m=mode, e=expand: F.rotate(image, a, MODES[m], e, fill=[7, 8, 9]),
                )
        for amounts in (
            (0.0, (0, 0), 1.0, (17.0, 0.0)),
            (11.0, (-20, 35), 1.3, (5.0, -8.0)),
            (0.0, (31, -9), 1.0, (0.0, 0.0)),
        ):
            cases[f"affine {mode.value} {amounts}"] = (
                tolerance,
                lambda image, a=amounts, m=mode: affine(image, *a, m, (3, 200, 100)),
                lambda image, a=amounts, m=mode: F.affine(
                    image, a[0], list(a[1]), a[2], list(a[3]), MODES[m], fill=[3, 200, 100]
                ),
            )
    return cases


def colour_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for factor in (0.0, 0.1, 0.6, 1.0, 1.4, 1.9):
        for ours, name, tolerance in (
            (adjust_brightness, "adjust_brightness", 0.1),
            (adjust_contrast, "adjust_contrast", 0.1),
            (adjust_saturation, "adjust_saturation", 0.5),
            (adjust_sharpness, "adjust_sharpness", 0.5),
        ):
            cases[f"{name} {factor}"] = (
                tolerance,
                lambda image, f=factor, o=ours: o(image, f),
                lambda image, f=factor, n=name: getattr(F, n)(image, f),
            )
    for factor in (2.5, 5.0, 7.3):
        cases[f"adjust_sharpness {factor}"] = (
            0.05,
            lambda image, f=factor: adjust_sharpness(image, f),
            lambda image, f=factor: F.adjust_sharpness(image, f),
        )
    for shift in (-0.5, -0.1, 0.03, 0.25, 0.5):
        cases[f"adjust_hue {shift}"] = (
            1.0,
            lambda image, s=shift: adjust_hue(image, s),
            lambda image, s=shift: F.adjust_hue(image, s),
        )
    for kernel, sigma in (((3, 3), 0.4), ((5, 5), 1.0), ((23, 23), 2.0), ((3, 23), 3.0), ((9, 1), 2.0)):
        cases[f"gaussian_blur {kernel} {sigma}"] = (
            0.5,
            lambda image, k=kernel, s=sigma: gaussian_blur(image, k, s),
            lambda image, k=kernel, s=sigma: F.gaussian_blur(image, [*k], [s, s]),
        )
    cases["grey"] = (0.1, grey, lambda image: F.rgb_to_grayscale(image, 3))
    return cases


def exact_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {
        "CenterCrop": (0, rk.CenterCrop((111, 124)), transforms.CenterCrop((111, 124))),
        "CenterCrop larger": (0, rk.CenterCrop((901, 100)), transforms.CenterCrop((901, 100))),
        "flip": (0, rk.RandomHorizontalFlip(1), transforms.RandomHorizontalFlip(1)),
        "vertical flip": (0, rk.RandomVerticalFlip(1), transforms.RandomVerticalFlip(1)),
        "Invert": (0, rk.Invert(), F.invert),
        "AutoContrast": (0, rk.AutoContrast(), F.autocontrast),
        "Equalize": (0, rk.Equalize(), F.equalize),
        "RandomInvert": (0, rk.RandomInvert(1), transforms.RandomInvert(1)),
        "RandomGrayscale none": (0, rk.RandomGrayscale(0), transforms.RandomGrayscale(0)),
    }
    for mode in ("constant", "edge", "reflect", "symmetric"):
        for padding in (5, [3, 11], [1, 2, 30, 4], [-7, 4, 3, -2]):
            cases[f"Pad {mode} {padding}"] = (
                0,
                rk.Pad(padding, fill=(1, 2, 3), padding_mode=mode),
                transforms.Pad(padding, fill=(1, 2, 3), padding_mode=mode),
            )
    for threshold in (0, 1, 128, 178.5, 255, 256):
        cases[f"Solarize {threshold}"] = (
            0,
            rk.Solarize(threshold),
            lambda image, t=threshold: F.solarize(image, t),
        )
    for bits in range(1, 9):
        cases[f"Posterize {bits}"] = (0, rk.Posterize(bits), lambda image, b=bits: F.posterize(image, b))
    return cases


TOLERANCES: dict[str, Case] = exact_cases() | resize_cases() | warp_cases() | colour_cases()


@pytest.mark.parametrize("name", TOLERANCES)
def test_a_deterministic_operation_returns_torchvisions_result(name: str) -> None:
    tolerance, ours, theirs = TOLERANCES[name]
    assert tolerance <= 2
    for image in photographs():
        before = image.copy()
        result = ours(image)
        expected = np.asarray(theirs(Image.fromarray(image)))
        assert result.shape == expected.shape
        assert result.dtype == np.uint8
        assert np.abs(result.astype(np.int16) - expected).mean() <= tolerance
        assert np.array_equal(image, before), "the image was changed"


POLICY_SPACES = {
    "RandAugment": (
        augmentation_ops.RANDAUGMENT,
        transforms.RandAugment()._augmentation_space(31, (224, 331)),
        31,
    ),
    "AutoAugment": (
        augmentation_ops.AUTOAUGMENT,
        transforms.AutoAugment()._augmentation_space(10, (224, 331)),
        10,
    ),
    "TrivialAugmentWide": (
        augmentation_ops.TRIVIALAUGMENT_WIDE,
        transforms.TrivialAugmentWide()._augmentation_space(31),
        31,
    ),
}


@pytest.mark.parametrize("policy", POLICY_SPACES)
def test_a_policy_has_torchvisions_operations_magnitudes_and_signs(policy: str) -> None:
    ours, theirs, bins = POLICY_SPACES[policy]
    assert list(ours) == list(theirs)
    for name, (magnitudes, signed) in theirs.items():
        levels = [augmentation_ops.magnitude(ours[name], level, bins, 224, 331) for level in range(bins)]
        assert levels == (magnitudes.tolist() if magnitudes.ndim else [0.0] * bins)
        assert ours[name].signed == signed


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_autoaugment_has_torchvisions_pairs(policy: str) -> None:
    from rekindle.prepare.steps.auto_augment import POLICIES

    theirs = transforms.AutoAugment(transforms.AutoAugmentPolicy(policy)).policies
    assert list(POLICIES[rk.AutoAugmentPolicy(policy)]) == theirs


@pytest.mark.parametrize("policy", POLICY_SPACES)
def test_a_policys_operations_do_what_torchvisions_do(policy: str) -> None:
    from torchvision.transforms.autoaugment import _apply_op

    ours, _, bins = POLICY_SPACES[policy]
    nearest = InterpolationMode.NEAREST
    for image in photographs()[:4]:
        small = rk.Resize((224, 331))(image)
        for name, strength in ours.items():
            for level in (0, bins // 3, bins - 1):
                amount = augmentation_ops.magnitude(strength, level, bins, 224, 331)
                for signed in {amount, -amount if strength.signed else amount}:
                    result = augmentation_ops.perform(small, name, signed, nearest, (0, 0, 0))
                    expected = np.asarray(
                        _apply_op(Image.fromarray(small), name, signed, MODES[nearest], None)
                    )
                    difference = np.abs(result.astype(np.int16) - expected).mean()
                    assert difference <= 0.5, (name, signed)


def test_conversion_and_normalization_return_torchvisions_result() -> None:
    image = photographs()[0]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ours = rk.Compose([rk.ToTensor(), rk.Normalize(mean, std)])
    theirs = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    assert torch.equal(ours(image), theirs(Image.fromarray(image)))
    tensor = rk.PILToTensor()(image)
    assert torch.equal(tensor, transforms.PILToTensor()(Image.fromarray(image)))
    for dtype in (torch.float16, torch.float64, torch.uint8):
        converted = transforms.ConvertImageDtype(dtype)(tensor)
        assert torch.equal(rk.ConvertImageDtype(dtype)(image), converted)
        assert torch.equal(
            rk.ConvertImageDtype(torch.uint8)(converted), transforms.ConvertImageDtype(torch.uint8)(converted)
        )


def test_resize_has_torchvisions_sizes() -> None:
    for height, width in ((375, 500), (500, 375), (37, 1000), (64, 64)):
        image = Image.new("RGB", (width, height))
        for size, max_size in ((232, None), ([100], None), (50, 70), ([20, 90], None)):
            theirs = transforms.Resize(size, max_size=max_size)(image)
            assert rk.Resize(size, max_size=max_size).window(height, width).size == (
                theirs.height,
                theirs.width,
            )


def test_pixels_outside_the_box_do_not_contribute_to_a_resized_crop() -> None:
    image = photographs()[1]
    step = rk.RandomResizedCrop(96, scale=(0.2, 0.3))
    uniforms = np.array([0.5, 0.5, 0.3, 0.6])
    top, left, height, width = step.window(*image.shape[:2], uniforms).box
    theirs = F.resized_crop(Image.fromarray(image), top, left, height, width, [96, 96])
    difference = np.abs(step.apply(image, uniforms).astype(np.int16) - np.asarray(theirs)).mean()
    assert difference <= 0.3
    assert math.isclose(height * width / (image.shape[0] * image.shape[1]), 0.25, rel_tol=0.02)


@pytest.mark.parametrize(
    ("mode", "tolerance"), [(InterpolationMode.NEAREST, 2.5), (BILINEAR, 3.0), (BICUBIC, 6.5)]
)
@pytest.mark.parametrize("angle", [-30.0, 7.3, 15.0, 135.0])
def test_small_images_are_rotated_within_the_tolerance_that_is_documented(
    mode: InterpolationMode, tolerance: float, angle: float
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    ours = rotate(pixels, angle, mode, fill=(255, 255, 255))
    theirs = F.rotate(Image.fromarray(pixels), angle, MODES[mode], fill=[255, 255, 255])
    difference = np.abs(ours.astype(int) - np.asarray(theirs))
    assert difference.mean() <= tolerance
    inside = difference[12:20, 12:20]
    assert mode is not BILINEAR or inside.max() <= 1
