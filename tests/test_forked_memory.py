"""Arrays too large to hash between epochs: workers are kept while nothing is written to their memory."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.core.forked_memory import ForkedMemory, _tells_exclusive_pages

SIZE = 2 << 20
FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.skipif(not _tells_exclusive_pages(), reason="this kernel does not tell")


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def watched(array: NDArray[Any]) -> ForkedMemory:
    memory = ForkedMemory.at(address_of(array), array.nbytes)
    assert memory is not None
    return memory


@contextmanager
def forked(work: Callable[[], object] = lambda: None) -> Iterator[Any]:
    """A process that does some work, tells what came out, and lives until the end of the block."""
    ours, theirs = FORK.Pipe()

    def serve() -> None:
        theirs.send(work())
        theirs.recv()

    process = FORK.Process(target=serve)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


def test_what_nobody_writes_to_is_unwritten_in_all_processes() -> None:
    array = np.ones(SIZE, np.uint8)
    memory = watched(array)
    with forked(memory.is_unwritten) as in_worker:
        assert memory.is_unwritten()
    assert in_worker


@settings(max_examples=12)
@given(offset=st.integers(0, 5000), at=st.integers(0, SIZE - 1), value=st.integers(2, 255))
def test_any_byte_that_is_written_to_is_noticed(offset: int, at: int, value: int) -> None:
    whole = np.ones(SIZE + offset, np.uint8)
    array = whole[offset:]
    memory = watched(array)
    with forked():
        assert memory.is_unwritten()
        array[at] = value
        assert not memory.is_unwritten()


def test_what_a_worker_writes_to_its_copy_is_noticed_there() -> None:
    array = np.ones(SIZE, np.uint8)
    memory = watched(array)

    def write() -> bool:
        array[SIZE // 2] = 5
        return memory.is_unwritten()

    with forked(), forked(write) as in_worker:
        assert memory.is_unwritten()
    assert not in_worker


def test_a_later_fork_does_not_hide_what_was_written_before() -> None:
    array = np.ones(SIZE, np.uint8)
    memory = watched(array)
    with forked():
        array[SIZE // 2] = 5
        with forked():
            assert not memory.is_unwritten()


def test_nothing_is_proven_before_a_fork_or_after_the_workers_have_gone() -> None:
    array = np.ones(SIZE, np.uint8)
    memory = watched(array)
    assert not memory.is_unwritten()
    with forked():
        assert memory.is_unwritten()
    assert not memory.is_unwritten()


def test_memory_that_forks_do_not_copy_is_not_watched() -> None:
    with mmap.mmap(-1, SIZE) as shared:
        array = np.frombuffer(shared, np.uint8)
        array[:] = 1
        assert ForkedMemory.at(address_of(array), SIZE) is None
        del array


class Rows(Dataset[Any]):
    """Rows of a table, each with the process that gave it."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[float, int]:
        return float(self.table[index, 0]), os.getpid()


def epoch(loader: Any) -> tuple[list[float], set[int]]:
    values, pids = zip(
        *((v, p) for batch in loader for v, p in zip(*map(torch.Tensor.tolist, batch), strict=True)),
        strict=True,
    )
    return sorted(values), set(pids)


# Tables of 100 MB, which take longer to hash than is to pass between two epochs.
TABLES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.zeros(8, 25 << 17),
    "array": lambda: np.zeros((8, 25 << 17), np.float32) + 0,
}


@pytest.mark.parametrize("kind", TABLES)
def test_large_arrays_keep_their_workers_until_something_is_written(kind: str) -> None:
    table = TABLES[kind]()
    loader = rk.DataLoader(Rows(table), batch_size=2, num_workers=1, executor="processes")
    (_, first), (values, second) = epoch(loader), epoch(loader)
    assert values == [0.0] * 8
    assert first == second
    # An alias, which no version counter sees; and processes of somebody else's share the page again.
    np.asarray(table)[3, 0] = 7
    others = iter(torch.utils.data.DataLoader(Rows(np.zeros((8, 1))), num_workers=1, persistent_workers=True))
    next(others)
    values, third = epoch(loader)
    assert values == [0.0] * 7 + [7.0]
    assert not third & first


def test_an_array_that_was_writeable_for_a_moment_is_seen() -> None:
    for rows in (4, SIZE):
        table = np.zeros((8, rows // 4), np.float32) + 0
        table.flags.writeable = False
        loader = rk.DataLoader(Rows(table), batch_size=2, num_workers=2, executor="processes")
        assert epoch(loader)[0] == [0.0] * 8
        table.flags.writeable = True
        table[3, 0] = 7
        table.flags.writeable = False
        assert epoch(loader)[0] == [0.0] * 7 + [7.0]
