"""The steps after the device split, ready to run on batches of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.device.steps import apply
from rekindle.prepare.steps.step import Step, Uniforms
from rekindle.prepare.steps.to_tensor import Conversion


class DeviceSteps:
    """Runs the last steps of a pipeline on a batch, on the batch's device.

    Attributes:
        first: How many of a sample's uniforms belong to the steps before these.
        uniforms: How many uniforms a sample needs in total, those before included.
        layers_before: How many layers come before these steps.

    """

    def __init__(
        self,
        before: Sequence[Step],
        steps: Sequence[Step],
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
    ) -> None:
        self.first = sum(step.uniforms for step in before)
        self.uniforms = self.first + sum(step.uniforms for step in steps)
        self.layers_before = sum(len(step.layers) for step in before)
        self.steps = tuple(steps)
        converts = next((n for n, step in enumerate(steps) if isinstance(step, Conversion)), None)
        self._channels_stay_last = converts is None
        self._channels_last = channels_last
        if dtype is torch.uint8:  # As on the CPU: without conversion and normalization.
            self.steps = self.steps[:converts]

    def apply(self, images: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
        """The results for N × 3 × height × width bytes, given a row of `uniforms` random numbers for each."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ArgumentError(
                f"the batch is {images.dtype} {tuple(images.shape)}. Give bytes, N × 3 × height × width."
            )
        used = self.first
        for step in self.steps:
            images = apply(step, images, uniforms[:, used : used + step.uniforms])
            used += step.uniforms
        if self._channels_stay_last:
            return images.permute(0, 2, 3, 1).contiguous()
        return images.contiguous(
            memory_format=torch.channels_last if self._channels_last else torch.contiguous_format
        )

    def __repr__(self) -> str:
        return f"DeviceSteps([{', '.join(map(repr, self.steps))}])"
