"""Datasets of the scripts: map-style and streams, as users write them, which draw or do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    get_worker_info,
)

OFFSET = 0  # a global that scripts change
ENDLESS = 200  # batches, more than any of these epochs has
VIEWS = 2**40  # so many that two equal ones are no accident


def set_offset(offset: int) -> None:
    """Change the global that samples depend on."""
    global OFFSET
    OFFSET = offset


def draw(how: str) -> int:
    """A number from a global generator."""
    if how == "python":
        return random.randrange(VIEWS)
    if how == "numpy":
        return int(np.random.randint(VIEWS))
    if how == "torch":
        return int(torch.randint(VIEWS, ()))
    return 0


class Scale:
    """A step with an attribute."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def __call__(self, label: int) -> int:
        return label * self.factor


class Steps:
    """A list of steps, as Compose is."""

    def __init__(self, *steps: Callable[[int], int]) -> None:
        self.transforms = list(steps)

    def __call__(self, label: int) -> int:
        for step in self.transforms:
            label = step(label)
        return label


class Labelled(Dataset):
    """Samples in a few shapes, whose labels go through a transform."""

    bias = 0

    def __init__(self, script: Any, size: int, first: int = 0) -> None:
        self.shape, self.draws, self.bad = script.shape, script.draws, script.bad
        self.first, self.labels = first, list(range(1, size + 1))
        self.array = np.arange(size)
        self.transform = Steps(Scale())

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> Any:
        index = self.first + int(position)
        if index == self.bad:
            raise ValueError(f"cannot read sample {index}")
        label = self.transform(self.labels[position]) + int(self.array[position]) + self.bias + OFFSET
        view = draw(self.draws)
        if self.shape == "tuple":
            return index, label, view
        if self.shape == "dict":
            return {"index": index, "label": label, "view": view}
        if self.shape == "tensors":
            return torch.tensor(index), torch.tensor(label), torch.tensor(view)
        return np.array([index, label, view])


class AtOnce(Labelled):
    """Is asked for a whole batch."""

    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self[position] for position in positions]


class Wrapper(Dataset):
    """A wrapper that forwards what it does not have."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __getitem__(self, position: int) -> Any:
        return self.wrapped[len(self) - 1 - position]


class Numbers(IterableDataset):
    """Samples of an iterable dataset, all for each worker or dealt to them."""

    def __init__(self, script: Any) -> None:
        self.size, self.draws, self.bad, self.dealt = script.size, script.draws, script.bad, script.dealt

    def samples(self) -> Iterator[Any]:
        info = get_worker_info() if self.dealt else None
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.size, step):
            if index == self.bad:
                raise ValueError(f"cannot read sample {index}")
            yield index, index + OFFSET, draw(self.draws)

    def __iter__(self) -> Iterator[Any]:
        return self.samples()


class ItsOwnIterator(Numbers):
    """`iter()` starts over and gives the dataset itself."""

    def __iter__(self) -> Iterator[Any]:
        self.left = self.samples()
        return self

    def __next__(self) -> Any:
        return next(self.left)


class OnlyOnce(Numbers):
    """`iter()` gives the dataset itself, which does not start over."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.position >= self.size:
            raise StopIteration
        self.position += 1
        return self.position - 1, self.position + OFFSET, draw(self.draws)


class StartsOver(OnlyOnce):
    """A reader that starts over when asked again after its end."""

    def __next__(self) -> Any:
        if self.position >= self.size:
            self.position = 0
            raise StopIteration
        return super().__next__()


class OnlyNext(Numbers):
    """The iterator has `__next__` and no `__iter__`."""

    def __iter__(self) -> Any:
        return BareIterator(self.samples())


class BareIterator:
    """No more than the protocol of `next`."""

    def __init__(self, samples: Iterator[Any]) -> None:
        self.samples = samples

    def __next__(self) -> Any:
        return next(self.samples)


MAPS = {"map": Labelled, "at once": AtOnce}
ITERABLES = {
    "generator": Numbers,
    "its own iterator": ItsOwnIterator,
    "only once": OnlyOnce,
    "starts over": StartsOver,
    "only next": OnlyNext,
}
