"""Filters that combine each pixel with its neighbours: sharpness and blur."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from rekindle.prepare.device.crops import reflect
from rekindle.prepare.device.rows import to_bytes, to_device
from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps.colour import TRUNCATE


def adjust_sharpness(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Each image with `factor` times its difference from a smoothed one; edges stay as they are."""
    if images.shape[2] < 3 or images.shape[3] < 3:
        return images
    values = images.float()
    smooth = functional.avg_pool2d(values, 3, stride=1).round_()
    factor = to_device(np.asarray(factors, dtype=np.float32), images.device).view(-1, 1, 1, 1)
    rest = 1 - factor
    inner = values[:, :, 1:-1, 1:-1] * (factor + rest * 4 / 13) + smooth * (rest * 9 / 13) + TRUNCATE
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = to_bytes(inner)
    return result


def gaussian_blur(
    images: torch.Tensor, kernel_size: tuple[int, int], deviations: Sequence[float]
) -> torch.Tensor:
    """Each image blurred by a kernel of this width and height, reflected at its edges."""
    count, channels, height, width = images.shape
    rows, columns = (
        _reflected(length, size // 2) for length, size in zip((height, width), kernel_size[::-1], strict=True)
    )
    device = images.device
    padded = images[:, :, to_device(rows, device)][:, :, :, to_device(columns, device)].float()
    planes = padded.view(1, count * channels, *padded.shape[2:])
    down, along = (
        to_device(
            np.stack([cv2.getGaussianKernel(size, s, cv2.CV_32F)[:, 0] for s in deviations]), device
        ).repeat_interleave(channels, 0)
        for size in kernel_size[::-1]
    )
    planes = functional.conv2d(planes, down[:, None, :, None], groups=count * channels)
    planes = functional.conv2d(planes, along[:, None, None, :], groups=count * channels)
    return to_bytes(planes.view(images.shape))


def _reflected(length: int, border: int) -> NDArray[np.int64]:
    """The source index of each position in a row with a border; the edge itself is not repeated."""
    return reflect(np.arange(-border, length + border), length)
