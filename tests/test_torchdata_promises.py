"""What torchdata's StatefulDataLoader promises of a saved state holds for ours, wherever the state is kept:
in the dataset, in its iterator, in the sampler or in the sampler's iterator, or nowhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, get_worker_info

import rekindle as rk

SIZES = (0, 11, 4)  # what each of three workers has: one has nothing
EPOCHS = 3


def own_numbers() -> range:
    """Those of this worker; all of them without workers."""
    info = get_worker_info()
    if info is None:
        return range(sum(SIZES))
    return range(sum(SIZES[: info.id]), sum(SIZES[: info.id + 1]))


class Cursor:
    """An iterator that can say where it is."""

    def __init__(self, numbers: range, draws: bool = False) -> None:
        self.numbers, self.draws, self.position = numbers, draws, 0

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Any:
        if self.position >= len(self.numbers):
            raise StopIteration
        self.position += 1
        found = self.numbers[self.position - 1]
        return (found, int(torch.randint(2**40, ()))) if self.draws else found

    def state_dict(self) -> dict[str, Any]:
        return {"within": {"position": self.position}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["within"]["position"]


class StateInItsIterator(IterableDataset[Any]):
    draws = False

    def __iter__(self) -> Iterator[Any]:
        return Cursor(own_numbers(), self.draws)


class DrawsInItsIterator(StateInItsIterator):
    draws = True


class StateInTheDataset(IterableDataset[Any]):
    """Counts its epochs; its state has other keys at every position."""

    def __init__(self) -> None:
        self.position, self.epoch, self.resumed = 0, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self.position, self.resumed = self.resumed, 0
        for number in own_numbers()[self.position :]:
            self.position += 1
            yield number, self.epoch
        self.position = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        seen = {f"seen {number}": [number] for number in range(self.position)}
        return {"position": self.position, "epoch": self.epoch, **seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resumed, self.epoch = state["position"], state["epoch"]
        assert len(state) == 2 + self.resumed


class NoState(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from own_numbers()


class Rows(Dataset[Any]):
    """Samples of several types."""

    def __len__(self) -> int:
        return sum(SIZES)

    def __getitem__(self, index: int) -> Any:
        return {"id": index, "text": f"row {index}", "drawn": int(torch.randint(2**40, ()))}


class CursorSampler:
    """Its iterator has the state."""

    def __len__(self) -> int:
        return sum(SIZES)

    def __iter__(self) -> Iterator[int]:
        return Cursor(range(sum(SIZES)))


class SamplerWithState(CursorSampler):
    """A generator function, and a state of its own that counts epochs: each begins elsewhere."""

    def __init__(self) -> None:
        self.position, self.epoch, self.resumed = 0, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.position, self.resumed = self.resumed, 0
        for number in range(self.position, len(self)):
            self.position += 1
            yield (number + self.epoch) % len(self)
        self.position = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resumed, self.epoch = state["position"], state["epoch"]


def seeded(size: int) -> RandomSampler:
    return RandomSampler(range(size), generator=torch.Generator().manual_seed(13))


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "state in the iterator": lambda: {"dataset": StateInItsIterator()},
    "draws in the iterator": lambda: {"dataset": DrawsInItsIterator()},
    "state in the dataset": lambda: {"dataset": StateInTheDataset()},
    "no state": lambda: {"dataset": NoState()},
    "rows in order": lambda: {"dataset": Rows()},
    "rows, RandomSampler": lambda: {"dataset": Rows(), "sampler": seeded(sum(SIZES))},
    "rows, state in the sampler's iterator": lambda: {"dataset": Rows(), "sampler": CursorSampler()},
    "rows, state in the sampler": lambda: {"dataset": Rows(), "sampler": SamplerWithState()},
}
WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "3 workers": {"num_workers": 3},
    "3 workers that persist": {"num_workers": 3, "persistent_workers": True},
}


def loader_of(kind: str, way: str, **options: Any) -> Any:
    return rk.DataLoader(
        **KINDS[kind](), collate_fn=list, seed=5, **{"batch_size": 2, **WAYS[way], **options}
    )


def rest_of(loader: Any, epoch: int) -> list[list[Any]]:
    with loader:
        return [[*loader] for _ in range(epoch, EPOCHS)]


@pytest.mark.parametrize("way", ["inline", "3 workers that persist"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_state_is_what_followed_it(kind: str, way: str) -> None:
    """States before the first batch, after some, after the last one, and between two epochs."""
    whole: list[list[Any]] = []
    states: list[tuple[int, int, Any]] = []
    with loader_of(kind, way) as loader:
        for epoch in range(EPOCHS):
            whole.append([])
            if epoch == 1:
                states.append((epoch, 0, copy.deepcopy(loader.state_dict())))
            for batch in loader:
                whole[-1].append(batch)
                if epoch < 2 and len(whole[-1]) in (1, 5):
                    loader.state_dict()  # To ask twice changes nothing.
                    states.append((epoch, len(whole[-1]), copy.deepcopy(loader.state_dict())))
    # Starting workers takes longest: with them, a state of each kind.
    for epoch, batches, state in states if way == "inline" else states[1:4]:
        other = loader_of(kind, way)
        other.load_state_dict(state)
        found = rest_of(other, epoch)
        assert found == [whole[epoch][batches:], *whole[epoch + 1 :]], (epoch, batches)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_asked_for_before_the_first_batch(kind: str) -> None:
    first = loader_of(kind, "inline")
    state = first.state_dict()
    iterator = iter(first)
    begun = first.state_dict()
    expected = [*iterator]
    for saved in (state, begun):
        other = loader_of(kind, "inline")
        other.load_state_dict(saved)
        assert [*other] == expected


def test_a_stream_of_three_workers_is_not_resumed_by_two() -> None:
    with loader_of("state in the dataset", "3 workers") as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = loader_of("state in the dataset", "inline", num_workers=2)
    with pytest.raises(rk.StateError, match="num_workers"):
        other.load_state_dict(state)


def test_two_loaders_of_one_dataset_have_states_of_their_own() -> None:
    dataset = Rows()
    one, two, alone = (
        rk.DataLoader(dataset, 2, shuffle=True, seed=seed, collate_fn=list) for seed in (1, 2, 1)
    )
    found = [batch for batch, _ in zip(one, two, strict=True)]
    assert found == [*alone]
    assert one.state_dict()["seed"] != two.state_dict()["seed"]
