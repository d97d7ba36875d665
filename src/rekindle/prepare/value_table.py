"""What the steps make of each of the 256 values that a pixel's channel can have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.prepare import kernel
from rekindle.prepare.point_operations import Table
from rekindle.prepare.step import Step
from rekindle.prepare.tensors import Conversion, Normalize


def value_table(steps: Sequence[Step], dtype: torch.dtype | None) -> tuple[NDArray[Any], int]:
    """What conversion and normalisation make of each value of each channel; and how many steps that is."""
    if dtype not in (None, torch.uint8, torch.float32):
        raise ArgumentError(
            f"dtype is {dtype}. Give torch.uint8, torch.float32, or None for what the steps make."
        )
    # The steps say it themselves, of an image that has each value once.
    values: Any = np.ascontiguousarray(
        np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (1, 256, 3))
    )
    nothing = np.empty(0)
    count = 0
    for step in steps:
        if not isinstance(step, Conversion | Normalize):
            break
        # In-place normalisation would be fine too, were it not done to the table of the step before.
        values = step.apply(values, nothing)
        count += 1
    if dtype is torch.uint8:
        if count < len(steps):
            raise ArgumentError(
                f"dtype=torch.uint8 leaves out the conversion to floats, which {steps[count]!r} needs. "
                "Leave that step out as well, or the dtype."
            )
        return kernel.IDENTITY, count
    if not steps:
        if dtype is torch.float32:
            raise ArgumentError(
                "dtype is torch.float32, but nothing converts: put ToTensor() into the transform."
            )
        return kernel.IDENTITY, 0
    if values.dtype not in (torch.float32, torch.uint8):  # Types that the kernel does not know.
        return np.empty((3, 256), dtype=np.float64), count
    return np.ascontiguousarray(values.numpy().reshape(3, 256)), count


def normal_of(steps: Sequence[Step], table: NDArray[Any]) -> NDArray[np.float32]:
    """What the kernel can compute the table's values with; `kernel.NO_NORMAL` if it has to look them up."""
    step = next((step for step in steps if isinstance(step, Normalize)), Normalize([0.0], [1.0]))
    mean, std = (np.broadcast_to(np.array(values, dtype=np.float32), 3) for values in (step.mean, step.std))
    return kernel.normal(table, mean, std)


def by_channel(table: Table) -> NDArray[np.uint8]:
    """A table for all channels as one for each."""
    return np.ascontiguousarray(np.broadcast_to(table[:, None], (256, 3)) if table.ndim == 1 else table)
