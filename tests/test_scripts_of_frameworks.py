"""What training frameworks do to a loader from outside means what it means to torch's."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, TensorDataset
from torch.utils.data._utils.collate import default_collate_fn_map

import rekindle as rk
from rekindle.core.forked_memory import is_any_shared

SAMPLES = 24


class Scaled(Dataset[Any]):
    """Numbers times a factor, and how often each was asked for."""

    def __init__(self, factor: torch.Tensor, asked: torch.Tensor) -> None:
        self.factor, self.asked = factor, asked

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked[index] += 1
        return index * self.factor, index


def one() -> torch.Tensor:
    return torch.ones(1)


def values(loader: TorchLoader[Any]) -> list[float]:
    return [value for batch, _ in loader for value in batch.flatten().tolist()]


@pytest.mark.parametrize("shuts_down", [False, True])
def test_persistent_workers_start_again_where_a_script_removes_the_iterator(shuts_down: bool) -> None:
    dataset = Scaled(one(), torch.zeros(SAMPLES))
    loader = rk.DataLoader(dataset, 4, num_workers=2, persistent_workers=True)
    first = values(loader)
    dataset.factor = torch.tensor([2.0])
    assert values(loader) == first  # as with torch's: they have their copies
    if shuts_down:
        loader._iterator._shutdown_workers()  # type: ignore[union-attr]
    loader._iterator = None  # as MMDetection's hooks do to switch a pipeline's steps off
    assert values(loader) == [2 * value for value in first]
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_read_shared_memory_that_a_script_writes_between_epochs(persistent: bool) -> None:
    dataset = Scaled(one().share_memory_(), torch.zeros(SAMPLES))
    loader = rk.DataLoader(dataset, 4, num_workers=2, persistent_workers=persistent)
    for epoch in range(3):
        dataset.factor[0] = epoch
        assert values(loader) == [epoch * index for index in range(SAMPLES)]
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_count_in_shared_memory_load_no_epoch_that_is_not_begun(persistent: bool) -> None:
    dataset = Scaled(one(), torch.zeros(SAMPLES).share_memory_())
    loader = rk.DataLoader(dataset, 4, num_workers=2, persistent_workers=persistent)
    for epoch in range(2):
        values(loader)
        loader.close()
        assert dataset.asked.tolist() == [epoch + 1] * SAMPLES


@pytest.mark.parametrize("kind", ["array", "view", "tensor", "torch's"])
def test_memory_shared_with_other_processes_is_told_from_private_memory(kind: str) -> None:
    private = np.ones(10_000)
    assert not is_any_shared([private.__array_interface__["data"][0], torch.ones(3).data_ptr()])
    shared = np.frombuffer(mmap.mmap(-1, 80_000), np.float64)
    shared[:] = 1
    address = {
        "array": shared.__array_interface__["data"][0],
        "view": shared[5000:].__array_interface__["data"][0],
        "tensor": torch.from_numpy(shared).data_ptr(),
        "torch's": (torchs := torch.ones(9).share_memory_()).data_ptr(),
    }[kind]
    assert torchs.sum() == 9
    assert is_any_shared([private.__array_interface__["data"][0], address])


@pytest.fixture
def table() -> Iterator[dict[Any, Any]]:
    """Torch's table of how classes are collated, restored afterwards."""
    before = dict(default_collate_fn_map)
    yield default_collate_fn_map  # type: ignore[misc]
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


def hundredfold(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.tensor([float(torch.as_tensor(value).sum()) * 100 for value in batch])


def first_parts(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return [len(batch), [sample[1] for sample in batch]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "function"), [(int, hundredfold), (torch.Tensor, hundredfold), (tuple, first_parts)]
)
def test_a_function_put_in_torchs_collate_table_collates(
    table: dict[Any, Any], kind: type, function: Any, workers: int
) -> None:
    table[kind] = function
    dataset = Scaled(one(), torch.zeros(SAMPLES))
    batches = [str(batch) for batch in rk.DataLoader(dataset, 4, num_workers=workers)]
    assert batches == [str(batch) for batch in TorchLoader(dataset, 4)]


@pytest.mark.parametrize("kind", [torch.Tensor, tuple])
def test_a_function_put_in_torchs_collate_table_collates_tensors_in_memory(
    table: dict[Any, Any], kind: type
) -> None:
    numbers = TensorDataset(torch.arange(6), torch.arange(6))
    ours, torchs = rk.DataLoader(numbers, 3), TorchLoader(numbers, 3)
    first = str([*ours])
    table[kind] = hundredfold if kind is torch.Tensor else first_parts
    assert str([*ours]) == str([*torchs]) != first


def test_a_function_put_in_torchs_collate_table_collates_native_images(table: dict[Any, Any]) -> None:
    table[int] = hundredfold
    images = rk.ArrayImages(np.zeros((6, 4, 4, 3), np.uint8), [*range(6)])
    labels = [batch[1].tolist() for batch in rk.DataLoader(images, 3)]
    assert labels == [[0.0, 100.0, 200.0], [300.0, 400.0, 500.0]]
