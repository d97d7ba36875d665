"""A dataset that reads on gives another record whenever it is asked: none is lost, whatever samples are like.

How samples lie in a batch is learnt from the first one. Here later ones are of other types, dtypes, shapes
and keys; what does not fit is not asked for again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, default_collate, get_worker_info

import rekindle as rk
from rekindle.core.analysis.self_changes import may_read_on
from same import same
from torch_datasets import Torch

SIZE, BATCH = 12, 3
NUMBERS: dict[str, Callable[[int], Any]] = {
    "int": lambda record: record,
    "float": lambda record: record + 0.5,
    "numpy.int32": np.int32,
    "numpy.float32": np.float32,
}
KINDS: dict[str, Callable[[int], Any]] = NUMBERS | {
    "str": str,
    "None": lambda record: None,
    "int64 tensor": torch.tensor,
    "float32 array": lambda record: np.full(2, record, np.float32),
    "float64 array": lambda record: np.full(2, record, np.float64),
    "longer array": lambda record: np.full(3, record, np.float32),
    "large array": lambda record: np.full(2000, record, np.float32),
    "tuple": lambda record: (record, np.full(2, record), str(record)),
    "dict": lambda record: {"a": record, "b": 0.5},
    "dict of other keys": lambda record: {"a": record, "c": 0.5},
    "set": lambda record: {record},
}


class Reader(Dataset[Any]):
    """The next record, whatever the index; their kinds come in turn."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds, self.position = kinds, -1

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        self.position += 1
        return KINDS[self.kinds[self.position % len(self.kinds)]](self.position)


class HiddenReader(Dataset[Any]):
    """The same, in a way that the code does not show."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        numbers = " ".join(map(str, range(1000)))
        self.kinds, self.draw = kinds, re.compile(r"\d+").scanner(numbers).search  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        record = int(self.draw().group())
        return KINDS[self.kinds[record % len(self.kinds)]](record)


class NamedReader(Reader):
    """Says which worker reads."""

    def __getitem__(self, index: int) -> Any:
        record, info = super().__getitem__(index), get_worker_info()
        return record + 1000 * (info.id if info else 0)


class Damaged(Reader):
    """Some records cannot be read."""

    def __getitem__(self, index: int) -> Any:
        record = super().__getitem__(index)
        if int(record) in (1, 4, 5, 9):
            raise ValueError(f"record {record} is damaged")
        return record


def outcome(loader: Any) -> list[Any]:
    """Each batch, or the kind of error in its place."""
    iterator, seen = iter(loader), list[Any]()
    while len(seen) < SIZE:
        try:
            seen.append(next(iterator))
        except StopIteration:
            return seen
        except Exception:  # Whatever `default_collate` raises of samples that are no batch.
            seen.append("error")
    raise AssertionError(seen)


def expected(kinds: tuple[str, ...], workers: int) -> list[Any]:
    """What torch's workers collate: batch after batch in turn, each of its own copy's next records."""
    copies = [Reader(kinds) for _ in range(max(workers, 1))]
    batches = []
    for step in range(SIZE // BATCH):
        samples = [copies[step % len(copies)][0] for _ in range(BATCH)]
        try:
            batches.append(default_collate(samples))
        except Exception:
            batches.append("error")
    return batches


def records(batches: list[Any]) -> list[int]:
    return [int(number) for batch in batches for number in batch.tolist()]


kinds_in_turn = st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=5).map(tuple)
# Stretches of one kind, as of samples that are sorted by length: whole batches differ.
kinds_in_stretches = st.lists(st.sampled_from([*KINDS]), min_size=2, max_size=4).map(
    lambda kinds: tuple(kind for kind in kinds for _ in range(BATCH))
)


@settings(max_examples=10, deadline=None)
@given(kinds_in_turn | kinds_in_stretches, st.sampled_from([0, 1, 2]))
def test_batches_are_those_of_torchs_workers(kinds: tuple[str, ...], workers: int) -> None:
    got = outcome(rk.DataLoader(Reader(kinds), BATCH, num_workers=workers))
    assert same(got, expected(kinds, workers)), (kinds, workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_torch_gives_the_same_batches(workers: int) -> None:
    kinds = ("int", "int", "float")
    ours = [*rk.DataLoader(Reader(kinds), 4, num_workers=workers)]
    assert same(ours, [*Torch(Reader(kinds), 4, num_workers=workers)])


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.sampled_from([*NUMBERS]), min_size=1, max_size=5).map(tuple),
    st.sampled_from([1, 2, 3]),
)
def test_threads_lose_no_record_in_any_epoch(kinds: tuple[str, ...], workers: int) -> None:
    loader = rk.DataLoader(Reader(kinds), BATCH, num_workers=workers, executor="threads")
    for first in (0, SIZE):
        assert sorted(records([*loader])) == [*range(first, first + SIZE)]


@pytest.mark.parametrize("kinds", [("int", "int", "int", "int", "float"), ("numpy.int32", "float")])
def test_processes_lose_no_record_of_a_reader_that_does_not_look_like_one(kinds: tuple[str, ...]) -> None:
    dataset = HiddenReader(kinds)
    assert not may_read_on(dataset)
    read = Counter(records([*rk.DataLoader(dataset, 4, num_workers=2)]))
    # Each worker has read 0, 1, 2, … up to somewhere.
    readers = [read[record] for record in range(SIZE)]
    assert sum(readers) == SIZE
    assert readers == sorted(readers, reverse=True)
    assert readers[0] <= 2


def test_samples_without_a_layout_are_not_asked_for_again() -> None:
    dataset = HiddenReader(("set",))
    assert outcome(rk.DataLoader(dataset, BATCH, num_workers=1)) == ["error"] * (SIZE // BATCH)
    subclass = Wrapped()
    assert records([*rk.DataLoader(subclass, BATCH, num_workers=1)]) == [*range(SIZE)]


class Wrapped(HiddenReader):
    """Tensors of a subclass, as torchvision's: only the collate function understands them."""

    def __init__(self) -> None:
        super().__init__(("int64 tensor",))

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index).as_subclass(torch.nn.Parameter)


def test_who_reads_its_workers_number_reads_no_record_twice() -> None:
    kinds = ("int",)
    ours = [*rk.DataLoader(NamedReader(kinds), BATCH, num_workers=2)]
    assert same(ours, [*Torch(NamedReader(kinds), BATCH, num_workers=2)])


@pytest.mark.parametrize("collate_fn", [None, torch.tensor])
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_substitutes_are_the_only_samples_loaded_for_a_batch_with_failures(
    collate_fn: Callable[..., Any] | None, executor: Any
) -> None:
    loader = rk.DataLoader(
        Damaged(("int",)),
        BATCH,
        num_workers=1,
        on_error="substitute",
        error_budget=1.0,
        collate_fn=collate_fn,
        executor=executor,
    )
    read = sorted(records([*loader]))
    assert read == [record for record in range(SIZE + 4) if record not in (1, 4, 5, 9)]


class MultiScale(Dataset[Any]):
    """Batches of another size from time to time, counted by a method that is given as `collate_fn`."""

    def __init__(self) -> None:
        self.batches = 0

    def __len__(self) -> int:
        return 2 * SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        size = 1 + self.batches % 8
        self.batches += 1
        return torch.stack(samples)[:, :size]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_method_that_collates_and_counts_counts_as_with_torch(persistent: bool) -> None:
    epochs = []
    for kind in (rk.DataLoader, Torch):
        data = MultiScale()
        loader = kind(data, 3, num_workers=2, persistent_workers=persistent, collate_fn=data.collate)
        epochs.append([[*loader] for _ in range(3)])
        del loader
    assert same(*epochs)
