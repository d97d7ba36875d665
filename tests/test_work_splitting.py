"""How batches are split: parts worth a message, also where workers wait for a processor."""

import pytest

from rekindle.run.work_splitting import Load, WorkSplitter


def sizes(splitter: WorkSplitter, rows: int, batches: int = 4) -> list[int]:
    """The sizes of a batch's parts, which come back at once."""
    parts = splitter.assign(0, rows, whole=False, batches=batches)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == rows
    splitter.came_back += [Load(part.worker, part.stop - part.start, 0, 0.0) for part in parts]
    return [part.stop - part.start for part in parts]


def note(splitter: WorkSplitter, seconds: float, times: int = 1) -> None:
    """Let a part of eight samples have taken so long for each of them."""
    splitter.came_back += [Load(0, 0, 8, 8 * seconds)] * times


@pytest.mark.parametrize(("seconds", "largest"), [(1e-2, 8), (1e-3, 8), (3e-4, 17), (1e-6, 64)])
def test_parts_of_short_samples_are_larger(seconds: float, largest: int) -> None:
    splitter = WorkSplitter(2, whole=False, in_order=True)
    assert sizes(splitter, 64) == [32, 32]  # before anything is known
    note(splitter, seconds)
    assert max(sizes(splitter, 64)) == largest


def test_workers_that_wait_for_a_processor_get_no_smaller_parts() -> None:
    splitter = WorkSplitter(2, whole=False, in_order=True)
    note(splitter, 3e-4)
    quiet = sizes(splitter, 64)
    for _ in range(40):  # Every other part takes three times as long.
        note(splitter, 9e-4)
        note(splitter, 3e-4)
        splitter.assign(0, 0, whole=False, batches=4)
    assert max(sizes(splitter, 64)) >= 0.7 * max(quiet)
    note(splitter, 1e-2, times=200)  # Samples that do take longer are in smaller parts in the end.
    assert max(sizes(splitter, 64)) == 8


def test_with_many_workers_parts_take_longer_each() -> None:
    few, many = (WorkSplitter(workers, whole=False, in_order=True) for workers in (4, 32))
    for splitter in (few, many):
        note(splitter, 5e-3)
    assert max(sizes(few, 256, 4)) == 16
    assert max(sizes(many, 256, 4)) == 4


def test_where_many_batches_are_in_flight_parts_are_not_small() -> None:
    splitter = WorkSplitter(16, whole=False, in_order=True)
    note(splitter, 1e-2)
    assert max(sizes(splitter, 64, 4)) == 1
    assert max(sizes(splitter, 64, 32)) == 8
