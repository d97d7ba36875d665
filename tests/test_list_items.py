"""Whether a list holds the very objects that it held."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.core.analysis import list_items
from rekindle.core.analysis.changes import Watched
from rekindle.core.analysis.list_items import same_items
from rekindle.core.forked_memory import EXCLUSIVE, _tells_exclusive_pages

LENGTHS = st.one_of(st.integers(0, 5), st.integers(120, 140), st.integers(1000, 2000))
CHANGES: dict[str, Callable[[list[Any], int], object]] = {
    "an equal object": lambda items, at: items.__setitem__(at, float(str(items[at]))),
    "one more": lambda items, at: items.insert(at, items[0]),
    "one less": lambda items, at: items.pop(at),
    "another order": lambda items, at: items.insert(0 if at else len(items), items.pop(at)),
    "none": lambda items, at: items.clear(),
    "many more": lambda items, at: items.extend(items * 9),
}


class Labels(list[Any]):
    """A list whose own methods say nothing about what it holds."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("code of the script is run")

    def __len__(self) -> int:
        return 7

    copy = __getitem__ = __eq__ = __iter__  # type: ignore[assignment]


def test_lists_are_compared_as_bytes_here() -> None:
    assert list_items._compare_bytes() is not None


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("kind", [list, Labels])
@given(length=LENGTHS)
def test_a_list_that_was_not_changed_holds_the_same(
    as_bytes: bool, kind: type[list[Any]], length: int
) -> None:
    items = [float(number) for number in range(length)]
    with pytest.MonkeyPatch.context() as patch:
        if not as_bytes:
            patch.setattr(list_items, "_compare_bytes", lambda: None)
        assert same_items(kind(items), tuple(items))


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("change", CHANGES)
@given(length=LENGTHS.filter(lambda length: length > 1), at=st.floats(0, 1, exclude_max=True))
def test_whatever_else_a_list_holds_is_noticed(as_bytes: bool, change: str, length: int, at: float) -> None:
    items = [float(number) for number in range(length)]
    held = tuple(items)
    CHANGES[change](items, int(at * length))
    with pytest.MonkeyPatch.context() as patch:
        if not as_bytes:
            patch.setattr(list_items, "_compare_bytes", lambda: None)
        assert not same_items(items, held)


@pytest.mark.skipif(not _tells_exclusive_pages(), reason="Linux does not tell which memory was copied")
def test_a_worker_that_looks_again_at_a_long_list_copies_no_memory_of_its_objects() -> None:
    texts = [f"{number:>200}" for number in range(20_000)]
    watched = Watched(texts, forks=True)
    pages = {id(text) // os.sysconf("SC_PAGESIZE") for text in texts}
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    worker = fork.Process(target=lambda: answers.put((watched.is_unchanged(), _own_share(pages))))
    worker.start()
    unchanged, share = answers.get()
    worker.join()
    assert unchanged
    assert share < 0.5


def _own_share(pages: set[int]) -> float:
    """Of some pages of memory, the share that this process alone has."""
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        entries = np.frombuffer(b"".join(os.pread(file.fileno(), 8, 8 * page) for page in pages), np.uint64)
    return float(np.mean((entries & EXCLUSIVE) != 0))
