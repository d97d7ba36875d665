"""A box of each image, cropped or resized to one size: crops, padding, resizing.

Resizing is Pillow's antialiased method, as in `antialiased_resize`: down the columns first, then along the
rows, rounded in between. Each pass is one product with a matrix of weights for each image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.prepare.device.rows import finest_float, to_device
from rekindle.prepare.opencv import cv2
from rekindle.prepare.steps.antialiased_resize import HAS_NEGATIVE_LOBES, SUPPORT
from rekindle.prepare.steps.crop_window import Window
from rekindle.prepare.steps.parameters import Fill, InterpolationMode

_NEAREST = (InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT)
_EXACT = cv2.INTER_NEAREST_EXACT


def take_windows(
    images: torch.Tensor,
    windows: Sequence[Window],
    mode: InterpolationMode,
    fill: Fill,
    padding_mode: str,
) -> torch.Tensor:
    """The window of each image; all of them have one new size."""
    boxes = np.array([window.box for window in windows], dtype=np.int64)
    size = windows[0].size
    if (boxes[:, 2:] == size).all():
        return _crop(images, boxes[:, :2], size, fill, padding_mode)
    # No step resizes a box that extends beyond the image.
    rows, columns = boxes[:, 0::2], boxes[:, 1::2]
    if mode in _NEAREST:
        return _gather(images, _nearest(rows, size[0]), _nearest(columns, size[1]))
    resized = _resampled(images, rows, size[0], mode)
    return _resampled(resized.mT, columns, size[1], mode).mT.contiguous()


def _crop(
    images: torch.Tensor, corners: NDArray[np.int64], size: tuple[int, int], fill: Fill, padding_mode: str
) -> torch.Tensor:
    rows, columns = (corners[:, axis, None] + np.arange(size[axis]) for axis in (0, 1))
    if padding_mode != "constant":
        source = _SOURCES[padding_mode]
        return _gather(images, source(rows, images.shape[2]), source(columns, images.shape[3]))
    pixels = _gather(images, rows.clip(0, images.shape[2] - 1), columns.clip(0, images.shape[3] - 1))
    inside_rows = (rows >= 0) & (rows < images.shape[2])
    inside_columns = (columns >= 0) & (columns < images.shape[3])
    if inside_rows.all() and inside_columns.all():
        return pixels
    inside = (
        to_device(inside_rows, images.device)[:, None, :, None]
        & to_device(inside_columns, images.device)[:, None, None, :]
    )
    colour = torch.tensor(fill, dtype=torch.uint8, device=images.device).view(1, 3, 1, 1)
    return torch.where(inside, pixels, colour)


def _edge(indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return indices.clip(0, length - 1)


def reflect(indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The source of indices that may lie beyond the edges; the edge itself is not repeated."""
    if length == 1:
        return np.zeros_like(indices)
    folded = indices % (2 * length - 2)
    return np.minimum(folded, 2 * length - 2 - folded)


def _symmetric(indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    folded = indices % (2 * length)
    return np.minimum(folded, 2 * length - 1 - folded)


# The source of indices beyond the edges, by padding mode.
_SOURCES: dict[str, Callable[[NDArray[np.int64], int], NDArray[np.int64]]] = {
    "edge": _edge,
    "reflect": reflect,
    "symmetric": _symmetric,
}


def _nearest(spans: NDArray[np.int64], new: int) -> NDArray[np.int64]:
    """The source of each of `new` indices in spans of (start, length), by OpenCV's own rounding."""
    sources = [
        start + cv2.resize(np.arange(length, dtype=np.float32)[None], (new, 1), interpolation=_EXACT)[0]
        for start, length in spans.tolist()
    ]
    return np.stack(sources).astype(np.int64)


def _gather(images: torch.Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> torch.Tensor:
    """The given rows and columns of each image."""
    device = images.device
    number = torch.arange(len(images), device=device)[:, None, None, None]
    channel = torch.arange(3, device=device)[None, :, None, None]
    return images[
        number,
        channel,
        to_device(rows, device)[:, None, :, None],
        to_device(columns, device)[:, None, None, :],
    ]


def _resampled(
    images: torch.Tensor, spans: NDArray[np.int64], new: int, mode: InterpolationMode
) -> torch.Tensor:
    """`new` rows, each a weighted sum of the rows in an image's span (start, length)."""
    if (spans == (0, new)).all() and images.shape[2] == new:
        return images
    weights = _weights(spans, images.shape[2], new, mode, images.device)
    if mode not in HAS_NEGATIVE_LOBES:  # 1/256ths that add up to 256, since the running sum is rounded
        running = (256 * weights).cumsum(2).add_(0.5).floor_()
        weights = running.diff(dim=2, prepend=torch.zeros_like(running[:, :, :1])) / 256
    sums = weights.float()[:, None] @ images.float()
    return sums.add_(0.5).clamp_(0, 255).to(torch.uint8)


def _weights(
    spans: NDArray[np.int64], old: int, new: int, mode: InterpolationMode, device: torch.device
) -> torch.Tensor:
    """The weight of each of `old` rows in each of `new` ones: N × new × old, adding up to 1."""
    support, kernel = SUPPORT[mode], _FILTERS[mode]
    real = finest_float(device)
    start, length = to_device(spans, device).to(real).T[:, :, None, None]
    scale = length / new
    stretch = scale.clamp_min(1)
    centre = (torch.arange(new, device=device, dtype=real)[:, None] + 0.5) * scale
    first = (centre - support * stretch + 0.5).floor().clamp_min(0)
    last = torch.minimum((centre + support * stretch + 0.5).floor(), length)
    row = torch.arange(old, device=device, dtype=real) - start
    weights = kernel(((row + 0.5 - centre) / stretch).abs_())
    weights = torch.where((row >= first) & (row < last), weights, 0)
    return weights / weights.sum(2, keepdim=True)


def _bilinear(x: torch.Tensor) -> torch.Tensor:
    return (1 - x).clamp_min(0)


def _box(x: torch.Tensor) -> torch.Tensor:
    return (x <= 0.5).to(x.dtype)


def _hamming(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 1, torch.sinc(x) * (0.54 + 0.46 * torch.cos(math.pi * x)), 0)


def _bicubic(x: torch.Tensor) -> torch.Tensor:
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _lanczos(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0)


# The weight at a distance, for each of Pillow's filters.
_FILTERS: dict[InterpolationMode, Callable[[torch.Tensor], torch.Tensor]] = {
    InterpolationMode.BILINEAR: _bilinear,
    InterpolationMode.BOX: _box,
    InterpolationMode.HAMMING: _hamming,
    InterpolationMode.BICUBIC: _bicubic,
    InterpolationMode.LANCZOS: _lanczos,
}
