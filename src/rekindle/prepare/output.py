"""What a pipeline's results are, where all have one shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Output:
    """Shape and dtype of one sample's image, where they are always the same.

    With `channels_last`, the channels are first in `shape` but last in memory, as in torch.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    channels_last: bool
    tensor: bool  # or an array of height × width × 3

    def empty(self, rows: int) -> torch.Tensor:
        """Uninitialised memory for this many samples."""
        if not self.channels_last:
            return torch.empty((rows, *self.shape), dtype=self.dtype)
        channels, height, width = self.shape
        return torch.empty((rows, height, width, channels), dtype=self.dtype).permute(0, 3, 1, 2)
