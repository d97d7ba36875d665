"""How tensors get to a device: on a CUDA stream of their own, or at once where there are no streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

Result = TypeVar("Result")
# Makes the training loop's next work wait for a copy, and keeps these tensors for as long as it takes.
Wait: TypeAlias = Callable[[list[torch.Tensor]], None]


class CopyStream(Protocol):
    """Copies tensors to a device."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; its old memory may be reused at once."""

    def run(self, work: Callable[[], Result]) -> tuple[Result, Wait]:
        """The result of the work, and what to call before it is used: the work may still be under way."""


def copy_stream_to(device: torch.device) -> CopyStream:
    """The fastest way to copy to a device."""
    return CudaCopyStream(device) if device.type == "cuda" else DirectCopy(device)


class DirectCopy:
    """Copies at once. Tensors that are on the device already are not copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)

    def run(self, work: Callable[[], Result]) -> tuple[Result, Wait]:
        return work(), _no_wait


def _no_wait(tensors: list[torch.Tensor]) -> None:
    """Nothing is under way."""


class CudaCopyStream:
    """Copies from pinned memory, without waiting, on a stream beside the training loop's.

    Two things keep memory from being reused too early. The pinned copy belongs to torch's host allocator,
    which waits for the stream that reads it. The tensors on the device are made on this stream and used on
    another: `record_stream` tells their allocator, which then waits for both.
    """

    # `cuda` is a module with torch.cuda's functions: tests give one that records its calls.
    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def run(self, work: Callable[[], Result]) -> tuple[Result, Wait]:
        with self._cuda.stream(self._stream):
            result, copied = work(), self._stream.record_event()

        def wait(tensors: list[torch.Tensor]) -> None:
            current = self._cuda.current_stream(self._device)
            current.wait_event(copied)
            for tensor in tensors:
                tensor.record_stream(current)

        return result, wait
