"""Training scripts put together at random, and what a loader gives them.

A `Script` is plain data: which dataset, sampler, collate function and workers, how many epochs, what the
script changes between them and where it stops. `play` writes it out with any loader class. Samples say what
they are (`index`, `label`) and which view of it they are (`view`: drawn from the global generators, or 0).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from differential.script_datasets import (
    ENDLESS,
    ITERABLES,
    MAPS,
    AtOnce,
    Labelled,
    Scale,
    Steps,
    Wrapper,
    set_offset,
)


class Rounds:
    """A collate function with state."""

    def __init__(self) -> None:
        self.tag = 0

    def __call__(self, samples: list[Any]) -> Any:
        return {"samples": samples, "tag": self.tag}


def as_list(samples: list[Any]) -> list[Any]:
    """The samples as they are."""
    return samples


class Repeated:
    """Repeated augmentation: each sample some times in a row."""

    def __init__(self, size: int, generator: torch.Generator | None) -> None:
        self.size, self.generator = size, generator

    def __iter__(self) -> Iterator[int]:
        # Drawn when the first index is asked for: with workers, torch asks for an iterator twice.
        for index in torch.randperm(self.size, generator=self.generator).tolist():
            yield from (index,) * 3

    def __len__(self) -> int:
        return 3 * self.size


class Uneven:
    """A batch sampler of batches of several sizes."""

    def __init__(self, size: int, generator: torch.Generator | None) -> None:
        self.size, self.generator = size, generator

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.size, generator=self.generator).tolist()
        while order:
            length = 1 + len(order) % 4
            yield order[:length]
            order = order[length:]

    def __len__(self) -> int:
        return len(list(self._lengths()))

    def _lengths(self) -> Iterator[int]:
        left = self.size
        while left > 0:
            yield 1 + left % 4
            left -= 1 + left % 4


@dataclass(frozen=True)
class Script:
    """What a script asks for."""

    kind: str = "map"
    size: int = 10
    wrapper: str = "none"
    shape: str = "tuple"
    draws: str = "none"
    order: str = "sequential"
    seeded: bool = False  # samplers have generators of their own
    dealt: bool = True
    batch_size: int | None = 3
    drop_last: bool = False
    collate: str = "default"
    workers: int = 0
    executor: str = "processes"
    persistent: bool = False
    epochs: int = 2
    change: str = "none"
    bad: int | None = None
    stop: int | None = None  # batches after which the loop leaves an epoch
    resume: tuple[int, int] = field(default=(0, 0))  # epoch, batches

    @property
    def is_iterable(self) -> bool:
        """Whether the dataset is one that is iterated."""
        return self.kind in ITERABLES

    @property
    def order_is_ours(self) -> bool:
        """Whether the loader's own seed decides the order, and not torch's generator."""
        return self.order == "shuffled" and not self.is_iterable

    @property
    def order_moves_torchs_generator(self) -> bool:
        """Whether the order is drawn from a generator that torch draws the base seeds of epochs from."""
        has_its_own = self.seeded or self.draws == "torch"
        drawn = ("weighted", "replacement", "random subset", "repeated", "uneven batches")
        return self.order == "generator" or (self.order in drawn and not has_its_own)


def dataset_of(script: Script) -> Any:
    """The dataset, new."""
    if script.is_iterable:
        return ITERABLES[script.kind](script)
    make = MAPS[script.kind]
    if script.wrapper == "concat":
        half = script.size // 2
        return ConcatDataset([make(script, half), make(script, script.size - half, half)])
    dataset: Any = make(script, script.size)
    if script.wrapper == "subset":
        return Subset(dataset, list(range(script.size - 1, 0, -1)))
    if script.wrapper == "subset of a subset":
        return Subset(Subset(dataset, list(range(script.size))), list(range(0, script.size, 2)))
    if script.wrapper == "forwarding":
        return Wrapper(dataset)
    return dataset


def order_of(script: Script, dataset: Any) -> dict[str, Any]:
    """The arguments that say in which order."""
    batches = {"batch_size": script.batch_size}
    if script.batch_size is not None:
        batches["drop_last"] = script.drop_last
    if script.is_iterable:
        return batches
    size = len(dataset)
    # Without workers, torch's samples and samplers draw from one generator; our samples do not move it.
    generator = torch.Generator().manual_seed(7) if script.seeded or script.draws == "torch" else None
    samplers: dict[str, Callable[[], Any]] = {
        "weighted": lambda: WeightedRandomSampler(
            [1.0 + index for index in range(size)], size, generator=generator
        ),
        "replacement": lambda: RandomSampler(dataset, True, size + 3, generator=generator),
        "random subset": lambda: SubsetRandomSampler(range(0, size, 2), generator=generator),
        "distributed": lambda: DistributedSampler(dataset, num_replicas=2, rank=1, seed=5),
        "list": lambda: [*range(size), 0, 0],
        "repeated": lambda: Repeated(size, generator),
    }
    if script.order in samplers:
        return {**batches, "sampler": samplers[script.order]()}
    if script.order == "batches" and script.batch_size is not None:
        return {
            "batch_sampler": BatchSampler(SequentialSampler(dataset), script.batch_size, script.drop_last)
        }
    if script.order == "uneven batches" and script.batch_size is not None:
        return {"batch_sampler": Uneven(size, generator)}
    if script.order == "generator":
        return {**batches, "shuffle": True, "generator": torch.Generator().manual_seed(11)}
    return {**batches, "shuffle": script.order == "shuffled"}


ORDERS = (
    "sequential", "shuffled", "weighted", "replacement", "random subset", "distributed", "list", "repeated",
    "batches", "uneven batches", "generator",
)  # fmt: skip
CHANGES = (
    "none", "step", "new step", "labels", "array", "global", "class", "collate", "transform", "method",
)  # fmt: skip


def inner(dataset: Any) -> Any:
    """The dataset within all wrappers."""
    while True:
        if isinstance(dataset, Subset):
            dataset = dataset.dataset
        elif isinstance(dataset, ConcatDataset):
            dataset = dataset.datasets[0]
        elif isinstance(dataset, Wrapper):
            dataset = dataset.wrapped
        else:
            return dataset


def apply_change(change: str, dataset: Any, collate: Any, epoch: int) -> None:
    """What the script does between two epochs."""
    if change == "global":
        set_offset(1000 * (epoch + 1))
    if change == "collate" and isinstance(collate, Rounds):
        collate.tag = epoch + 1
    labelled = inner(dataset)
    if not isinstance(labelled, Labelled):
        return
    if change == "step":
        labelled.transform.transforms[0].factor = 10 + epoch
    elif change == "new step":
        labelled.transform.transforms.insert(0, Scale(3))
    elif change == "transform":
        labelled.transform = Steps(Scale(5 + epoch))
    elif change == "labels":
        labelled.labels[len(labelled) // 2] = 500 + epoch
    elif change == "array":
        labelled.array[len(labelled) // 2] = 700 + epoch
    elif change == "class":
        type(labelled).bias = 50 * (epoch + 1)
    elif change == "method":
        plain = Labelled.__getitem__
        type(labelled).__getitem__ = lambda self, position: plain(self, (position + 1) % len(self))


def undo_changes() -> None:
    """Put back what scripts change outside their own objects."""
    set_offset(0)
    Labelled.bias = 0
    for kind in (AtOnce, Labelled):
        if "bias" in vars(kind) and kind is not Labelled:
            del kind.bias
    Labelled.__getitem__ = PLAIN_GETITEM
    if "__getitem__" in vars(AtOnce):
        del AtOnce.__getitem__


PLAIN_GETITEM = Labelled.__getitem__


@dataclass
class Setup:
    """A loader, and what the script holds besides."""

    loader: Any
    dataset: Any
    collate: Any


def set_up(script: Script, load: Callable[..., Any], **extra: Any) -> Setup:
    """The loader of a script, made under a fixed global seed."""
    undo_changes()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    dataset = dataset_of(script)
    collate = {"default": None, "list": as_list, "rounds": Rounds()}[script.collate]
    arguments: dict[str, Any] = {**order_of(script, dataset), **extra}
    if script.workers:
        arguments |= {"num_workers": script.workers, "persistent_workers": script.persistent}
    return Setup(load(dataset, collate_fn=collate, **arguments), dataset, collate)


Event = tuple[str, Any]


def one_epoch(script: Script, batches: Iterable[Any], stop: int | None) -> list[Event]:
    """What a pass gives, to its end, to an exception, or until the script leaves it."""
    events: list[Event] = []
    iterator = iter(batches)
    while stop is None or len(events) < stop:
        assert len(events) < ENDLESS, "an epoch without an end"
        try:
            events.append(("batch", next(iterator)))
        except StopIteration:
            break
        except ValueError as error:
            events.append(("error", str(error).strip().splitlines()[-1].removeprefix("ValueError: ")))
            break
    return events


def play(script: Script, load: Callable[..., Any], **extra: Any) -> list[list[Event]]:
    """All epochs of a script."""
    setup = set_up(script, load, **extra)
    try:
        epochs = []
        for epoch in range(script.epochs):
            sampler = getattr(setup.loader, "sampler", None)
            if isinstance(sampler, DistributedSampler):
                sampler.set_epoch(epoch)
            epochs.append(one_epoch(script, setup.loader, script.stop))
            apply_change(script.change, setup.dataset, setup.collate, epoch)
        return epochs
    finally:
        close(setup.loader)
        undo_changes()


def close(loader: Any) -> None:
    """End the workers of a loader of ours."""
    if hasattr(loader, "close"):
        loader.close()


@st.composite
def scripts(draw: st.DrawFn, *, workers: tuple[int, ...] = (0,)) -> Script:
    """Scripts of every kind; what does not go together is left out."""
    kind = draw(st.sampled_from([*MAPS, *MAPS, *ITERABLES]))
    script = Script(
        kind=kind,
        size=draw(st.integers(2, 17)),
        wrapper=draw(
            st.sampled_from(["none", "none", "subset", "subset of a subset", "concat", "forwarding"])
        ),
        shape=draw(st.sampled_from(["tuple", "dict", "tensors", "array"])),
        draws=draw(st.sampled_from(["none", "python", "numpy", "torch"])),
        order=draw(st.sampled_from(ORDERS)),
        dealt=draw(st.booleans()),
        batch_size=draw(st.sampled_from([None, 1, 2, 3, 5, 20])),
        drop_last=draw(st.booleans()),
        collate=draw(st.sampled_from(["default", "default", "list", "rounds"])),
        workers=draw(st.sampled_from(workers)),
        executor=draw(st.sampled_from(["processes", "threads"])),
        persistent=draw(st.booleans()),
        epochs=draw(st.integers(1, 3)),
        change=draw(st.sampled_from(CHANGES)),
        bad=draw(st.sampled_from([None, None, None, 1, 3])),
        stop=draw(st.sampled_from([None, None, None, 0, 1, 2])),
        resume=draw(st.tuples(st.integers(0, 1), st.integers(0, 5))),
    )
    if script.is_iterable:
        script = replace(script, wrapper="none", shape="tuple", order="sequential", executor="processes")
        if script.kind in ("only once", "starts over") and script.persistent and script.stop is not None:
            return replace(script, stop=None)  # How far workers were ahead is nobody's promise.
    return script
