"""Workers are kept from epoch to epoch where nothing was changed that they have copies of, and only there."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

import rekindle as rk
from changing_samples import EPOCHS, Samples, Scale, Steps, plain

T = rk.transforms


# Workers are kept where nothing was changed, and only there.


class Pids(Samples):
    def __getitem__(self, index: int) -> int:
        return os.getpid()


def pids(loader: Any) -> set[int]:
    return {int(pid) for batch in loader for pid in batch}


def test_workers_are_kept_if_nothing_was_changed() -> None:
    samples = [(f"folder/{number}.jpg", number % 10) for number in range(50_000)]
    table = OrderedDict(a=np.arange(5), b={"c": torch.arange(3)})
    dataset = Pids(samples=samples, table=table, rows=[{"a": 1, "b": [2.5]} for _ in range(100)])
    loader = rk.DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2)
    first = pids(loader)
    assert pids(loader) == first
    assert pids(loader) == first
    samples[49_997] = ("folder/49997.jpg", -1)
    assert pids(loader).isdisjoint(first)


def test_workers_start_afresh_where_nothing_can_be_proven() -> None:
    with open(__file__) as file:
        loader = rk.DataLoader(Pids(file=file), batch_size=2, num_workers=1)
        assert pids(loader).isdisjoint(pids(loader))
    loader = rk.DataLoader(Pids(table=np.zeros(300 << 20, dtype=np.uint8)), batch_size=2, num_workers=1)
    assert pids(loader).isdisjoint(pids(loader))


class Counts(Samples):
    """Changes its own copy in the worker."""

    count = 0

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return self.count


class CountedStream(IterableDataset[int]):
    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        return iter([self.count] * 4)


@pytest.mark.parametrize("make", [Counts, CountedStream])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_copy_that_a_worker_has_changed_itself_is_not_used_again(make: Any, shuffle: bool) -> None:
    if shuffle and make is CountedStream:
        pytest.skip("streams are not shuffled")
    epochs = []
    for loader in (DataLoader, rk.DataLoader):
        made = loader(make(), batch_size=2, num_workers=1, shuffle=shuffle)
        epochs.append([[plain(batch) for batch in made] for _ in range(EPOCHS)])
    assert epochs[0] == epochs[1]


def test_epochs_shorter_than_what_is_loaded_ahead_go_on() -> None:
    dataset = Samples(Steps([Scale(2)]))
    loader = rk.DataLoader(dataset, batch_size=6, shuffle=True, num_workers=2, prefetch_factor=4)
    workers = []
    for _ in range(12):
        epoch = iter(loader)
        workers.append(epoch._workers)  # type: ignore[attr-defined]
        assert len(list(epoch)) == 2
    assert workers == [workers[0]] * 12


# Datasets of ours.


def images(count: int = 8) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "change", ["attribute", "replaced", "inserted", "assigned", "labels", "pixels", "subset"]
)
def test_native_data_sets_follow_their_transform_and_labels(workers: int, change: str) -> None:
    flip, pixels, labels = T.RandomHorizontalFlip(p=0), images(), np.arange(8)
    steps = T.Compose([flip, T.ToTensor()])
    dataset = rk.ArrayImages(pixels, labels, steps)
    subset = Subset(dataset, [4, 5, 6, 7])
    loader = rk.DataLoader(subset if change == "subset" else dataset, batch_size=4, num_workers=workers)
    before = list(loader)
    if change == "attribute":
        flip.p = 1.0
    elif change == "replaced":
        steps.transforms[0] = T.RandomHorizontalFlip(p=1)
    elif change == "inserted":
        steps.transforms.insert(0, T.RandomHorizontalFlip(p=1))
    elif change == "assigned":
        dataset.transform = [T.RandomHorizontalFlip(p=1), T.ToTensor()]
    elif change == "labels":
        labels[3] = 77
    elif change == "pixels":
        pixels[:] = pixels[:, :, ::-1].copy()
    else:
        subset.indices[0] = 0  # type: ignore[index]
    after = list(loader)
    if change == "labels":
        assert after[0][1].tolist() == [0, 1, 2, 77]
    elif change == "subset":
        assert after[0][1].tolist() == [0, 5, 6, 7]
    else:
        for (old, _), (new, _) in zip(before, after, strict=True):
            assert torch.equal(new, old.flip(-1))


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_of_native_data_sets_are_kept(executor: Any, tmp_path: Any) -> None:
    for dataset in (rk.ArrayImages(images(), list(range(8)), [T.RandomCrop(6), T.ToTensor()]),):
        loader = rk.DataLoader(dataset, batch_size=4, num_workers=2, executor=executor, shuffle=True)
        first = iter(loader)
        workers = first._workers  # type: ignore[attr-defined]
        list(first)
        assert iter(loader)._workers == workers  # type: ignore[attr-defined]
