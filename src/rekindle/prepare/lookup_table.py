"""The lookup table of the last steps: their result for each of the 256 values of a channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.prepare import fused_kernel
from rekindle.prepare.steps import point_operations
from rekindle.prepare.steps.step import Step, Value, is_ours
from rekindle.prepare.steps.to_tensor import Conversion, Normalize

_NO_UNIFORMS = np.empty(0)


def lookup_table(steps: Sequence[Step], dtype: torch.dtype | None) -> tuple[fused_kernel.Table | None, int]:
    """The result of conversion and normalization for each value of each channel; and how many steps that is.

    None if the result has a dtype that the kernel cannot write.
    """
    if dtype not in (None, torch.uint8, torch.float32):
        raise ArgumentError(
            f"dtype is {dtype!r}. Give torch.uint8, torch.float32, or None for what the steps produce."
        )
    # The steps themselves compute it, for an image that contains each value once.
    values: Value = np.ascontiguousarray(
        np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (1, 256, 3))
    )
    count = 0
    for step, own in zip(steps, [*map(is_ours, steps)], strict=True):
        if not (own and isinstance(step, Conversion | Normalize)):
            break
        values = step.apply(values, _NO_UNIFORMS)
        count += 1
    if dtype is torch.uint8:
        if count < len(steps):
            raise ArgumentError(
                f"dtype=torch.uint8 skips the conversion to floats, which {steps[count]!r} needs. "
                "Remove that step, or the dtype."
            )
        return fused_kernel.IDENTITY, count
    if not steps:
        if dtype is torch.float32:
            raise ArgumentError(
                "dtype is torch.float32, but no step converts to a tensor: add ToTensor() to the transform."
            )
        return fused_kernel.IDENTITY, 0
    if values.dtype not in (torch.float32, torch.uint8):
        return None, count
    return np.ascontiguousarray(values.numpy().reshape(3, 256)), count


def normalization_of(
    steps: Sequence[Step],
    table: fused_kernel.Table,
    channels_last: bool = False,
    convert: fused_kernel.Convert | None = None,
) -> fused_kernel.Floats:
    """The constants to compute the table's values with; `fused_kernel.USE_TABLE` if that is not exact.

    `convert` is what will compute them; without, that is `fused_kernel.finish`, if its kernel is compiled.
    """
    step = next((step for step in steps if isinstance(step, Normalize)), None)
    given = ((0.0,), (1.0,)) if step is None else (step.mean, step.std)
    mean, std = (np.broadcast_to(np.array(values, dtype=np.float32), 3) for values in given)
    return fused_kernel.normalization(table, mean, std, channels_last, convert)


def by_channel(table: point_operations.Table) -> NDArray[np.uint8]:
    """A table for all channels as one for each."""
    return np.ascontiguousarray(np.broadcast_to(table[:, None], (256, 3)) if table.ndim == 1 else table)
