"""Batches of any structure are copied on a CUDA stream of their own."""

from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from rekindle.ship.copy_stream import CudaCopyStream, DirectCopy, copy_stream_to
from rekindle.ship.device_prefetch import moved, tensors_of

CPU = torch.device("cpu")

# The CUDA stream, with a CUDA that records its calls.


class FakeTensor:
    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    def pin_memory(self) -> "FakeTensor":
        self.log.append(f"pin {self.name}")
        return FakeTensor(self.log, f"pinned {self.name}")

    def to(self, device: torch.device, non_blocking: bool = False) -> "FakeTensor":
        self.log.append(f"copy {self.name} to {device}{' without waiting' if non_blocking else ''}")
        return FakeTensor(self.log, f"{self.name} over there")

    def record_stream(self, stream: "FakeStream") -> None:
        self.log.append(f"{self.name} is used on {stream.name}")


class FakeStream:
    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    def record_event(self) -> str:
        self.log.append(f"event on {self.name}")
        return "the event"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


class FakeCuda:
    def __init__(self) -> None:
        self.log: list[Any] = []

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802 - torch.cuda's name
        return FakeStream(self.log, "the copy stream")

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.log, "the main stream")

    @contextmanager
    def stream(self, stream: FakeStream) -> Any:
        self.log.append(f"begin {stream.name}")
        yield
        self.log.append(f"end {stream.name}")


def test_a_batch_is_pinned_copied_on_its_own_stream_and_waited_for_by_the_main_one() -> None:
    cuda = FakeCuda()
    copies = CudaCopyStream(torch.device("cuda:0"), cuda)
    tensor: Any = FakeTensor(cuda.log, "x")
    there, wait = copies.run(lambda: copies.copy(tensor))
    cuda.log.append("the model works on the batch before")
    wait([there])
    assert cuda.log == [
        "begin the copy stream",
        "pin x",
        "copy pinned x to cuda:0 without waiting",
        "event on the copy stream",
        "end the copy stream",
        "the model works on the batch before",
        "the main stream waits for the event",
        "pinned x over there is used on the main stream",
    ]


def test_only_cuda_copies_on_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(copy_stream_to(CPU), DirectCopy)
    assert isinstance(copy_stream_to(torch.device("meta")), DirectCopy)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: device)
    assert isinstance(copy_stream_to(torch.device("cuda")), CudaCopyStream)


# Batches of any structure.


class Pair(NamedTuple):
    left: Any
    right: Any


class WithTo:
    device: Any = None

    def to(self, device: torch.device) -> "WithTo":
        copied = WithTo()
        copied.device = device
        return copied


def test_tensors_are_found_wherever_they_are() -> None:
    x = torch.zeros(2)
    batch = {"a": [x, "text", 3], "b": Pair(x, (x, None)), "c": OrderedDict(z=x), "d": WithTo()}
    meta = torch.device("meta")
    there = moved(batch, lambda tensor: tensor.to(meta), meta)
    assert [tensor.device.type for tensor in tensors_of(there)] == ["meta"] * 4
    assert type(there["b"]) is Pair
    assert type(there["b"].right) is tuple
    assert type(there["c"]) is OrderedDict
    assert there["a"][1:] == ["text", 3]
    assert there["d"].device == meta
    assert tensors_of(batch)[0] is x
