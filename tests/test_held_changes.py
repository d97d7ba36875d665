"""What a dataset holds and changes is seen under any name: batches are those of torch's workers."""

from __future__ import annotations

import array
import bisect
import heapq
import operator
import random
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.core.analysis.self_changes import may_read_on
from same import same
from torch_datasets import Torch


class Held(Dataset[Any]):
    """What the functions below change."""

    def __init__(self) -> None:
        self.rows, self.pool, self.table = [[0], [0]], [3, 1, 2], {"n": 0}
        self.pair, self.ring, self.seen = ([0], 1), deque([1, 2, 3]), set[int]()
        self.counts, self.numbers, self.letters = Counter(a=9), array.array("d"), bytearray(b"abc")
        self.recent: OrderedDict[int, int] = OrderedDict({1: 1, 2: 2})
        self.x = np.arange(9.0)[::-1].copy()
        self.connection: Any = None

    def __len__(self) -> int:
        return 24

    def push(self, heap: list[int], value: int) -> None:
        heap.append(value)

    def row(self, number: int) -> list[int]:
        return self.rows[number]


def loops(self: Any, index: int) -> None:
    for row in self.rows:
        row[0] += 1


def loops_and_numbers(self: Any, index: int) -> None:
    for number, row in enumerate(self.rows):
        if number == index % 2:
            row.append(index)


def loops_within(self: Any, index: int) -> None:
    _ = [row.append(index) for row in self.rows]


def unpacks(self: Any, index: int) -> None:
    first, _ = self.pair
    first[0] = first[0] + 1


def views(self: Any, index: int) -> None:
    view = self.x.reshape(3, 3).T[0]
    view[0] += index


def reads_a_view(self: Any, index: int) -> float:
    view = self.x.view()
    last = float(view[0])
    view[0] = index
    return last


def looks_up(self: Any, index: int) -> None:
    self.table.setdefault("all", []).append(index)


def looks_up_before(self: Any, index: int) -> None:
    if (row := self.rows[index % 2]) is not None:
        row.append(index)


def either(self: Any, index: int) -> None:
    row = self.rows[0] if index % 2 else []
    row.append(index)


def asks_a_method(self: Any, index: int) -> None:
    self.row(0).append(index)


def passes_it_on(self: Any, index: int) -> None:
    self.push(self.pool, index)


def keeps_in_a_default(self: Any, index: int, seen: list[int] = []) -> int:  # noqa: B006 (That is the point.)
    seen.append(index)
    return len(seen)


def takes_a_method(self: Any, index: int) -> None:
    append = self.pool.append
    list(map(append, [index]))


def changes_an_array_in_place(self: Any, index: int) -> None:
    x = self.x
    x += index


def counts_by_get(self: Any, index: int) -> None:
    self.table[index % 2] = self.table.get(index % 2, 0) + 1


def adds_to_rows_in_place(self: Any, index: int) -> None:
    for row in self.rows:
        row += [index]


def changes_a_slice_in_place(self: Any, index: int) -> None:
    part = self.x[0:3]
    part += index


def adds_into_the_third_argument(self: Any, index: int) -> None:
    np.add(self.x, 1, self.x)


def by_a_text(self: Any, index: int) -> None:
    getattr(self, "pool").append(index)  # noqa: B009


def calls_itself(self: Any, index: int) -> None:
    def walk(rows: list[Any], depth: int) -> None:
        if depth:
            walk(rows, depth - 1)
        rows.append(index)

    walk(self.rows, 2)


def after_an_error(self: Any, index: int) -> None:
    try:
        row = self.rows[index]
    except IndexError:
        row = self.rows[0]
    row.append(index)


def in_sql(self: Any, index: int) -> None:
    cursor = self.connection.cursor()
    cursor.execute("INSERT INTO seen VALUES (?)", (index,))


METHODS: dict[str, Callable[[Any, int], Any]] = {
    "rotate": lambda self, index: (self.ring.rotate(1), self.ring[0])[1],
    "itemset": lambda self, index: self.table.__setitem__("n", self.table["n"] + 1),
    "iadd": lambda self, index: self.pool.__iadd__([index]),
    "operator.iadd": lambda self, index: operator.iadd(self.pool, [index]),
    "operator.setitem": lambda self, index: operator.setitem(self.table, "n", index),
    "heappush": lambda self, index: heapq.heappush(self.pool, index),
    "insort": lambda self, index: bisect.insort(self.pool, index),
    "shuffle": lambda self, index: random.shuffle(self.rows[0]),
    "cv2.randn": lambda self, index: cv2.randn(np.zeros(3, np.float32), 0.0, 1.0),
    "effect_noise": lambda self, index: Image.effect_noise((4, 4), 20),
    "subtracts a background": lambda self, index: cv2.createBackgroundSubtractorMOG2().apply(self.x),
}
FUNCTIONS = [
    loops, loops_and_numbers, loops_within, unpacks, views, reads_a_view, looks_up, looks_up_before,
    either, asks_a_method, passes_it_on, keeps_in_a_default, takes_a_method, changes_an_array_in_place,
    in_sql, counts_by_get, adds_to_rows_in_place, changes_a_slice_in_place, adds_into_the_third_argument,
    by_a_text, calls_itself, after_an_error,
]  # fmt: skip
STATEMENTS = [
    "self.ring.rotate(1)", "self.pool.reverse()", "self.pool.sort()", "self.x.sort()", "self.x.fill(index)",
    "self.x.put(0, self.x[0] + 1)", "self.x.partition(2)", "self.x.resize(4)", "self.seen.discard(index)",
    "self.seen.symmetric_difference_update({index})", "self.seen.intersection_update({index})",
    "self.counts.subtract('a')", "self.recent.move_to_end(1)", "self.numbers.fromlist([1.0])",
    "self.numbers.frombytes(bytes(8))", "self.letters.reverse()", "self.letters.insert(0, 1)",
    "memoryview(self.letters)[0] = self.letters[0] + 1", "np.asarray(self.x)[0] += 1",
    "np.put(self.x, 0, index)", "cv2.accumulate(image, self.x)", "list.append(self.pool, index)",
    "self.x[1:] = self.x[:-1]", "self.helper.note(index)",
]  # fmt: skip


def dataset(function: Callable[[Any, int], Any]) -> Any:
    return type("Changing", (Held,), {"__getitem__": function, "__module__": __name__})()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_changes_under_other_names_are_seen(function: Callable[[Any, int], Any]) -> None:
    assert may_read_on(dataset(function))


@pytest.mark.parametrize("name", METHODS)
def test_changes_by_functions_are_seen(name: str) -> None:
    assert may_read_on(dataset(METHODS[name]))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_calls_whose_results_nobody_uses_are_taken_for_changes(statement: str) -> None:
    functions: dict[str, Any] = {}
    exec(f"def changes(self, index, image=None):\n    {statement}\n    return index", globals(), functions)
    assert may_read_on(dataset(functions["changes"]))


def test_methods_that_are_held_are_seen() -> None:
    held = dataset(lambda self, index: self.add(index))
    held.add = held.pool.append
    assert may_read_on(held)
    held.add = held.pool.index
    assert not may_read_on(held)


def test_objects_that_go_on_are_seen() -> None:
    held = dataset(lambda self, index: self.norm(torch.zeros(2, 1)))
    held.norm = torch.nn.Sequential(torch.nn.BatchNorm1d(1))
    assert may_read_on(held)
    held.norm.eval()
    assert not may_read_on(held)
    held.norm = cv2.createCLAHE()
    assert not may_read_on(held)
    held.norm = cv2.createBackgroundSubtractorMOG2()
    assert may_read_on(held)


def test_selecting_rows_of_a_database_is_no_change() -> None:
    assert not may_read_on(
        dataset(lambda self, index: self.connection.execute("SELECT * FROM x WHERE i=?", (index,)))
    )


def test_code_that_is_too_long_to_be_followed_may_change_anything() -> None:
    functions: dict[str, Any] = {}
    exec("def long(self, index):\n    x = [index]\n" + "    x[0] = index\n" * 1500, functions)
    assert may_read_on(dataset(functions["long"]))


class Mosaic(Held):
    """Mixes each sample with the last ones of its class; some take longer."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001 * (index * 7 % 5))
        for number, row in enumerate(self.rows):
            if index % 2 == number:
                row.append(index)
        return index, sum(sum(row[-3:]) for row in self.rows)


class Noisy(Held):
    """Draws from OpenCV's own generator."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001 * (index * 7 % 5))
        return cv2.randn(np.zeros(3, np.float32), 0.0, 1.0)


def test_who_goes_on_gives_the_batches_of_torchs_workers() -> None:
    assert same([*rk.DataLoader(Mosaic(), 4, num_workers=2)], [*Torch(Mosaic(), 4, num_workers=2)])


def test_what_a_generator_of_c_code_draws_is_what_torchs_workers_draw_in_every_epoch() -> None:
    ours, theirs = (kind(Noisy(), 4, num_workers=2) for kind in (rk.DataLoader, Torch))
    expected = [*theirs]
    assert same([[*ours] for _ in range(2)], [expected] * 2)
