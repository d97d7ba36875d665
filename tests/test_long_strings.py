"""Strings and bytes of samples: short ones come with the rows, long ones in the batch's memory."""

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.run.engine import Engine
from rekindle.run.messages import Done


class Encoded(Dataset[Any]):
    """As a dataset of images that are decoded later."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return {
            "jpg": bytes([index]) * (self.length + index),
            "image": torch.full((3,), index),
            "label": index,
        }


@pytest.fixture
def in_messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all strings that workers send in messages."""
    lengths: list[int] = []
    done = Engine._done

    def noting(engine: Engine, worker: int, message: Done) -> None:
        lengths.extend(len(one) for column in message.objects or () for one in column)
        done(engine, worker, message)

    monkeypatch.setattr(Engine, "_done", noting)
    return lengths


@pytest.mark.parametrize("length", [10, 10_000])
@pytest.mark.parametrize("executor", ["processes", "threads"])
def test_strings_are_those_of_torch(executor: Any, length: int, in_messages: list[int]) -> None:
    dataset = Encoded(length)
    with rk.DataLoader(dataset, batch_size=5, num_workers=2, executor=executor) as loader:
        for _ in range(2):
            for batch, expected in zip(loader, torch.utils.data.DataLoader(dataset, 5), strict=True):
                assert batch["jpg"] == expected["jpg"]
                assert torch.equal(batch["image"], expected["image"])
                assert torch.equal(batch["label"], expected["label"])
    if executor == "processes":  # Threads send nothing anywhere.
        assert bool(in_messages) == (length < 1000)
