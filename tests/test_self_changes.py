"""Whether a dataset changes itself when it is asked is seen in its code, without running it."""

import csv
import heapq
import queue
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

import rekindle as rk
from rekindle.core.analysis.self_changes import may_keep_draws, may_read_on

CALLS = 0
SEEN: list[int] = []


class Held:
    """What the datasets below hold."""

    def __init__(self) -> None:
        self.calls, self.seen, self.pool = 0, dict[int, int](), [1, 2, 3]
        self.file: Any = None
        self.inner = self

    def set_epoch(self, epoch: int) -> None:
        """Not called for a sample."""
        self.calls = epoch


def counts(self: Any, index: int) -> int:
    self.calls += 1
    return index


def sets(self: Any, index: int) -> int:
    self.last = index
    return index


def remembers(self: Any, index: int) -> int:
    if index not in self.seen:
        self.seen[index] = index * index
    return int(self.seen[index])


def takes(self: Any, index: int) -> int:
    return int(self.pool.pop())


def takes_by_another_name(self: Any, index: int) -> int:
    pool = self.pool
    return int(pool.pop())


def takes_the_least(self: Any, index: int) -> int:
    return int(heapq.heappop(self.pool))


def counts_in_place(self: Any, index: int) -> int:
    return int(self.count.add_(1))


def counts_an_item(self: Any, index: int) -> int:
    self.seen[index] += 1
    return index


def counts_in_two_steps(self: Any, index: int) -> int:
    calls = self.calls
    self.calls = calls + 1
    return index


def counts_an_item_by_another_name(self: Any, index: int) -> int:
    seen = self.seen
    seen["calls"] = seen.get("calls", 0) + 1
    return index


def takes_from_one_of_several(self: Any, index: int) -> int:
    pool = self.pools[index % 2]
    return int(pool.pop())


def counts_by_a_function(self: Any, index: int) -> int:
    np.add.at(self.pool, 0, 1)
    return index


def shuffles(self: Any, index: int) -> int:
    random.shuffle(self.pool)
    return int(self.pool[0])


def completes_a_record(self: Any, index: int) -> Any:
    record = self.seen[index]
    record["image"] = str(record["path"])
    return record


def looks_up(self: Any, index: int) -> Any:
    return self.inner.at[self.calls, index], random.sample([1, 2], 1)


def reads_on(self: Any, index: int) -> Any:
    return self.file.readline()


def reads_on_from_the_start_again(self: Any, index: int) -> Any:
    line = self.file.readline()
    if not line:
        self.file.seek(0)
        line = self.file.readline()
    return line


def reads_at_a_place(self: Any, index: int) -> Any:
    if self.file is None:
        self.file = Path(str(index)).open()  # noqa: SIM115 (It stays open.)
    self.file.seek(index)
    return self.file.readline()


def sets_within(self: Any, index: int) -> int:
    self.inner.last = index
    return index


def counts_globally(self: Any, index: int) -> int:
    global CALLS
    CALLS += 1
    return index


def notes_globally(self: Any, index: int) -> int:
    SEEN.append(index)
    return index


def calls_another(self: Any, index: int) -> int:
    return counts(self, index)


def counting() -> Callable[[Any, int], int]:
    calls = 0

    def counts(self: Any, index: int) -> int:
        nonlocal calls
        calls += 1
        return index

    return counts


def gives(self: Any, index: int) -> int:
    return int(self.pool[index])


def fills(self: Any, index: int) -> Any:
    x = np.zeros(3)
    x[0] += index
    x[1:] = self.calls
    return x


def builds(self: Any, index: int) -> Any:
    target = {"boxes": []}
    target["boxes"].append(index)
    target.update(index=index)
    found = [one for one in self.pool if one]
    found.append(3)
    return target, found


def opens(self: Any, index: int) -> Any:
    with open(str(index)) as file:
        return file.read()


def adds(self: Any, index: int) -> Any:
    image = torch.add(torch.ones(2), np.add(1, index))
    image.requires_grad = False
    return image


CHANGE = [counts, takes, takes_by_another_name, reads_on, counts_globally, notes_globally]
CHANGE += [calls_another, counting(), counts_an_item, counts_in_two_steps]
CHANGE += [counts_an_item_by_another_name, takes_from_one_of_several, counts_by_a_function, shuffles]
CHANGE += [takes_the_least, counts_in_place, reads_on_from_the_start_again]
SAME_AGAIN = [sets, sets_within, remembers, reads_at_a_place, completes_a_record]


def dataset(function: Callable[[Any, int], Any]) -> Any:
    return type("Dataset", (Held,), {"__getitem__": function, "__module__": __name__})()


@pytest.mark.parametrize("function", CHANGE, ids=lambda one: one.__name__)
def test_who_cannot_be_asked_twice_is_seen(function: Callable[[Any, int], Any]) -> None:
    assert may_read_on(dataset(function))
    assert may_read_on(torch.utils.data.Subset(dataset(function), [0]))
    assert may_keep_draws(function)


@pytest.mark.parametrize("function", SAME_AGAIN, ids=lambda one: one.__name__)
def test_what_is_kept_for_later_is_the_same_the_second_time(function: Callable[[Any, int], Any]) -> None:
    assert not may_read_on(dataset(function))
    assert may_keep_draws(function)


def test_who_holds_an_iterator_or_a_file_reads_on_unless_it_seeks(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n2\n")
    with open(tmp_path / "lines") as file:
        for held in (
            iter([1, 2]),
            queue.SimpleQueue[int](),
            csv.reader(["1"]),
            zip([1], [2], strict=True),
            file,
        ):
            reader = dataset(gives)
            reader.rows = held
            assert may_read_on(reader)
        seeking = dataset(reads_at_a_place)
        seeking.file = file
        assert not may_read_on(seeking)


class Lazy:
    """A proxy that must not be started by being looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


def test_what_a_dataset_holds_is_not_asked_for_its_attributes() -> None:
    held = dataset(gives)
    held.lazy = Lazy()
    assert not may_read_on(held)
    assert [int(one) for one in rk.DataLoader(held, sampler=[0, 2])] == [1, 3]


@pytest.mark.parametrize(
    "function", [gives, fills, builds, opens, adds, looks_up], ids=lambda one: one.__name__
)
def test_what_is_made_for_the_sample_is_no_change(function: Callable[[Any, int], Any]) -> None:
    assert not may_read_on(dataset(function))


def test_a_function_that_works_in_place_may_change_its_arguments() -> None:
    assert may_keep_draws(fills)
    assert may_keep_draws(builds)
    assert not may_keep_draws(gives)


class Collates(Held):
    """Another method than those that load samples."""

    def collate(self, samples: list[Any]) -> Any:
        self.calls += 1
        return samples

    def __getitem__(self, index: int) -> int:
        return index


def test_a_method_that_is_held_is_one_that_is_called() -> None:
    assert not may_read_on(Collates())
    assert may_read_on(Collates().collate)
