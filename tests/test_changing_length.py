"""A dataset whose length changes between epochs: the sampler sees the new length, as torch's does."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data
from torch.utils.data import Dataset

import rekindle as rk

OLD, EPOCHS = 8, 3


class Growing(Dataset[int]):
    def __init__(self) -> None:
        self.items = list(range(OLD))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return self.items[index]


def epochs(load: Any, length: int, **options: Any) -> list[Any]:
    """The sorted content of each epoch, or the exception; the dataset changes after the first."""
    dataset = Growing()
    loader = load(dataset, batch_size=2, **options)
    found: list[Any] = []
    for epoch in range(EPOCHS):
        try:
            found.append(sorted(value for batch in loader for value in batch.tolist()))
        except IndexError:
            found.append(IndexError)
        if epoch == 0:
            dataset.items = list(range(100, 100 + length))
    if hasattr(loader, "close"):
        loader.close()
    return found


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("shuffle", [False, True])
def test_persistent_workers_get_the_indices_of_the_new_length(length: int, shuffle: bool) -> None:
    options = {"num_workers": 2, "persistent_workers": True, "shuffle": shuffle}
    expected = [list(range(length))] * 2 if length < OLD else [IndexError] * 2
    assert epochs(rk.DataLoader, length, seed=1, **options) == [list(range(OLD)), *expected]


def test_torch_does_the_same() -> None:
    options = {"num_workers": 1, "persistent_workers": True}
    found = [epochs(torch.utils.data.DataLoader, length, **options) for length in (5, 12)]
    assert found == [epochs(rk.DataLoader, length, **options) for length in (5, 12)]


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "executor": "threads"}]
)
def test_whoever_sees_the_dataset_itself_gets_its_new_samples(length: int, options: dict[str, Any]) -> None:
    new = list(range(100, 100 + length))
    assert epochs(rk.DataLoader, length, **options) == [list(range(OLD)), new, new]
