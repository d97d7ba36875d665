"""Pinned memory for batches on their way to an accelerator."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch.utils.data import _utils

from rekindle.core.samples import Batch


def pinner(pin_memory: bool, device: str) -> Callable[[Batch], Batch] | None:
    """A function that pins a batch's memory, or None if nothing is pinned.

    Warns where torch's loader does: the device is no longer a choice, and pinning needs an accelerator.
    """
    if not pin_memory:
        return None
    if device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            stacklevel=4,
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )
        return None
    if accelerator.type == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used.",
            stacklevel=4,
        )
        return None
    kind = accelerator.type
    return lambda batch: _utils.pin_memory.pin_memory(batch, kind)  # type: ignore[no-untyped-call]
