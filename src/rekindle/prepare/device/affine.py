"""Affine warps of a batch with one matrix for each image: rotation, shear, translation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rekindle.prepare.device.rows import to_bytes, to_device
from rekindle.prepare.steps.geometry import Matrix, between_centres
from rekindle.prepare.steps.parameters import Fill, InterpolationMode

_CUBIC = -0.75  # OpenCV's parameter of the cubic kernel


def warp(
    images: torch.Tensor, matrices: Sequence[Matrix], mode: InterpolationMode, fill: Fill
) -> torch.Tensor:
    """Each image warped by its matrix; `fill` where that falls outside the source."""
    x, y = _coordinates(images, matrices, mode)
    if mode is InterpolationMode.NEAREST:
        pixels, inside = _pixels(images, x.round().long(), y.round().long())
        return torch.where(inside, pixels, _colour(images, fill).to(torch.uint8))
    left, above = x.floor(), y.floor()
    weights_x, weights_y = _weights((x - left).float(), mode), _weights((y - above).float(), mode)
    first = 0 if mode is InterpolationMode.BILINEAR else -1
    background = _colour(images, fill)
    total = torch.zeros(images.shape, dtype=torch.float32, device=images.device)
    for row, weight_y in enumerate(weights_y):
        for column, weight_x in enumerate(weights_x):
            pixels, inside = _pixels(images, left.long() + first + column, above.long() + first + row)
            total += torch.where(inside, pixels.float(), background) * (weight_x * weight_y)[:, None]
    return to_bytes(total)


def _coordinates(
    images: torch.Tensor, matrices: Sequence[Matrix], mode: InterpolationMode
) -> tuple[torch.Tensor, torch.Tensor]:
    """The source coordinates of each pixel of the result: x and y, N × height × width."""
    height, width = images.shape[2:]
    stacked = np.stack([between_centres(matrix, mode) for matrix in matrices])
    m = to_device(stacked, images.device)[:, :, :, None]
    xs, ys = (torch.arange(size, device=images.device, dtype=m.dtype) for size in (width, height))
    mapped = (m[:, :, 1] * ys + m[:, :, 2])[:, :, :, None] + (m[:, :, 0] * xs)[:, :, None, :]
    return mapped[:, 0], mapped[:, 1]


def _pixels(images: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The pixels at these coordinates, and which coordinates lie inside the image."""
    height, width = images.shape[2:]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    index = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    index = index.flatten(1)[:, None].expand(-1, 3, -1)
    return images.flatten(2).gather(2, index).view(images.shape), inside[:, None]


def _weights(t: torch.Tensor, mode: InterpolationMode) -> list[torch.Tensor]:
    """The weights of the pixels around a coordinate, which lies `t` to the right of (below) one of them."""
    if mode is InterpolationMode.BILINEAR:
        return [1 - t, t]
    a = _CUBIC
    outer = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
    left = ((a + 2) * t - (a + 3)) * t * t + 1
    right = ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1
    return [outer, left, right, 1 - outer - left - right]


def _colour(images: torch.Tensor, fill: Fill) -> torch.Tensor:
    return torch.tensor(fill, dtype=torch.float32, device=images.device).view(1, 3, 1, 1)
