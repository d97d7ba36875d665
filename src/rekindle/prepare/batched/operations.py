"""The operations of RandAugment and its kin on a batch of which each image has an operation of its own.

Images that have the same kind of operation are done together: all that move pixels by one warp, for instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from rekindle.prepare.batched import neighbours, values
from rekindle.prepare.batched.rows import change_rows
from rekindle.prepare.batched.warping import warp
from rekindle.prepare.parameters import Fill, InterpolationMode
from rekindle.prepare.policy_space import factor, geometric_matrix

Choice = tuple[str, float]  # name and signed magnitude

_OPERATIONS: dict[str, Callable[[torch.Tensor, list[float]], torch.Tensor]] = {
    "Brightness": lambda images, m: values.adjust_brightness(images, list(map(factor, m))),
    "Color": lambda images, m: values.adjust_saturation(images, list(map(factor, m))),
    "Contrast": lambda images, m: values.adjust_contrast(images, list(map(factor, m))),
    "Sharpness": lambda images, m: neighbours.adjust_sharpness(images, list(map(factor, m))),
    "Posterize": lambda images, m: values.posterize(images, list(map(int, m))),
    "Solarize": values.solarize,
    "AutoContrast": lambda images, _: values.autocontrast(images),
    "Equalize": lambda images, _: values.equalize(images),
    "Invert": lambda images, _: values.invert(images),
}


def perform(
    images: torch.Tensor, choices: Sequence[Choice], mode: InterpolationMode, fill: Fill
) -> torch.Tensor:
    """Each image after its operation."""
    height, width = images.shape[2:]
    moved, matrices = [], []
    groups: dict[str, list[int]] = defaultdict(list)
    for row, (name, magnitude) in enumerate(choices):
        matrix = geometric_matrix(name, magnitude, height, width)
        if matrix is not None:
            moved.append(row)
            matrices.append(matrix)
        elif name != "Identity":
            groups[name].append(row)
    result = change_rows(images, moved, lambda some: warp(some, matrices, mode, fill))
    for name, rows in groups.items():
        result = change_rows(result, rows, _with_magnitudes(name, [choices[row][1] for row in rows]))
    return result


def _with_magnitudes(name: str, magnitudes: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda some: _OPERATIONS[name](some, magnitudes)
