"""What workers still prepare of one pass over an iterable dataset is no part of the next."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset

import rekindle as rk

LENGTH = 12  # more than workers prepare in advance
LONGER_THAN_THE_SCRIPT_NEEDS = 0.2  # seconds, to go on with the next pass


class ShortAtFirst(IterableDataset[int]):
    """Has one sample in its first pass, and tells late that there are no more."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return self._samples(LENGTH if self.passes > 1 else 1)

    def _samples(self, count: int) -> Iterator[int]:
        yield from range(count)
        time.sleep(LONGER_THAN_THE_SCRIPT_NEEDS)


class Broken(IterableDataset[int]):
    """Raises behind its samples, and tells late that there are no more."""

    def __iter__(self) -> "Broken":
        self.coming = iter(range(LENGTH + 2))
        return self

    def __next__(self) -> int:
        sample = next(self.coming)
        if sample == LENGTH:
            raise ValueError("cannot read the last sample")
        if sample > LENGTH:
            time.sleep(LONGER_THAN_THE_SCRIPT_NEEDS)
            raise StopIteration
        return sample


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pass_after_one_that_was_left_is_complete(workers: int) -> None:
    def first_of_one_and_all_of_another(kind: type[torch.utils.data.DataLoader[int]]) -> list[int]:
        loader = kind(ShortAtFirst(), batch_size=None, num_workers=workers, persistent_workers=True)
        return [*islice(loader, 1), *loader]

    expected = first_of_one_and_all_of_another(torch.utils.data.DataLoader)
    assert first_of_one_and_all_of_another(rk.DataLoader) == expected


def test_a_pass_after_an_error_is_complete() -> None:
    loader = rk.DataLoader(Broken(), batch_size=None, num_workers=1, persistent_workers=True)
    for _ in range(3):
        batches = iter(loader)
        assert list(islice(batches, LENGTH)) == list(range(LENGTH))
        with pytest.raises(ValueError, match="cannot read the last sample"):
            next(batches)


class Shuffled(IterableDataset[int]):
    """Counts its passes where a generator does, at the first sample, and shards each order by worker."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.passes)).tolist()
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        yield from order[worker.id :: worker.num_workers]


def start_late(worker: int) -> None:
    time.sleep(worker * LONGER_THAN_THE_SCRIPT_NEEDS)


@pytest.mark.parametrize("look", [iter, lambda loader: next(iter(loader))], ids=["iter", "first batch"])
def test_a_look_at_the_data_counts_as_a_pass_for_every_worker(look: Callable[[Any], object]) -> None:
    def all_after_a_look(kind: type[torch.utils.data.DataLoader[int]]) -> list[int]:
        loader = kind(
            Shuffled(), batch_size=None, num_workers=2, persistent_workers=True, worker_init_fn=start_late
        )
        look(loader)
        return list(loader)

    assert all_after_a_look(rk.DataLoader) == all_after_a_look(torch.utils.data.DataLoader)
