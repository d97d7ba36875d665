"""A dataset that holds more than is looked at before an epoch: changes of all else hold for all samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

import rekindle as rk
from pictures import as_it_is

SIZE = 8


class Record:
    """A sample of a long list of them."""

    def __init__(self, number: int) -> None:
        self.number = number


LARGE: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(400 << 20, np.uint8),
    "list": lambda: [*range(300_000)],
    "objects": lambda: [Record(number) for number in range(20_000)],
    "dict": lambda: {"images": np.zeros(400 << 20, np.uint8), "labels": [0] * SIZE},
}


class InMemory(Dataset[Any]):
    def __init__(self, large: Any) -> None:
        self.large = large
        self.size = 1

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.size


def values_of(loader: Any) -> set[int]:
    return {value for batch in loader for value in batch.tolist()}


@pytest.mark.parametrize("which", LARGE)
def test_an_attribute_beside_much_data_holds_for_all_samples(which: str) -> None:
    data = InMemory(LARGE[which]())
    loader = rk.DataLoader(data, 4, shuffle=True, reuse=rk.Refurbish(3), final_transform=as_it_is)
    for size in (1, 2, 3):
        data.size = size
        assert values_of(loader) == {size}


@pytest.mark.parametrize(
    "around", [lambda data: Subset(data, range(SIZE)), lambda data: ConcatDataset([data])]
)
def test_it_does_within_other_datasets(around: Callable[[Any], Any]) -> None:
    data = InMemory(LARGE["list"]())
    loader = rk.DataLoader(
        around(data), 4, shuffle=True, reuse=rk.Refurbish(3), final_transform=as_it_is, num_workers=1
    )
    for size in (1, 2, 3):
        data.size = size
        assert values_of(loader) == {size}
    loader.close()


class ReadsFirst(InMemory):
    def __getitem__(self, index: int) -> Any:
        return int(self.large[0])


def test_much_data_that_is_exchanged_holds_for_all_samples() -> None:
    data = ReadsFirst([0] * 300_000)
    loader = rk.DataLoader(data, 4, shuffle=True, reuse=rk.Refurbish(3), final_transform=as_it_is)
    for value in (1, 2, 3):
        data.large = [value] * 300_000
        assert values_of(loader) == {value}


def test_what_is_beside_much_data_and_was_not_changed_stays_cached() -> None:
    data = InMemory({"images": LARGE["array"](), "objects": LARGE["objects"]()})
    loader = rk.DataLoader(data, 4, shuffle=True, reuse=rk.Refurbish(4), final_transform=as_it_is)
    assert values_of(loader) == {1}
    for _ in range(2):
        assert sum(int(loader.batch.fresh.sum()) for _ in loader) == SIZE // 4
