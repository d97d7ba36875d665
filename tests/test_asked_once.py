"""A dataset is asked once for each sample, also where one fails: an error is never hidden by another try."""

import csv
import functools
import itertools
import mmap
import operator
import os
import random
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

import rekindle as rk
from pictures import TO_TENSOR, Pictures, V, plus_ten
from torch_datasets import Torch

SIZE = 12
OUTCOME_LIMIT = 2 * SIZE  # Without it, a batch that comes again and again would be a test that hangs.


class Records(Dataset[int]):
    """The records of a reader that only goes forward, whatever the index; some cannot be read."""

    def __init__(self, damaged: frozenset[int] = frozenset()) -> None:
        self.damaged, self.asked = damaged, list[int]()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        record = len(self.asked) - 1
        if record in self.damaged:
            raise ValueError(f"record {record} is damaged")
        return record


class Jittered(Records):
    """Draws a random number from some record on: a reader's records, augmented."""

    from_record = 0

    def __getitem__(self, index: int) -> int:
        record = super().__getitem__(index)
        return record if record < self.from_record else record + int(random.random())


class Together(Records):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def outcome(loader: Any) -> list[Any]:
    """Each batch, or the error in its place."""
    iterator, seen = iter(loader), list[Any]()
    while len(seen) < OUTCOME_LIMIT:
        try:
            seen.append(next(iterator).tolist())
        except ValueError as error:
            seen.append(str(error).rpartition("ValueError: ")[2].strip())
        except StopIteration:
            return seen
    raise AssertionError(seen)


@settings(max_examples=30, deadline=None)
@given(st.frozensets(st.integers(0, SIZE - 1)), st.sampled_from([None, 1, 3, 5]), st.booleans())
def test_errors_and_what_follows_them_are_torchs(
    damaged: frozenset[int], batch_size: int | None, together: bool
) -> None:
    make = Together if together else Records
    ours, theirs = make(damaged), make(damaged)
    collate_fn = torch.tensor
    got = outcome(rk.DataLoader(ours, batch_size, collate_fn=collate_fn))
    assert got == outcome(Torch(theirs, batch_size, collate_fn=collate_fn))
    assert ours.asked == theirs.asked


@pytest.mark.parametrize("collate_fn", [None, torch.tensor])
def test_a_worker_goes_on_behind_a_damaged_record_as_torchs_does(
    collate_fn: Callable[[Any], Any] | None,
) -> None:
    damaged = frozenset({4, 9})
    theirs = outcome(Torch(Records(damaged), 3, collate_fn=collate_fn, num_workers=1))
    assert outcome(rk.DataLoader(Records(damaged), 3, collate_fn=collate_fn, num_workers=1)) == theirs


@pytest.mark.parametrize("from_record", [0, 1, 4, 7])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_reader_loses_no_record_whenever_it_turns_out_that_it_draws(
    from_record: int, batch_size: int | None
) -> None:
    ours, theirs = Jittered(frozenset({5})), Jittered(frozenset({5}))
    ours.from_record = theirs.from_record = from_record
    assert outcome(rk.DataLoader(ours, batch_size, collate_fn=torch.tensor)) == outcome(
        Torch(theirs, batch_size, collate_fn=torch.tensor)
    )
    assert ours.asked == theirs.asked


class Ticks(Dataset[int]):
    """Records of a reader of any kind; draws from some record on, maybe with a generator of its own."""

    def __init__(
        self, source: Any, take: Callable[[Any], int], generator: random.Random | None, from_record: int
    ) -> None:
        self.source, self.take, self.generator, self.from_record = source, take, generator, from_record

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        record = self.take(self.source)
        if record < self.from_record:
            return record
        drawn = random.random() * np.random.random() * torch.rand(1).item()
        return record + int(drawn if self.generator is None else drawn * self.generator.random())


def a_pipe() -> int:
    here, there = os.pipe()
    os.write(there, bytes(range(SIZE)))
    os.close(there)
    return here


TICKS: dict[str, tuple[Callable[[], Any], Callable[[Any], int]]] = {
    "os.read": (a_pipe, lambda pipe: os.read(pipe, 1)[0]),
    "another name": (a_pipe, lambda pipe: (lambda bytes_of: bytes_of(pipe, 1)[0])(os.read)),
    "a bound method": (lambda: itertools.count().__next__, lambda tick: int(tick())),
    "C code": (lambda: functools.partial(next, itertools.count()), lambda tick: int(tick())),
    "out=": (lambda: np.zeros(1), lambda count: int(np.add(count, 1, out=count)[0]) - 1),
    "copyto": (lambda: np.zeros(1), lambda count: (np.copyto(count, count + 1), int(count[0]) - 1)[1]),
}


@pytest.mark.parametrize("from_record", [0, 1, 7])
@pytest.mark.parametrize("generator", [None, random.Random(1)], ids=["global", "held"])
@pytest.mark.parametrize("kind", TICKS)
def test_a_reader_of_any_kind_loses_no_record(
    kind: str, generator: random.Random | None, from_record: int
) -> None:
    make, take = TICKS[kind]
    for workers in (0, 1):
        source = make()
        data = Ticks(source, take, generator, from_record)
        loader = rk.DataLoader(data, 3, collate_fn=torch.tensor, num_workers=workers)
        assert torch.cat([*loader]).tolist() == list(range(SIZE))
        if isinstance(source, int):
            os.close(source)


class KeepsThings(Ticks):
    """Draws from a generator of its own, and keeps something, by which it may have decided something."""

    last = -1

    def __init__(self, source: Any, take: Callable[[Any], int]) -> None:
        super().__init__(source, take, None, 0)
        self.own = np.random.default_rng(0)

    def __getitem__(self, index: int) -> int:
        record, self.last = self.take(self.source), index
        return record + int(0.5 * self.own.random())


class Box:
    number = -1

    @property
    def next_one(self) -> int:
        vars(self).update(number=self.number + 1)
        return self.number


def through_an_alias(box: Box) -> int:
    change = object.__setattr__
    change(box, "number", box.number + 1)
    return box.number


def setattr_data(count: torch.Tensor) -> None:
    count.data = count + 1


def mapped() -> mmap.mmap:
    memory = mmap.mmap(-1, SIZE)
    memory[:] = bytes(range(SIZE))
    return memory


def rows_of_a_table() -> sqlite3.Cursor:
    numbers = ", ".join(f"({number})" for number in range(SIZE))
    return sqlite3.connect(":memory:", check_same_thread=False).execute(f"SELECT * FROM (VALUES {numbers})")


def in_place(count: Any) -> int:
    count += 1
    return int(count[0]) - 1


def rotated(numbers: deque[int]) -> int:
    numbers.rotate(-1)
    return numbers[-1]


def of_a_loop(pools: list[list[int]]) -> int:
    for pool in pools:
        return pool.pop()
    raise AssertionError


TICKS_OF_ANY_KIND: dict[str, tuple[Callable[[], Any], Callable[[Any], int]]] = TICKS | {
    "vars": (Box, lambda box: int(box.next_one)),
    "object.__setattr__": (Box, through_an_alias),
    "setattr, held": (Box, lambda box: [partial(setattr, box)("number", box.number + 1), box.number][1]),
    "operator.setitem": (lambda: [-1], lambda box: [operator.setitem(box, 0, box[0] + 1), box[0]][1]),
    "third argument": (lambda: np.zeros(1), lambda count: int(np.add(count, 1, count)[0]) - 1),
    "in place": (lambda: np.zeros(1), in_place),
    "a bound popleft": (lambda: deque(range(SIZE)).popleft, lambda popleft: int(popleft())),
    "rotate": (lambda: deque(range(SIZE)), rotated),
    "a loop": (lambda: [[*range(SIZE - 1, -1, -1)]], of_a_loop),
    "unbound": (lambda: deque(range(SIZE)), lambda records: deque.popleft(records)),
    "methodcaller": (lambda: deque(range(SIZE)), lambda records: int(methodcaller("popleft")(records))),
    "mmap": (mapped, lambda memory: int(memory.read_byte())),
    "callable and sentinel": (lambda: iter(itertools.count().__next__, None), next),
    "csv": (lambda: csv.reader(map(str, range(SIZE))), lambda lines: int(next(lines)[0])),
    "sqlite3": (rows_of_a_table, lambda rows: int(rows.fetchone()[0])),
    "data of a tensor": (lambda: torch.zeros(1), lambda count: [setattr_data(count), int(count) - 1][1]),
    "default factory": (lambda: defaultdict(itertools.count().__next__), lambda table: table[object()]),
}


@pytest.mark.parametrize("kind", TICKS_OF_ANY_KIND)
def test_a_reader_that_keeps_things_as_well_loses_no_record(kind: str) -> None:
    make, take = TICKS_OF_ANY_KIND[kind]
    for workers in (0, 1):
        source = make()
        loader = rk.DataLoader(KeepsThings(source, take), 3, collate_fn=torch.tensor, num_workers=workers)
        assert torch.cat([*loader]).tolist() == list(range(SIZE))
        if isinstance(source, int):
            os.close(source)


class AddsNoise:
    """A collate function that changes the samples it gets, and draws only in the second half."""

    def __call__(self, samples: list[list[int]]) -> torch.Tensor:
        for sample in samples:
            sample[0] += 100 + (int(random.random()) if sample[0] >= SIZE // 2 else 0)
        return torch.tensor(samples)


class Boxed(Dataset[list[int]]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> list[int]:
        return [index]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_is_called_once_for_a_batch_whenever_it_draws(workers: int) -> None:
    loader = rk.DataLoader(Boxed(), 2, collate_fn=AddsNoise(), num_workers=workers)
    assert [batch.flatten().tolist() for batch in loader] == [[100 + n, 101 + n] for n in range(0, SIZE, 2)]


@settings(max_examples=30, deadline=None)
@given(st.frozensets(st.integers(0, SIZE - 1)), st.sampled_from([1, 3, 5]))
def test_what_is_skipped_is_asked_for_once(damaged: frozenset[int], batch_size: int) -> None:
    dataset = Records(damaged)
    loader = rk.DataLoader(dataset, batch_size, on_error="skip", error_budget=1.0)
    got = [record for batch in outcome(loader) for record in batch]
    assert got == [record for record in range(SIZE) if record not in damaged]
    assert dataset.asked == list(range(SIZE))


@pytest.mark.parametrize("dataset", [Records(), Together()], ids=["one by one", "together"])
def test_an_error_of_the_collate_function_is_raised_at_once(dataset: Records) -> None:
    calls = []

    def collate(samples: list[int]) -> torch.Tensor:
        calls.append(samples)
        if len(calls) == 2:
            raise ValueError("cannot collate")
        return torch.tensor(samples)

    got = outcome(rk.DataLoader(dataset, 3, collate_fn=collate))
    assert got == [[0, 1, 2], "cannot collate", [6, 7, 8], [9, 10, 11]]
    assert calls == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_the_error_names_the_sample() -> None:
    iterator = iter(rk.DataLoader(Records(frozenset({4})), 3))
    next(iterator)
    with pytest.raises(ValueError, match="record 4") as caught:
        next(iterator)
    assert "sample 4" in "".join(caught.value.__notes__)


def test_the_part_of_a_sample_that_is_cached_is_asked_for_once_as_well() -> None:
    asked = []

    def fails_once(data: Pictures, image: Any, index: int) -> Any:
        asked.append(index)
        if index == 9 and asked.count(9) == 1:
            raise ValueError("picture 9 is damaged")
        return data.transform(image), index

    draws_nothing = V.Compose([V.CenterCrop(16), TO_TENSOR, plus_ten])
    reuse = rk.Refurbish(3, split=2, balance=None)
    loader = rk.DataLoader(Pictures(draws_nothing, fails_once), 4, reuse=reuse, seed=1)
    with pytest.raises(ValueError, match="picture 9"):
        list(loader)
    assert asked.count(9) == 1


def test_tensors_that_are_replaced_within_an_epoch_are_seen_at_once_as_with_torch() -> None:
    def epoch(loader: Any) -> list[Any]:
        dataset, got = TensorDataset(torch.arange(8)), []
        for step, batch in enumerate(loader(dataset, batch_size=2)):
            got.append([column.tolist() for column in batch])
            if step == 0:
                dataset.tensors = (torch.arange(8) * 10, torch.ones(8))
            if step == 1:
                dataset.tensors[0].add_(1)
            if step == 2:
                dataset.tensors = (list(range(8)),)  # type: ignore[assignment]
        return got

    got = epoch(rk.DataLoader)
    assert got == [*epoch(Torch)[:3], got[3]]
    assert got[3] == [[6, 7]]


class Mix:
    """Draws by a method that was chosen before."""

    def __init__(self) -> None:
        self.mix = self._mix

    def _mix(self, samples):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])

    def __call__(self, samples):
        return self.mix(samples)


class MixModule(torch.nn.Module):
    def forward(self, samples):
        return Mix()(samples)


IMAGES = np.zeros((12, 4, 4, 3), dtype=np.uint8)
DATASETS = {
    "foreign": [*range(12)],
    "native": rk.ArrayImages(IMAGES, [0] * 12, transform=[rk.transforms.ToTensor()]),
}


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("collate", [Mix(), MixModule()], ids=["method", "module"])
def test_what_collation_draws_is_new_for_every_batch_and_the_same_for_any_workers(dataset, collate):
    def numbers(workers: int, **options: object) -> list[list[float]]:
        torch.manual_seed(workers)
        loader = rk.DataLoader(
            dataset, batch_size=3, collate_fn=collate, num_workers=workers, seed=1, **options
        )
        return [batch.tolist() for _ in range(2) for batch in loader]

    inline = numbers(0)
    assert len({number for batch in inline for number in batch}) == 8 * 3
    assert numbers(1) == numbers(2) == numbers(2, executor="threads") == inline
