"""What happens to each pixel with those around it: sharpness and blur."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch.nn import functional

from rekindle.prepare.batched.rows import to_bytes, to_device

_CUT_OFF = -0.4999  # as in `blur_and_sharpness`


def adjust_sharpness(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Each image with so many times its difference from a smooth one; edges stay as they are."""
    if images.shape[2] < 3 or images.shape[3] < 3:
        return images
    values = images.float()
    smooth = functional.avg_pool2d(values, 3, stride=1).round_()
    factor = to_device(np.asarray(factors, dtype=np.float32), images.device).view(-1, 1, 1, 1)
    rest = 1 - factor
    inner = values[:, :, 1:-1, 1:-1] * (factor + rest * 4 / 13) + smooth * (rest * 9 / 13) + _CUT_OFF
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = to_bytes(inner)
    return result


def gaussian_blur(
    images: torch.Tensor, kernel_size: tuple[int, int], deviations: Sequence[float]
) -> torch.Tensor:
    """Each image blurred by a kernel of this height and width, mirrored at its edges."""
    count, channels, height, width = images.shape
    rows, columns = (
        _mirrored(length, size // 2) for length, size in zip((height, width), kernel_size, strict=True)
    )
    device = images.device
    padded = images[:, :, to_device(rows, device)][:, :, :, to_device(columns, device)].float()
    planes = padded.view(1, count * channels, *padded.shape[2:])
    down, along = (
        to_device(
            np.stack([cv2.getGaussianKernel(size, s, cv2.CV_32F)[:, 0] for s in deviations]), device
        ).repeat_interleave(channels, 0)
        for size in kernel_size
    )
    planes = functional.conv2d(planes, down[:, None, :, None], groups=count * channels)
    planes = functional.conv2d(planes, along[:, None, None, :], groups=count * channels)
    return to_bytes(planes.view(images.shape))


def _mirrored(length: int, border: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Where each place of a row with a border comes from; the edge itself is not repeated."""
    places = np.arange(-border, length + border)
    period = max(2 * (length - 1), 1)
    folded = places % period
    return np.minimum(folded, period - folded) if length > 1 else np.zeros_like(places)
