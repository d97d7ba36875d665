"""Training scripts put together at random, and what a loader gives them.

A `Script` is plain data: which dataset, sampler, collate function and workers, how many epochs, what the
script changes between them and where it stops. `play` writes it out with any loader class. Samples say what
they are (`index`, `label`) and which view of it they are (`view`: drawn from the global generators, or 0).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
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
    resumed_with: int = 0  # workers

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
        return self.order == "generator" or (self.order in DRAWN_ORDERS and not has_its_own)


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


WRAPPERS = ("none", "subset", "subset of a subset", "concat", "forwarding")
ORDERS = (
    "sequential", "shuffled", "weighted", "replacement", "random subset", "distributed", "list", "repeated",
    "batches", "uneven batches", "generator",
)  # fmt: skip
DRAWN_ORDERS = ("weighted", "replacement", "random subset", "repeated", "uneven batches")
BATCH_ORDERS = ("batches", "uneven batches")
CHANGES = (
    "none", "step", "new step", "labels", "array", "global", "class", "collate", "transform", "method",
    "batch sampler",
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


def apply_change(change: str, setup: Setup, epoch: int) -> None:
    """What the script does between two epochs."""
    dataset, collate = setup.dataset, setup.collate
    if change == "batch sampler":
        replace_sampler(setup.loader, range(len(dataset) - 1, epoch, -1))
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


def replace_sampler(loader: Any, order: Sequence[int]) -> None:
    """What Ultralytics does, past the check by which torch's loader refuses it."""
    if loader.batch_sampler is None:
        object.__setattr__(loader, "sampler", order)
    else:
        object.__setattr__(loader, "batch_sampler", BatchSampler(order, 2, False))


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
            apply_change(script.change, setup, epoch)
        return epochs
    finally:
        close(setup.loader)
        undo_changes()


def close(loader: Any) -> None:
    """End the workers of a loader of ours."""
    if hasattr(loader, "close"):
        loader.close()


@st.composite
def scripts(draw: st.DrawFn, *, workers: tuple[int, ...] = (0,), resumed: bool = False) -> Script:
    """Scripts of every kind, of which no two do the same: only what matters to a script is drawn."""

    def one_of(*choices: Any) -> Any:
        return draw(st.sampled_from(choices))

    kind, wrapper = one_of(*product(MAPS, WRAPPERS), *((kind, "none") for kind in ITERABLES))
    script = Script(
        kind=kind,
        wrapper=wrapper,
        size=draw(st.integers(2, 17)),
        draws=one_of("none", "python", "numpy", "torch"),
        batch_size=one_of(3, 1, 2, 5, 20, None),
        collate=one_of("default", "list", "rounds"),
        workers=one_of(*workers),
        epochs=one_of(2, 3, 1),
    )
    streams, own_batches = script.is_iterable, False
    if not streams:
        orders = [order for order in ORDERS if script.batch_size is not None or order not in BATCH_ORDERS]
        script = replace(
            script,
            shape=one_of("tuple", "dict", "tensors", "array"),
            order=one_of(*orders),
        )
        own_batches = script.order == "uneven batches"
        if script.order in DRAWN_ORDERS:
            script = replace(script, seeded=resumed or draw(st.booleans()))
    elif script.workers > 1:
        script = replace(script, dealt=draw(st.booleans()))
    if own_batches:
        script = replace(script, batch_size=3)
    elif script.batch_size is not None:
        script = replace(script, drop_last=draw(st.booleans()))
    if script.workers:
        script = replace(
            script,
            executor="processes" if streams else one_of("processes", "threads"),
            persistent=draw(st.booleans()),
        )
    if resumed:
        resume = draw(st.tuples(st.integers(0, script.epochs - 1), st.integers(0, 9)))
        return replace(script, resume=resume, resumed_with=script.workers if streams else one_of(*workers))
    if script.epochs > 1:
        changes = ("none", "global") if streams else [name for name in CHANGES if name != "collate"]
        script = replace(
            script, change=one_of(*changes, *(["collate"] if script.collate == "rounds" else []))
        )
    if draw(st.booleans()):
        bad, stop = one_of((1, None), (3, None), (None, 0), (None, 1), (None, 2), (1, 1), (3, 2))
        script = replace(script, bad=bad, stop=stop)
    if script.kind in ("only once", "starts over") and script.persistent:
        return replace(script, stop=None)  # How far workers were ahead is nobody's promise.
    return script
