"""In which order workers get what they wait for."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.run.messages import AssignSlot
from rekindle.run.process_pool import ProcessPool
from rekindle.run.slots import Slot


class Rows(Dataset[np.ndarray]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(1000, index)


def test_workers_have_the_first_batchs_memory_before_that_of_the_next_is_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []
    make, send = Slot.__init__, ProcessPool.send

    def making(slot, number, nbytes, shared=True):
        if number >= 0:  # not the memory in which workers say what they are doing
            happened.append("reserved")
        make(slot, number, nbytes, shared)

    def sending(pool, messages, slots=()):
        if any(type(message) is AssignSlot for own in messages.values() for message in own):
            happened.append("assigned")
        send(pool, messages, slots)

    monkeypatch.setattr(Slot, "__init__", making)
    monkeypatch.setattr(ProcessPool, "send", sending)
    batches = [*rk.DataLoader(Rows(), batch_size=8, num_workers=2)]
    assert torch.cat(batches)[:, 0].tolist() == list(range(64))
    assert happened[:5] == ["reserved", "assigned", "reserved", "reserved", "assigned"]
