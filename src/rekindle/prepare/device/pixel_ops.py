"""Operations on each pixel alone: lookup tables, and matrices on colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.prepare.device.rows import change_rows, finest_float, to_bytes, to_device
from rekindle.prepare.steps import colour, point_operations
from rekindle.prepare.steps.point_operations import Table

# ITU-R 601-2 in 1/32768ths, as OpenCV has it, and in 1/1000ths.
_GREY_BITS = 15
_GREY = (9798, 19235, 3735)
_GREY_THOUSANDTHS = (299, 587, 114)


def look_up(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Each value replaced by its entry in a table; one of 3 × 256 for each image."""
    return tables.gather(2, images.flatten(2).long()).view(images.shape)


def look_up_fixed(images: torch.Tensor, tables: Sequence[Table]) -> torch.Tensor:
    """The same for tables that do not depend on the images: one for all of them, or one for each."""
    stacked = np.stack([np.broadcast_to(table.reshape(256, -1).T, (3, 256)) for table in tables])
    on_device = to_device(stacked, images.device)
    return look_up(images, on_device.expand(len(images), 3, 256))


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """The darkest value of each channel becomes 0 and the brightest 255."""
    flat = images.flatten(2)
    low, high = (
        edge(flat, 2, keepdim=True).to(finest_float(images.device)) for edge in (torch.amin, torch.amax)
    )
    values = torch.arange(256, device=images.device, dtype=low.dtype)
    scale = torch.full_like(low, 255) / (high - low).clamp_min(1)  # torch turns `255 / …` into a product
    stretched = (values * scale - low * scale).clamp_(0, 255)
    return look_up(images, torch.where(high > low, stretched, values).to(torch.uint8))


def equalize(images: torch.Tensor) -> torch.Tensor:
    """The values of each channel become about equally frequent."""
    flat = images.flatten(2).long()
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    values = torch.arange(256, device=images.device)
    last = torch.where(counts > 0, values, 0).amax(2, keepdim=True)
    step = (flat.shape[2] - counts.gather(2, last)) // 255
    table = (step // 2 + counts.cumsum(2) - counts) // step.clamp_min(1)
    # In a channel with a single value that value is the last one, so its step is 0, too.
    return look_up(images, torch.where(step > 0, table.clamp_max(255), values).to(torch.uint8))


def transform_colours(images: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """The colours of each image's pixels multiplied by its matrix, 3 × 4."""
    wide = matrices[..., None, None]
    colours = wide[:, :, 3].expand(-1, -1, *images.shape[2:]).clone()
    for channel in range(3):
        colours.addcmul_(wide[:, :, channel], images[:, channel, None].to(colours.dtype))
    return to_bytes(colours)


def adjust_brightness(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Each image `factor` times as bright."""
    return transform_colours(images, _stacked(colour.brightness_matrix, factors, images.device))


def adjust_contrast(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Each image with `factor` times the distance of its values from its mean grey."""
    matrices = _stacked(colour.contrast_matrix, factors, images.device)
    sums = images.flatten(2).sum(2, dtype=torch.int64)
    pixels = images.shape[2] * images.shape[3]
    weighted = (sums * torch.tensor(_GREY_THOUSANDTHS, device=images.device)).sum(1)
    means = (2 * weighted + 1000 * pixels) // (2000 * pixels)
    rest = 1 - to_device(np.asarray(factors, dtype=np.float32), images.device)
    matrices[:, :, 3] += (rest * means)[:, None]
    return transform_colours(images, matrices)


def adjust_saturation(images: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    """Each image with `factor` times the distance of its colours from their grey."""
    matrices = _stacked(colour.saturation_matrix, factors, images.device)
    without = np.asarray(factors) == 0
    return change_rows(transform_colours(images, matrices), without, lambda _: _some_grey(images, without))


def _some_grey(images: torch.Tensor, rows: NDArray[np.bool_]) -> torch.Tensor:
    return grey(images[to_device(rows, images.device)])


def adjust_hue(images: torch.Tensor, shifts: Sequence[float]) -> torch.Tensor:
    """Each image with its hues shifted by a fraction of a full circle; via 8-bit HSV, as OpenCV does."""
    offsets = to_device(np.array([colour.hue_offset(shift) for shift in shifts]), images.device)
    red, green, blue = images.int().unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    saturation = _divided(spread, 255.0, value)
    hue = torch.where(
        value == red,
        green - blue,
        torch.where(value == green, blue - red + 2 * spread, red - green + 4 * spread),
    )
    hue = _divided(hue, 256 / 6, spread)
    hue = torch.where(hue < 0, hue + 256, hue).clamp_(0, 255)
    shifted = (hue + offsets[:, None, None]) % 256
    return _hsv_to_rgb(shifted.float(), saturation.float() / 255, value.float())


def _divided(number: torch.Tensor, scale: float, divisor: torch.Tensor) -> torch.Tensor:
    """`number · scale / divisor`, rounded, in OpenCV's 1/4096ths; 0 where the divisor is 0."""
    inverse = (scale * 4096 / torch.arange(1, 256, dtype=torch.float64)).round().int()
    table = torch.cat([torch.zeros(1, dtype=torch.int32), inverse]).to(divisor.device)
    return (number * table[divisor.long()] + 2048) >> 12


def _hsv_to_rgb(hue: torch.Tensor, saturation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    sixths = hue * (6 / 255)
    sector = sixths.floor()
    part = sixths - sector
    levels = torch.stack(
        [
            value,
            value * (1 - saturation),
            value * (1 - saturation * part),
            value * (1 - saturation * (1 - part)),
        ],
        dim=1,
    )
    # Which of the levels red, green and blue take in each sixth of the circle.
    order = torch.tensor([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]])
    chosen = order.to(hue.device)[sector.long() % 6].permute(0, 3, 1, 2)
    return to_bytes(levels.gather(1, chosen))


def grey(images: torch.Tensor) -> torch.Tensor:
    """The grey values of the images, in three equal channels."""
    weights = torch.tensor(_GREY, dtype=torch.int32, device=images.device).view(1, 3, 1, 1)
    sums = (images.int() * weights).sum(1, keepdim=True, dtype=torch.int32)
    bright = (sums + (1 << (_GREY_BITS - 1))) >> _GREY_BITS
    return bright.to(torch.uint8).expand(images.shape).contiguous()


def posterize(images: torch.Tensor, bits: Sequence[int]) -> torch.Tensor:
    """Each image with only so many of the highest bits of its values."""
    return look_up_fixed(images, [point_operations.posterize_table(count) for count in bits])


def solarize(images: torch.Tensor, thresholds: Sequence[float]) -> torch.Tensor:
    """Each image with its values of at least a threshold inverted."""
    return look_up_fixed(images, [point_operations.solarize_table(threshold) for threshold in thresholds])


def invert(images: torch.Tensor) -> torch.Tensor:
    """Every value inverted: 255 − value."""
    return 255 - images


def _stacked(
    matrix: Callable[[float], colour.Matrix], factors: Sequence[float], device: torch.device
) -> torch.Tensor:
    return to_device(np.stack([matrix(factor) for factor in factors]), device)
