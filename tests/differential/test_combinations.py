"""Every combination of features works as it does without workers, or is refused when the loader is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, WeightedRandomSampler, get_worker_info

import rekindle as rk
from same import digest

SAMPLES, BATCH, EPOCHS = 12, 4, 2
T = rk.transforms


class Draws(Dataset):
    """Draws from torch's generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.rand(3, 4, 4) + index, index % 3


class Stream(IterableDataset):
    """Numbers, dealt to the workers."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, SAMPLES, step):
            yield torch.rand(3, 4, 4) + index, index % 3


def images() -> Any:
    """Native images in memory."""
    pixels = np.random.RandomState(0).randint(0, 256, (SAMPLES, 12, 12, 3)).astype(np.uint8)
    steps = [T.RandomCrop(10), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)]
    return rk.ArrayImages(pixels, np.arange(SAMPLES) % 3, steps)


def add_noise(sample: Any) -> Any:
    """A final transform that draws."""
    image, label = sample
    return image + torch.rand(()), label


DATASETS: dict[str, Callable[[], Any]] = {"native": images, "map": Draws, "iterable": Stream}
REUSE: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "refurbish": lambda: {"reuse": rk.Refurbish(factor=2, split=1)},
    "refurbish, final": lambda: {"reuse": rk.Refurbish(factor=2), "final_transform": add_noise},
    "echo decode": lambda: {"reuse": rk.Echo(factor=2, after="decode", shuffle=5)},
    "echo augment": lambda: {"reuse": rk.Echo(factor=1.5, after="augment")},
    "echo batch": lambda: {"reuse": rk.Echo(factor=2, after="batch")},
    "final": lambda: {"final_transform": add_noise},
}
IMPORTANCE: dict[str, Callable[[], dict[str, Any]]] = {
    "all": dict,
    "InfoBatch": lambda: {"importance": rk.InfoBatch(epochs=4)},
    "Buckets": lambda: {"importance": rk.Buckets(warmup=1)},
    "OnlineBatchSelection": lambda: {"importance": rk.OnlineBatchSelection(epochs=4)},
}
REDUNDANCY: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "remove": lambda: {"redundancy": rk.Redundancy(GROUPS, mode="remove")},
    "replace": lambda: {"redundancy": rk.Redundancy(GROUPS, mode="replace")},
}
GROUPS = [[0, 3], [1, 4, 7]]
DEVICES: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "cpu": lambda: {"device": "cpu"},
    "MixUp": lambda: {"device": "cpu", "batch_transform": T.MixUp(num_classes=3)},
}
ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": lambda: {"batch_size": BATCH},
    "shuffled": lambda: {"batch_size": BATCH, "shuffle": True},
    "generator": lambda: {
        "batch_size": BATCH, "shuffle": True, "generator": torch.Generator().manual_seed(1)
    },
    "sampler": lambda: {
        "batch_size": BATCH,
        "sampler": WeightedRandomSampler([1.0] * SAMPLES, 9, generator=torch.Generator().manual_seed(1)),
    },
    "batch_sampler": lambda: {"batch_sampler": [[0, 1, 2], [3, 3], [11, 5]]},
    "no batches": lambda: {"batch_size": None},
}  # fmt: skip
NEVER = {("iterable", "refurbish"), ("iterable", "refurbish, final"), ("map", "refurbish")}
EXECUTORS = ({}, {"num_workers": 2, "executor": "threads"}, {"num_workers": 2, "executor": "processes"})
CASES = [
    case
    for case in product(DATASETS, REUSE, IMPORTANCE, REDUNDANCY, DEVICES, ORDERS)
    # Without batch_size, a dataset may well give whole batches; these two give single images.
    if not (case[0] != "native" and case[4] == "MixUp" and case[5] == "no batches")
]

pytestmark = pytest.mark.filterwarnings("ignore")


def loader_of(case: tuple[str, ...], executor: dict[str, Any]) -> Any:
    """The loader, or None if it is refused with a reason."""
    dataset, *features = case
    arguments: dict[str, Any] = {"seed": 3, **executor}
    tables: tuple[dict[str, Callable[[], dict[str, Any]]], ...] = (
        REUSE, IMPORTANCE, REDUNDANCY, DEVICES, ORDERS,
    )  # fmt: skip
    for table, name in zip(tables, features, strict=True):
        arguments |= table[name]()
    torch.manual_seed(1)
    try:
        return rk.DataLoader(DATASETS[dataset](), **arguments)
    except (rk.ArgumentError, ValueError):
        return None


def epochs_of(loader: Any) -> tuple[str, Any]:
    """A hash of all batches, and what `loader.batch` said of each."""
    batches, described = [], []
    with loader:
        for _ in range(EPOCHS):
            for batch in loader:
                batches.append(batch)
                info = loader.batch
                described.append((info.ids.tolist(), info.weights.tolist(), info.epoch, info.step))
                if loader.importance is not None:
                    loader.feedback(losses=(info.ids * 7 % 5).float())
    return digest(batches), described


ROWS = list(product(DATASETS, REUSE, DEVICES))
QUICK = [
    (dataset, reuse, device) for dataset, reuse, device in ROWS if device == "none" or reuse == "nothing"
]
SOME = 6  # Of the quick rows, every sixth combination is tried with processes too, which take longest.


def _is_quick(case: tuple[str, ...]) -> bool:
    """A third of a row, in which any two of its importance, redundancy and order occur together."""
    tables = ((IMPORTANCE, case[2]), (REDUNDANCY, case[3]), (ORDERS, case[5]))
    return sum(list(table).index(name) for table, name in tables) % len(REDUNDANCY) == 0


@pytest.mark.parametrize(
    ("dataset", "reuse", "device", "every"),
    [
        *((*row, SOME) for row in QUICK),
        *(pytest.param(*row, 1, marks=pytest.mark.slow) for row in ROWS),
    ],
)
def test_a_combination_works_as_without_workers_or_is_refused(
    dataset: str, reuse: str, device: str, every: int
) -> None:
    cases = [case for case in CASES if (case[0], case[1], case[4]) == (dataset, reuse, device)]
    assert len(cases) >= len(IMPORTANCE) * len(REDUNDANCY) * (len(ORDERS) - 1)
    if every == SOME:
        cases = [case for case in cases if _is_quick(case)]
    worked = 0
    for case in cases:
        inline = loader_of(case, {})
        if inline is None:
            assert all(loader_of(case, executor) is None for executor in EXECUTORS)
            continue
        expected = epochs_of(inline)
        worked += 1
        for executor in EXECUTORS[1:]:
            if executor["executor"] == "processes" and worked % every:
                continue
            loader = loader_of(case, executor)
            if dataset == "iterable":  # Workers share its samples, so their order is another.
                assert (loader is None) == (executor["executor"] == "threads"), case
                if loader is not None:
                    assert epochs_of(loader) == epochs_of(loader_of(case, executor)), case
            else:
                assert loader is not None, case
                assert epochs_of(loader) == expected, case
    assert worked or (dataset, reuse) in NEVER
