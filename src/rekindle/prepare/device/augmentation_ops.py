"""The operations of RandAugment, TrivialAugment and AutoAugment on a batch, with one operation for each
image.

Images with the same kind of operation are processed together: all geometric ones by one warp, for instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from rekindle.prepare.device import filters, pixel_ops
from rekindle.prepare.device.affine import warp
from rekindle.prepare.device.rows import change_rows
from rekindle.prepare.steps.augmentation_ops import factor, geometric_matrix
from rekindle.prepare.steps.parameters import Fill, InterpolationMode

Choice: TypeAlias = tuple[str, float]  # name and signed magnitude

_OPERATIONS: dict[str, Callable[[torch.Tensor, list[float]], torch.Tensor]] = {
    "Brightness": lambda images, m: pixel_ops.adjust_brightness(images, list(map(factor, m))),
    "Color": lambda images, m: pixel_ops.adjust_saturation(images, list(map(factor, m))),
    "Contrast": lambda images, m: pixel_ops.adjust_contrast(images, list(map(factor, m))),
    "Sharpness": lambda images, m: filters.adjust_sharpness(images, list(map(factor, m))),
    "Posterize": lambda images, m: pixel_ops.posterize(images, list(map(int, m))),
    "Solarize": pixel_ops.solarize,
    "AutoContrast": lambda images, _: pixel_ops.autocontrast(images),
    "Equalize": lambda images, _: pixel_ops.equalize(images),
    "Invert": lambda images, _: pixel_ops.invert(images),
}


def perform(
    images: torch.Tensor, choices: Sequence[Choice], mode: InterpolationMode, fill: Fill
) -> torch.Tensor:
    """Each image after its operation."""
    height, width = images.shape[2:]
    warped, matrices = [], []
    groups: dict[str, list[int]] = defaultdict(list)
    for row, (name, magnitude) in enumerate(choices):
        matrix = geometric_matrix(name, magnitude, height, width)
        if matrix is not None:
            warped.append(row)
            matrices.append(matrix)
        elif name != "Identity":
            groups[name].append(row)
    result = change_rows(images, warped, lambda some: warp(some, matrices, mode, fill))
    for name, rows in groups.items():
        result = change_rows(result, rows, _with_magnitudes(name, [choices[row][1] for row in rows]))
    return result


def _with_magnitudes(name: str, magnitudes: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda some: _OPERATIONS[name](some, magnitudes)
