"""How tensors get to a device: on a CUDA stream of their own, or at once where there are no streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

Result = TypeVar("Result")


class Lane(Protocol):
    """A way to a device."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor over there; its old memory may be used again at once."""

    def run(self, work: Callable[[], Result]) -> tuple[Result, Any]:
        """What the work gives, and a mark: it may still be under way until that is passed."""

    def pass_mark(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        """Let the training loop's work wait for the mark, and keep these tensors for as long as it lasts."""


def lane_to(device: torch.device) -> Lane:
    """The quickest way to a device."""
    return CudaLane(device) if device.type == "cuda" else DirectLane(device)


class DirectLane:
    """Copies at once. What is there already is not copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)

    def run(self, work: Callable[[], Result]) -> tuple[Result, None]:
        return work(), None

    def pass_mark(self, mark: None, tensors: list[torch.Tensor]) -> None:
        """Nothing is ever under way."""


class CudaLane:
    """Copies from page-locked memory, without waiting, on a stream beside the training loop's.

    Two things keep memory from being used again too early. The page-locked copy belongs to torch's host
    allocator, which waits for the stream that reads it. The tensors over there are made on this stream and
    used on another: `record_stream` tells their allocator, which then waits for both.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def run(self, work: Callable[[], Result]) -> tuple[Result, Any]:
        with self._cuda.stream(self._stream):
            return work(), self._stream.record_event()

    def pass_mark(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        current = self._cuda.current_stream(self._device)
        current.wait_event(mark)
        for tensor in tensors:
            tensor.record_stream(current)
