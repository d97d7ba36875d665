"""What workers still prepare of one pass over an iterable dataset is no part of the next."""

import time
from collections.abc import Iterator
from itertools import islice

import pytest
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
