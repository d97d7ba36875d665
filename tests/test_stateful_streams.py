"""Streams with a state of their own are resumed from it, exactly and without reading them again."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset, get_worker_info

import rekindle as rk
from resumable import through_a_file
from same import digest

# Resumed by their own state.


def my_part(size: int) -> range:
    info = get_worker_info()
    return range(size) if info is None else range(info.id, size, info.num_workers)


class Dealt(IterableDataset[Any]):
    """A dataset with a state; `made` counts what it is asked for in this process, `epoch` its passes."""

    def __init__(self, size: int = 29, draws: bool = True, padding: int = 0) -> None:
        self.size, self.draws, self.padding = size, draws, padding
        self.position = self.start = self.epoch = self.made = 0

    def __iter__(self) -> Iterator[Any]:
        self.position, self.start = self.start, 0
        mine = my_part(self.size)
        while self.position < len(mine):
            self.position += 1
            self.made += 1
            noise = random.random() + float(np.random.random_sample()) if self.draws else 0.0
            yield mine[self.position - 1], self.epoch, noise
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "epoch": self.epoch, "padding": "-" * self.padding}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.epoch = state["position"], state["epoch"]


class Counting:
    """An iterator with a state."""

    def __init__(self) -> None:
        self.mine, self.position = my_part(29), 0

    def __next__(self) -> int:
        if self.position >= len(self.mine):
            raise StopIteration
        self.position += 1
        return self.mine[self.position - 1]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class StatefulIterator(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return Counting()  # type: ignore[return-value]


class Both(IterableDataset[int]):
    """Its own iterator, with a state; goes on from epoch to epoch."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> "Both":
        return self

    def __next__(self) -> int:
        self.position += 1
        if self.position % 14 == 0:
            raise StopIteration
        return self.position

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


STATEFUL: dict[str, Callable[[], Any]] = {
    "dataset": Dealt,
    "dataset without draws": lambda: Dealt(draws=False),
    "large state": lambda: Dealt(draws=False, padding=10_000),
    "iterator": StatefulIterator,
    "own iterator": Both,
}


@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (0, {"drop_last": True}), (2, {}), (1, {"persistent_workers": True, "drop_last": True})],
)
@pytest.mark.parametrize("kind", STATEFUL)
def test_a_stateful_stream_resumes_anywhere_with_what_it_keeps_across_epochs(
    kind: str, workers: int, options: dict[str, Any]
) -> None:
    def make() -> rk.DataLoader[Any]:
        return rk.DataLoader(STATEFUL[kind](), 3, num_workers=workers, seed=5, **options)

    loader = make()
    straight, states = list[list[str]](), list[tuple[int, int, dict[str, Any]]]()
    for epoch in range(3):
        straight.append([])
        states.append((epoch, 0, loader.state_dict()))
        for batch in loader:
            straight[-1].append(digest(batch))
            states.append((epoch, len(straight[-1]), loader.state_dict()))
    loader.close()
    for epoch, step, state in states if workers == 0 else states[1::9]:
        resumed = make()
        resumed.load_state_dict(through_a_file(state))
        assert [digest(batch) for batch in resumed] == straight[epoch][step:], (epoch, step)
        if epoch < 2:
            assert [digest(batch) for batch in resumed] == straight[epoch + 1], (epoch, step)
        resumed.close()


@pytest.mark.parametrize("kind", ["dataset", "own iterator"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_state_of_before_the_first_batch_puts_a_stream_back_that_was_read_since(
    kind: str, begun: bool
) -> None:
    loader = rk.DataLoader(STATEFUL[kind](), 3, seed=5)
    iterator = iter(loader) if begun else None
    state = through_a_file(loader.state_dict())
    epochs = [[*map(digest, loader if iterator is None else iterator)], [*map(digest, loader)]]
    loader.load_state_dict(state)
    assert [[*map(digest, loader)], [*map(digest, loader)]] == epochs


def test_a_state_without_that_of_the_dataset_is_refused_by_a_loader_that_has_read_from_it() -> None:
    loader = rk.DataLoader(Dealt(), 3, seed=5, reuse=rk.Echo(2))
    state = loader.state_dict()
    next(iter(loader))
    with pytest.raises(rk.StateError, match=r"state_dict.. of Dealt, from which this loader has read"):
        loader.load_state_dict(state)


def in_a_tuple(sample: Any) -> tuple[Any, int]:
    return sample, 1


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_stream_with_a_final_transform_keeps_its_state(kind: str, workers: int) -> None:
    def make() -> rk.DataLoader[Any]:
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        return rk.DataLoader(STATEFUL[kind](), 3, seed=5, final_transform=in_a_tuple, **options)

    loader = make()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(through_a_file(state))
    assert [digest(batch) for batch in resumed] == [digest(batch) for batch in iterator]
    loader.close()
    resumed.close()


def test_a_stateful_stream_is_resumed_without_reading_it_again() -> None:
    loader = rk.DataLoader(Dealt(2000, draws=False), 10)
    iterator = iter(loader)
    for _ in range(150):
        next(iterator)
    dataset = Dealt(2000, draws=False)
    resumed = rk.DataLoader(dataset, 10)
    resumed.load_state_dict(loader.state_dict())
    assert digest(next(iter(resumed))) == digest(next(iterator))
    assert dataset.made == 10


def test_the_state_of_a_worker_is_that_of_the_batch_yielded_not_of_what_it_prefetched() -> None:
    loader = rk.DataLoader(Dealt(400), 5, num_workers=2, prefetch_factor=8)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    states = loader.state_dict()["iterable"]["datasets"]
    assert [one["passes"] == [0] or one["state"] for one in states]
    assert [one["state"]["dataset"]["position"] + 5 * one["passes"][0] for one in states] == [15, 15]


def test_a_large_state_is_not_taken_behind_every_batch() -> None:
    dataset = Dealt(300, draws=False, padding=40_000)
    taken = 0

    def counted() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return Dealt.state_dict(dataset)

    dataset.state_dict = counted  # type: ignore[method-assign]
    list(rk.DataLoader(dataset, 5))
    assert 3 <= taken <= 8  # of 60 batches; 40 kB count as ten times the size of a small state


class HoldsAnArray(Dealt):
    def state_dict(self) -> dict[str, Any]:
        return {"buffer": [np.zeros(3)]}


class CannotSave(Dealt):
    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("no state here")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (HoldsAnArray, r"\['buffer'\]\[0\] is a numpy.ndarray"),
        (CannotSave, "NotImplementedError: no state here"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_cannot_be_saved_is_an_error_of_saving_not_of_loading(
    dataset: Callable[[], Any], message: str, workers: int
) -> None:
    loader = rk.DataLoader(dataset(), 5, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(rk.StateError, match=message):
        loader.state_dict()
    assert len(list(iterator)) == 5


class Stateless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def test_the_state_of_another_dataset_is_refused() -> None:
    loader = rk.DataLoader(Dealt(), 5, seed=1)
    next(iter(loader))
    with pytest.raises(rk.StateError, match="saved with a dataset that has state_dict"):
        rk.DataLoader(Stateless(), 5, seed=1).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.update(datasets=[]), "datasets: expected a state for each of 1 workers"),
        (lambda saved: saved["datasets"][0].update(passes=[-1]), "passes: expected numbers of batches"),
        (lambda saved: saved["datasets"][0].update(passes=[]), "passes: expected numbers of batches"),
        (lambda saved: saved["datasets"][0].update(state={}), "state: expected"),
        (lambda saved: saved["datasets"][0]["state"].update(generators=7), "generators: expected"),
        (lambda saved: saved["datasets"][0].pop("state"), "state: missing"),
    ],
)
def test_a_damaged_state_of_a_dataset_is_refused_by_its_field(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    loader = rk.DataLoader(Dealt(), 5, seed=1)
    next(iter(loader))
    state = loader.state_dict()
    change(state["iterable"])
    with pytest.raises(rk.StateError, match=message):
        rk.DataLoader(Dealt(), 5, seed=1).load_state_dict(state)


def test_an_echoed_stateful_stream_cannot_be_saved_in_a_later_epoch() -> None:
    loader = rk.DataLoader(Dealt(), 5, reuse=rk.Echo(2))
    next(iter(loader))
    loader.state_dict()
    list(loader)
    with pytest.raises(rk.StateError, match="a later epoch cannot be saved"):
        loader.state_dict()
