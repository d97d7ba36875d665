"""Boxes of images, each its own, cut out or resized to one size: crops, padding, resizing.

Resizing is Pillow's antialiased method, as in `resampling`: down the columns first, then along the rows,
rounded in between. Each pass is one product with a matrix of weights for each image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.prepare.batched.rows import finest_float, to_device
from rekindle.prepare.parameters import Fill, InterpolationMode
from rekindle.prepare.window import Window

_NEAREST = (InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT)
_EXACT = cv2.INTER_NEAREST_EXACT
_HAS_NEGATIVE_PARTS = (InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)


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
        return _cut(images, boxes[:, :2], size, fill, padding_mode)
    # No step resizes what reaches out of the image.
    rows, columns = boxes[:, 0::2], boxes[:, 1::2]
    if mode in _NEAREST:
        return _gather(images, _nearest(rows, size[0]), _nearest(columns, size[1]))
    resized = _resampled(images, rows, size[0], mode)
    return _resampled(resized.mT, columns, size[1], mode).mT.contiguous()


def _cut(
    images: torch.Tensor, corners: NDArray[np.int64], size: tuple[int, int], fill: Fill, padding_mode: str
) -> torch.Tensor:
    rows, columns = (corners[:, axis, None] + np.arange(size[axis]) for axis in (0, 1))
    if padding_mode != "constant":
        source = _SOURCES[padding_mode]
        return _gather(images, source(rows, images.shape[2]), source(columns, images.shape[3]))
    made = _gather(images, rows.clip(0, images.shape[2] - 1), columns.clip(0, images.shape[3] - 1))
    inside_rows = (rows >= 0) & (rows < images.shape[2])
    inside_columns = (columns >= 0) & (columns < images.shape[3])
    if inside_rows.all() and inside_columns.all():
        return made
    inside = (
        to_device(inside_rows, images.device)[:, None, :, None]
        & to_device(inside_columns, images.device)[:, None, None, :]
    )
    colour = torch.tensor(fill, dtype=torch.uint8, device=images.device).view(1, 3, 1, 1)
    return torch.where(inside, made, colour)


def _edge(places: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return places.clip(0, length - 1)


def _reflect(places: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    if length == 1:
        return np.zeros_like(places)
    folded = places % (2 * length - 2)
    return np.minimum(folded, 2 * length - 2 - folded)


def _symmetric(places: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    folded = places % (2 * length)
    return np.minimum(folded, 2 * length - 1 - folded)


# Where the places beyond the edges come from.
_SOURCES: dict[str, Callable[[NDArray[np.int64], int], NDArray[np.int64]]] = {
    "edge": _edge,
    "reflect": _reflect,
    "symmetric": _symmetric,
}


def _nearest(spans: NDArray[np.int64], new: int) -> NDArray[np.int64]:
    """The source of each of `new` places in spans of (start, length): what OpenCV makes of the places."""
    made = [
        start + cv2.resize(np.arange(length, dtype=np.float32)[None], (new, 1), interpolation=_EXACT)[0]
        for start, length in spans.tolist()
    ]
    return np.stack(made).astype(np.int64)


def _gather(images: torch.Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> torch.Tensor:
    """From each image its own rows and columns."""
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
    if mode not in _HAS_NEGATIVE_PARTS:  # 1/256ths that add up to 256, as the running sum is rounded
        given = (256 * weights).cumsum(2).add_(0.5).floor_()
        weights = given.diff(dim=2, prepend=torch.zeros_like(given[:, :, :1])) / 256
    made = weights.float()[:, None] @ images.float()
    return made.add_(0.5).clamp_(0, 255).to(torch.uint8)


def _weights(
    spans: NDArray[np.int64], old: int, new: int, mode: InterpolationMode, device: torch.device
) -> torch.Tensor:
    """What each of `old` rows counts for in each of `new` ones: N × new × old, adding up to 1."""
    support, curve = _FILTERS[mode]
    real = finest_float(device)
    start, length = to_device(spans, device).to(real).T[:, :, None, None]
    scale = length / new
    stretch = scale.clamp_min(1)
    centre = (torch.arange(new, device=device, dtype=real)[:, None] + 0.5) * scale
    first = (centre - support * stretch + 0.5).floor().clamp_min(0)
    last = torch.minimum((centre + support * stretch + 0.5).floor(), length)
    place = torch.arange(old, device=device, dtype=real) - start
    weights = curve(((place + 0.5 - centre) / stretch).abs_())
    weights = torch.where((place >= first) & (place < last), weights, 0)
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


# How far each of Pillow's filters reaches, in pixels, and its weight at a distance.
_FILTERS: dict[InterpolationMode, tuple[float, Callable[[torch.Tensor], torch.Tensor]]] = {
    InterpolationMode.BILINEAR: (1.0, _bilinear),
    InterpolationMode.BOX: (0.5, _box),
    InterpolationMode.HAMMING: (1.0, _hamming),
    InterpolationMode.BICUBIC: (2.0, _bicubic),
    InterpolationMode.LANCZOS: (3.0, _lanczos),
}
