"""What the main process finds in a dataset's code, workers need not look for: if theirs is the same."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import rekindle as rk
from rekindle.core.analysis.changes import Watched
from rekindle.run import sample_loader
from rekindle.run.job import Job
from rekindle.run.sent_job import SentJob

AFTER_FORK: list[Callable[[], None]] = []
os.register_at_fork(after_in_child=lambda: [hook() for hook in AFTER_FORK])
SCALE = 1.0


def drawn(self: "Numbers", index: int) -> float:
    """Another `__getitem__`."""
    return float(np.random.random()) + index


class Numbers(Dataset[float]):
    def __init__(self) -> None:
        self.rng: np.random.Generator | None = None
        self.offsets = [0.5, 1.5]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        drawn_now = 0.0 if self.rng is None else float(self.rng.random())
        return SCALE * index + self.offsets[index % 2] + drawn_now


def job_of(dataset: Any, **others: Any) -> Job:
    return Job(
        dataset=dataset,
        collate_fn=default_collate,
        batched=True,
        drop_last=False,
        stop_at_failure=True,
        skip_failures=False,
        substitutes=False,
        workers=2,
        worker_init_fn=None,
        **{"watched": Watched(dataset, default_collate, forks=True), **others},
    )


def samples_of(loader: rk.DataLoader) -> list[float]:
    return [float(sample) for batch in loader for sample in batch]


class Noise:
    def __call__(self) -> float:
        return float(np.random.random())


class Items(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[Any] = ["a", 1] * 1000

    def __getitem__(self, index: int) -> float:
        items = self.items
        return items[index]()


def test_what_is_put_into_a_long_list_after_the_main_process_looked_is_seeded_for_each_sample():
    dataset = Items()
    found = SentJob(job_of(dataset, watched=None), forks=True).known()
    assert found is not None
    assert found.drawn_from == ()
    assert found.asks_again

    def put_in(worker: int) -> None:
        dataset.items[:] = [Noise()] * 2000

    seen = []
    for workers in (1, 2):
        options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "seed": 5}
        with rk.DataLoader(dataset, batch_size=3, worker_init_fn=put_in, **options) as loader:
            seen.append(samples_of(loader))
    assert seen[0] == seen[1]
    assert len({*seen[0]}) == 12


@pytest.fixture
def lookers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], set[int]]:
    """The processes that have looked into code."""
    note, look_into = tmp_path / "pids", sample_loader.look_into

    def noted(*arguments: Any, **options: Any) -> Any:
        with note.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return look_into(*arguments, **options)

    monkeypatch.setattr(sample_loader, "look_into", noted)
    return lambda: {int(line) for line in note.read_text().splitlines()}


def test_forked_workers_do_not_look_again_for_what_the_main_process_has_found(
    lookers: Callable[[], set[int]],
):
    with rk.DataLoader(Numbers(), batch_size=3, num_workers=2, multiprocessing_context="fork") as loader:
        assert len(samples_of(loader)) == 12
    assert lookers() == {os.getpid()}


def test_workers_look_themselves_where_a_worker_init_fn_may_have_changed_their_dataset(
    lookers: Callable[[], set[int]],
):
    options: dict[str, Any] = {"multiprocessing_context": "fork", "worker_init_fn": lambda number: None}
    with rk.DataLoader(Numbers(), batch_size=3, num_workers=2, **options) as loader:
        samples_of(loader)
    assert os.getpid() not in lookers()
    assert lookers()


def _put_in_a_generator(dataset: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset.rng = np.random.default_rng(0)


def _exchange_a_method(dataset: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numbers, "__getitem__", drawn)


def _exchange_code(dataset: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numbers.__getitem__, "__code__", drawn.__code__)


def _exchange_a_global(dataset: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 2.0)


def _change_an_item(dataset: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset.offsets[1] = torch.Generator()  # type: ignore[call-overload]


def _exchange_the_class(dataset: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset.__class__ = type("Others", (Numbers,), {"__getitem__": drawn})


@pytest.mark.parametrize(
    "change",
    [
        _put_in_a_generator,
        _exchange_a_method,
        _exchange_code,
        _exchange_a_global,
        _change_an_item,
        _exchange_the_class,
    ],
)
def test_what_was_found_does_not_hold_for_a_dataset_that_was_changed_since(
    change: Callable[[Numbers, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    dataset = Numbers()
    sent = SentJob(job_of(dataset), forks=True)
    assert sent.known() is not None
    change(dataset, monkeypatch)
    assert sent.known() is None


def test_what_arrays_hold_makes_no_difference_to_what_was_found():
    dataset = Numbers()
    dataset.offsets = torch.zeros(4)  # type: ignore[assignment]
    sent = SentJob(job_of(dataset), forks=True)
    dataset.offsets += 1  # type: ignore[operator, assignment]
    assert sent.known() is not None


def test_a_worker_that_is_not_forked_looks_itself():
    dataset = Numbers()
    assert SentJob(job_of(dataset), forks=False).known() is None
    assert pickle.loads(pickle.dumps(SentJob(job_of(dataset), forks=True))).known() is None


def test_nothing_is_known_of_what_is_not_watched():
    dataset = Numbers()
    assert SentJob(job_of(dataset, watched=None), forks=True).known() is None
    assert SentJob(job_of(dataset, watched=Watched(Numbers(), default_collate)), forks=True).known() is None


def test_a_generator_that_a_hook_puts_in_after_the_fork_is_seeded_for_each_sample():
    dataset, seen = Numbers(), []

    def hook() -> None:
        dataset.rng = np.random.default_rng()

    AFTER_FORK.append(hook)
    try:
        for workers in (1, 2):
            options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "seed": 5}
            with rk.DataLoader(dataset, batch_size=3, **options) as loader:
                seen.append(samples_of(loader))
    finally:
        AFTER_FORK.clear()
    assert seen[0] == seen[1]
    assert len({sample % 0.5 for sample in seen[0]}) == 12
