"""What is cached follows from the settings that workers share with the script, also where workers persist.

Persistent workers see what the script changes in shared memory and in a manager's process, and nothing else.
"""

import multiprocessing
import multiprocessing.sharedctypes
from collections.abc import Callable, Iterator
from multiprocessing.managers import SyncManager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk

SIZE = 12
HELD: list[Any] = []  # what the samples of `ReadsGlobal` follow from
LOADERS = [
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "persistent_workers": True, "executor": "threads"},
    {"num_workers": 2},
    {"num_workers": 0},
]


class Reads(Dataset[float]):
    """Samples that follow from a setting, and from an attribute that no worker sees changed."""

    factor = 1.0

    def __init__(self, setting: Any, give: Callable[[Any], float]) -> None:
        self.setting, self.give = setting, give

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> float:
        return self.give(self.setting) * self.factor


class ReadsGlobal(Reads):
    def __init__(self, setting: Any, give: Callable[[Any], float]) -> None:
        super().__init__(None, give)
        HELD[:] = [setting]

    def __getitem__(self, index: int) -> float:
        return self.give(HELD[0]) * self.factor


class ReadsInAStep(Reads):
    def __getitem__(self, index: int) -> float:
        return [lambda: self.give(self.setting)][0]()


class Fills(Reads):
    """Keeps its samples in shared memory."""

    def __init__(self) -> None:
        super().__init__(None, float)
        self.kept = torch.zeros(SIZE).share_memory_()

    def __getitem__(self, index: int) -> float:
        self.kept[index] = index
        return float(self.kept[index])


def of_value(value: Any) -> float:
    return float(value.value)


def of_item(items: Any) -> float:
    return float(items[0])


def set_value(value: Any, to: float) -> None:
    value.value = to


def set_item(items: Any, to: float) -> None:
    items[0] = to


Setting = tuple[Callable[[SyncManager], Any], Callable[[Any], float], Callable[[Any, float], None]]
SETTINGS: dict[str, Setting] = {
    "Value": (lambda manager: multiprocessing.Value("d", 1.0), of_value, set_value),
    "RawValue": (lambda manager: multiprocessing.sharedctypes.RawValue("d", 1.0), of_value, set_value),
    "Array": (lambda manager: multiprocessing.Array("d", [1.0]), of_item, set_item),
    "tensor": (lambda manager: torch.ones(1).share_memory_(), of_item, set_item),
    "array": (lambda manager: torch.ones(1).share_memory_().numpy(), of_item, set_item),
    "a manager's value": (lambda manager: manager.Value("d", 1.0), of_value, set_value),
    "a manager's list": (lambda manager: manager.list([1.0]), of_item, set_item),
    "a manager's dict": (lambda manager: manager.dict({0: 1.0}), of_item, set_item),
}


@pytest.fixture(scope="module")
def manager() -> Iterator[SyncManager]:
    with multiprocessing.Manager() as manager:
        yield manager


def refurbished(data: Dataset[float], **options: Any) -> rk.DataLoader[Any]:
    # Two steps, of which the first one is the dataset.
    return rk.DataLoader(
        data, 4, shuffle=True, seed=1, reuse=rk.Refurbish(3), final_transform=np.float64, **options
    )


def values_of(loader: Any) -> set[float]:
    return {value for batch in loader for value in batch.tolist()}


@pytest.mark.parametrize("options", LOADERS, ids=str)
@pytest.mark.parametrize("which", SETTINGS)
def test_a_setting_that_is_shared_holds_for_all_samples_of_the_next_epoch(
    which: str, options: dict[str, Any], manager: SyncManager
) -> None:
    make, give, change = SETTINGS[which]
    setting = make(manager)
    data = (Reads, ReadsGlobal, ReadsInAStep)[len(which) % 3](setting, give)
    with refurbished(data, **options) as loader:
        assert values_of(loader) == {1.0}
        change(setting, 2.0)
        assert values_of(loader) == {2.0}
        batches = iter(loader)
        next(batches)
        change(setting, 3.0)
        assert {value for batch in batches for value in batch.tolist()} <= {2.0, 3.0}
        assert values_of(loader) == {3.0}


def test_the_cache_stays_while_the_shared_settings_do(manager: SyncManager) -> None:
    with refurbished(Reads(manager.list([1.0]), of_item), **LOADERS[0]) as loader:
        fresh = [sum(int(loader.batch.fresh.sum()) for _ in loader) for _ in range(4)]
    assert fresh[0] == SIZE
    assert max(fresh[1:]) < SIZE


def test_what_only_the_scripts_copy_has_keeps_persistent_workers_and_their_cache() -> None:
    data = Reads([1.0], of_item)
    with refurbished(data, **LOADERS[0]) as loader:
        assert values_of(loader) == {1.0}
        data.factor = 2.0
        assert values_of(loader) == {1.0}


def test_shared_memory_that_the_dataset_fills_keeps_what_is_cached() -> None:
    with refurbished(Fills(), **LOADERS[0]) as loader:
        fresh = [sum(int(loader.batch.fresh.sum()) for _ in loader) for _ in range(4)]
    assert max(fresh[1:]) < SIZE


def test_a_manager_that_has_ended_keeps_what_is_cached() -> None:
    with multiprocessing.Manager() as manager:
        data = Reads(manager.list([1.0]), lambda setting: 1.0)
        loader = refurbished(data)
        assert values_of(loader) == {1.0}
    assert values_of(loader) == {1.0}
    assert values_of(loader) == {1.0}
