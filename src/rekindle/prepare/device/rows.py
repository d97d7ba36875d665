"""Changing some rows of a batch, and the conversions that all batched operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray


def change_rows(
    images: torch.Tensor,
    rows: NDArray[np.bool_] | NDArray[np.integer] | Sequence[int],
    change: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The batch with `change` applied to these rows (indices, or a bool for each row)."""
    chosen = np.asarray(rows)
    if chosen.dtype == bool:
        chosen = np.flatnonzero(chosen)
    if len(chosen) == 0:
        return images
    if len(chosen) == len(images):
        return change(images)
    where = to_device(chosen.astype(np.int64), images.device)
    return images.index_copy(0, where, change(images.index_select(0, where)))


def to_device(values: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """An array as a tensor on the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()
    return tensor.to(device, non_blocking=True)


def finest_float(device: torch.device) -> torch.dtype:
    """The dtype for arithmetic whose rounding affects pixels; Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def to_bytes(values: torch.Tensor) -> torch.Tensor:
    """The nearest bytes; `values` is overwritten."""
    return values.round_().clamp_(0, 255).to(torch.uint8)
