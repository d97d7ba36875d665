"""The steps after the cut, ready to run on batches of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rekindle.errors import ArgumentError
from rekindle.prepare.batched.steps import apply
from rekindle.prepare.step import Numbers, Step
from rekindle.prepare.tensors import Conversion


class Suffix:
    """Runs the last steps of a pipeline on a batch, wherever that lies.

    Attributes:
        first: How many of a sample's uniform numbers belong to the steps before these.
        uniforms: How many numbers a sample takes in all, those before included.
        layers_before: How many layers come before these.

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
        self._gives_arrays = converts is None
        self._channels_last = channels_last
        if dtype is torch.uint8:  # As on the CPU: what converts and normalises is left out.
            self.steps = self.steps[:converts]

    def apply(self, images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
        """What the steps make of N × 3 × height × width bytes, given a row of `uniforms` numbers for each."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ArgumentError(
                f"the batch is {images.dtype} {tuple(images.shape)}. Give bytes, N × 3 × height × width."
            )
        used = self.first
        for step in self.steps:
            images = apply(step, images, numbers[:, used : used + step.uniforms])
            used += step.uniforms
        if self._gives_arrays:
            return images.permute(0, 2, 3, 1).contiguous()
        return images.contiguous(
            memory_format=torch.channels_last if self._channels_last else torch.contiguous_format
        )

    def __repr__(self) -> str:
        return f"Suffix([{', '.join(map(repr, self.steps))}])"
