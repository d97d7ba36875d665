"""Iterable datasets are read as torch reads them, and resumed by their own state where they have one."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset

import rekindle as rk
from covering import each_pair
from same import digest

# Read as torch reads them.


class Restarting(IterableDataset[int]):
    """Its own iterator, which starts again with each `iter`."""

    def __iter__(self) -> "Restarting":
        self.value = 0
        return self

    def __next__(self) -> int:
        if self.value >= 7:
            raise StopIteration
        self.value += 1
        return self.value - 1


class OnlyNext:
    def __init__(self) -> None:
        self.value = 0

    def __next__(self) -> int:
        self.value += 1
        if self.value > 7:
            raise StopIteration
        return self.value


class WithoutIter(IterableDataset[int]):
    """Its iterator has no `__iter__`."""

    def __iter__(self) -> Iterator[int]:
        return OnlyNext()  # type: ignore[return-value]


class StartsOver(IterableDataset[int]):
    """A reader that begins again by itself once it has raised StopIteration."""

    def __init__(self) -> None:
        self.value = 0

    def __iter__(self) -> "StartsOver":
        return self

    def __next__(self) -> int:
        if self.value >= 7:
            self.value = 0
            raise StopIteration
        self.value += 1
        return self.value


class CountsPasses(IterableDataset[tuple[int, int]]):
    """What it leaves in itself shows in the next epoch, if that reads the same copy."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.passes += 1
        for value in range(5):
            yield value, self.passes


def stops(samples: list[int]) -> torch.Tensor:
    """A collate function that ends the epoch."""
    if samples[0] >= 4:
        raise StopIteration
    return torch.tensor(samples)


@pytest.mark.parametrize(
    ("dataset", "batch_size", "workers"),
    each_pair([Restarting, WithoutIter, StartsOver, CountsPasses], [2, None], [0, 2]),
)
def test_an_iterator_of_any_kind_is_read_as_torch_reads_it(
    dataset: Callable[[], Any], batch_size: int | None, workers: int
) -> None:
    dropped = {} if batch_size is None else {"drop_last": True}
    options = [{}, {**dropped, "persistent_workers": True} if workers else dropped]
    for more in options:
        ours, theirs = (
            epochs(make(dataset(), batch_size=batch_size, num_workers=workers, **more))
            for make in (rk.DataLoader, torch.utils.data.DataLoader)
        )
        assert ours == theirs, more


def epochs(loader: Any, number: int = 2) -> list[list[str]]:
    with_an_end = 30  # batches: more than any of these have
    return [[digest(batch) for batch in islice(loader, with_an_end)] for _ in range(number)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_of_the_collate_function_ends_the_epoch_as_in_torch(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers, "collate_fn": stops}
    ours = epochs(rk.DataLoader(Restarting(), **options), 1)
    assert ours == epochs(torch.utils.data.DataLoader(Restarting(), **options), 1)
    assert len(ours[0]) == 2


# Numbered on.


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_of_a_resumed_stream_are_numbered_on(workers: int) -> None:
    loader = rk.DataLoader(Numbers(), 4, num_workers=workers)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    resumed = rk.DataLoader(Numbers(), 4, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    next(iter(resumed)), next(iterator)
    assert resumed.batch.step == loader.batch.step == 5
    assert resumed.batch.ids.tolist() == loader.batch.ids.tolist() == [20, 21, 22, 23]
    assert resumed.state_dict()["step"] == 6


def ends_early(sample: Any) -> Any:
    raise StopIteration


def test_a_final_transform_cannot_end_a_stream() -> None:
    with pytest.raises(RuntimeError, match="final_transform raised StopIteration"):
        list(rk.DataLoader(Numbers(), 3, final_transform=ends_early))
