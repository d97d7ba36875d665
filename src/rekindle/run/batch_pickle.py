"""Any batch as bytes: what a collate function returned, with the large arrays beside the pickle, not in it.

Used between our own processes only, never for data that comes from a file.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.samples import Batch, Sample

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Encoded:
    """A pickle and the buffers that it refers to."""

    stream: bytes
    buffers: list[pickle.PickleBuffer]

    @property
    def nbytes(self) -> int:
        """The bytes that `pack` needs."""
        return packed_nbytes(self._sizes())

    def _sizes(self) -> list[int]:
        return [len(self.stream), *(buffer.raw().nbytes for buffer in self.buffers)]

    def pack(self, memory: NDArray[np.uint8]) -> list[int]:
        """Copy everything to `memory`; returns the sizes that `decode` needs."""
        sizes = self._sizes()
        parts: list[bytes | memoryview] = [self.stream, *(buffer.raw() for buffer in self.buffers)]
        for part, size, end in zip(parts, sizes, _end(sizes), strict=True):
            if size:
                start = end - _round_up(size)
                memory[start : start + size] = np.frombuffer(part, dtype=np.uint8)
        return sizes


def encode(value: Batch) -> Encoded:
    """A value of any type that can be sent to another process, as bytes."""
    return _encoded(value, _BatchPickler)


def encode_samples(samples: list[Sample]) -> Encoded:
    """Many samples, as bytes: not one of them takes a file descriptor, as a batch's odd tensors do."""
    return _encoded(samples, _SamplePickler)


def _encoded(value: Batch | list[Sample], pickler: type[_BatchPickler | _SamplePickler]) -> Encoded:
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    # Positional, because that is how multiprocessing's pickler passes its arguments on.
    pickler(file, pickle.HIGHEST_PROTOCOL, True, buffers.append).dump(value)
    return Encoded(file.getvalue(), buffers)


def packed_nbytes(sizes: list[int]) -> int:
    """The bytes that parts of these sizes take in the memory that they are packed into."""
    return _end(sizes)[-1]


def decode(memory: NDArray[np.uint8], sizes: list[int]) -> Batch:
    """The value that was packed into `memory`; its arrays and tensors are views of that memory."""
    parts = []
    for size, end in zip(sizes, _end(sizes), strict=True):
        start = end - _round_up(size)
        parts.append(memory[start : start + size])
    return pickle.loads(parts[0].data, buffers=parts[1:])


def _round_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _end(sizes: list[int]) -> list[int]:
    ends, end = [], 0
    for size in sizes:
        end += _round_up(size)
        ends.append(end)
    return ends


class _BatchPickler(ForkingPickler):
    """Pickles plain tensors as arrays beside the stream; everything else as multiprocessing does."""

    def reducer_override(self, value: object) -> Any:
        return _reduced(value)


class _SamplePickler(pickle.Pickler):
    """Pickles plain tensors as arrays beside the stream; everything else with its bytes."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, torch.Tensor) and value.requires_grad:  # The batch would have a history.
            raise RuntimeError(
                "a batch of samples of which one requires grad cannot be sent from a worker: autograd does "
                "not cross processes. Return tensor.detach(), or load with num_workers=0."
            )
        if isinstance(value, tuple) and type(value).__reduce_ex__ is object.__reduce_ex__:
            make = getattr(type(value), "_make", None)
            if make is not None:  # A named tuple with a `__new__` of its own has been through that once.
                return make, (list(value),), getattr(value, "__dict__", None) or None
        return _reduced(value)


def _reduced(value: object) -> Any:
    if type(value) is not torch.Tensor or not _is_plain(value):
        return NotImplemented
    value = value.resolve_conj().resolve_neg()
    order = None
    if not value.is_contiguous():  # In another order of memory, such as channels_last, it is sent in that.
        stride = value.stride()
        order = sorted(range(value.dim()), key=lambda dim: -stride[dim])
        value = value.permute(order)
        if not value.is_contiguous():  # With gaps, or the same memory several times.
            value, order = value.permute(_inverse(order)), None
    flat = _flat_bytes(value) if value.numel() else None
    return _tensor, (flat, value.dtype, tuple(value.shape), order)


def _inverse(order: list[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]


def _flat_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    whole = tensor.contiguous()
    # Not `view(-1)`: one element counts as contiguous whatever its stride.
    flat: NDArray[np.uint8] = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()
    return flat


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
    )


def _tensor(
    flat: NDArray[np.uint8] | None, dtype: torch.dtype, shape: tuple[int, ...], order: list[int] | None
) -> torch.Tensor:
    if flat is None:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.from_numpy(flat).view(dtype).view(shape)
    return tensor if order is None else tensor.permute(_inverse(order))
