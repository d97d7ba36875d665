"""Checks a loader's own arguments, so that what cannot work is found before anything starts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sized
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from rekindle.choose import OrderKind, Redundancy, batches_per_epoch
from rekindle.choose.importance import name_of
from rekindle.choose.seeding import DrawnSeed
from rekindle.core.given_numbers import integer_of, number_of
from rekindle.core.state_fields import MOST_EPOCHS
from rekindle.errors import ArgumentError, StateError
from rekindle.loader.sharding import LoaderOrder, is_the_group
from rekindle.reuse import Echo, Refurbish
from rekindle.reuse.cache.memory_budget import Memory, checked_memory
from rekindle.run.ray.settings import Ray, check_installed
from rekindle.run.stream_reader import is_stateful

if TYPE_CHECKING:
    from rekindle.loader.dataloader import DataLoader

# The arguments that torch's loader does not have.
OWN = (
    "seed", "executor", "on_error", "error_budget", "reuse", "final_transform", "memory", "device",
    "batch_transform", "importance", "redundancy", "native", "shard",
)  # fmt: skip
DEFAULT_ERROR_BUDGET = 0.01
_EXECUTORS = ("auto", "threads", "processes")
_ON_ERROR = ("raise", "skip", "substitute")


def order_kind(is_iterable: bool, follows_sampler: bool, shuffle: bool) -> OrderKind:
    """Who decides the order, by the arguments."""
    if is_iterable:
        return OrderKind.ITERABLE
    if follows_sampler:
        return OrderKind.SAMPLER
    return OrderKind.SHUFFLED if shuffle else OrderKind.SEQUENTIAL


def checked_seed(seed: object) -> int | None:
    """The seed that was given, or that was drawn for a loader before; ArgumentError if it cannot be one."""
    if seed is None or isinstance(seed, DrawnSeed):
        return seed
    number = integer_of(seed)
    if number is None or not 0 <= number < 2**63:
        raise ArgumentError(f"seed must be an integer from 0 to 2**63 - 1 or None, but got {seed!r}")
    return number


def check(executor: object, on_error: object, error_budget: object, order: OrderKind) -> None:
    """ArgumentError if an argument has a value that means nothing."""
    if not isinstance(executor, Ray) and executor not in _EXECUTORS:
        raise ArgumentError(f"executor must be rekindle.Ray(…) or one of {_EXECUTORS}, but got {executor!r}")
    if on_error not in _ON_ERROR:
        raise ArgumentError(f"on_error must be one of {_ON_ERROR}, but got {on_error!r}")
    share = number_of(error_budget)
    if share is None or not 0 <= share <= 1:
        raise ArgumentError(f"error_budget is a share of the samples, from 0 to 1, but got {error_budget!r}")
    if on_error == "raise" and share not in (0, DEFAULT_ERROR_BUDGET):
        raise ArgumentError(
            f"error_budget={error_budget!r} says how many bad samples are passed over, but on_error='raise' "
            "passes over none. Give on_error='skip' or 'substitute', or leave error_budget out."
        )
    if order is OrderKind.ITERABLE and on_error != "raise":
        raise ArgumentError(
            f"on_error={on_error!r} does not go with an IterableDataset, whose iterator ends with its first "
            "exception. Handle bad samples within the dataset."
        )
    if order is OrderKind.ITERABLE and executor == "threads":
        raise ArgumentError(
            "executor='threads' does not go with an IterableDataset: threads share one copy of it. "
            "Use executor='processes', or num_workers=0."
        )
    if order is OrderKind.ITERABLE and isinstance(executor, Ray):
        raise ArgumentError(
            "executor=Ray(…) does not go with an IterableDataset, whose iterators cannot move from a node "
            "that is lost to another. Use executor='processes', or a map-style dataset (rekindle.open)."
        )


def worker_count(num_workers: int, executor: object, context: object) -> int:
    """The number of workers: with Ray, the one that it says; ArgumentError if they differ, or it is none."""
    if not isinstance(num_workers, bool) and integer_of(num_workers) is None:
        raise ArgumentError(
            f"num_workers is {num_workers!r}. Give an integer: 0 loads in this process, others beside it."
        )
    if not isinstance(executor, Ray):
        return num_workers
    check_installed()
    if num_workers not in (0, executor.workers):
        raise ArgumentError(
            f"num_workers={num_workers!r} and executor=Ray(workers={executor.workers!r}) differ. Leave out "
            "num_workers: with Ray, `workers` is the number of actors."
        )
    if context is not None:
        raise ArgumentError(
            f"multiprocessing_context={context!r} says how local processes start, and executor=Ray(…) starts "
            "none. Leave it out."
        )
    return executor.workers


def checked_epoch(epoch: object) -> int:
    """The number of an epoch; ArgumentError if it is none."""
    number = integer_of(epoch)
    if number is None or not 0 <= number <= MOST_EPOCHS:
        raise ArgumentError(f"set_epoch: expected an integer from 0 to {MOST_EPOCHS}, but got {epoch!r}")
    return number


def check_given(dataset: object, generator: object, **functions: object) -> None:
    """ArgumentError for arguments that torch's loader would take, and fail with later."""
    _check_dataset(dataset)
    _check_generator(generator)
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ArgumentError(f"{name} is {function!r}. Give a function, or None.")


def check_numbers(**numbers: object) -> None:
    """ArgumentError for what is no number: torch's message would not show that '4' is text."""
    for name, number in numbers.items():
        if number is not None and number_of(number) is None:
            raise ArgumentError(f"{name} is {number!r}. Give an integer.")


def _check_dataset(dataset: object) -> None:
    """ArgumentError for what has no samples, and for a path, whose samples would be its letters."""
    if isinstance(dataset, str | bytes | PathLike):
        raise ArgumentError(
            f"dataset is {dataset!r}, a path and no dataset. rekindle.open(path, transform=…) reads a folder "
            "of images or a packed file."
        )
    if not (
        isinstance(dataset, IterableDataset)
        or hasattr(type(dataset), "__getitem__")
        or hasattr(dataset, "__getitems__")
    ):
        advice = "Give the loader's dataset" if isinstance(dataset, TorchDataLoader) else "Give a dataset"
        raise ArgumentError(
            f"dataset is {dataset!r}, which has no samples. {advice}: an object with __getitem__ and "
            "__len__, a list of samples, or an IterableDataset."
        )


def _check_generator(generator: object) -> None:
    """ArgumentError unless this is a generator of torch's, or none."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ArgumentError(
            f"generator is {generator!r}. Give a torch.Generator, such as torch.Generator().manual_seed(0), "
            "or seed= for an integer."
        )


def check_not_set(loader: DataLoader[object], name: str) -> None:
    """ArgumentError if a script sets one of our own arguments of a loader that is made already.

    As torch does for its own. Not for a loader of a framework, whose class may be derived from ours.
    """
    if name in OWN and "_parts" in vars(loader):
        raise ArgumentError(
            f"{name} attribute should not be set after {type(loader).__name__} is initialized, since it has "
            f"no effect then. Make a new loader with {name}=…; an attribute of your own needs another name."
        )


def check_memory(memory: Memory | None, reuse: object) -> None:
    """ArgumentError unless this is an amount of memory, and there is something to use it for."""
    if memory is None:
        return
    checked_memory(memory)
    if reuse is None:
        raise ArgumentError(
            f"memory={memory!r} is for what is reused, but reuse is None. Give reuse=rk.Refurbish(…) or "
            "rk.Echo(…), or leave memory out."
        )


def check_importance(method: object, order: LoaderOrder, reuse: object) -> None:
    """ArgumentError unless samples can be chosen for a loader with this order."""
    if method is None:
        return
    if not callable(getattr(method, "plan", None)) or isinstance(method, type):
        raise ArgumentError(
            "importance must be a method such as rekindle.Buckets(), or an object with plan(epoch, scores), "
            f"but got {method!r}"
        )
    name = name_of(method)
    if isinstance(reuse, Echo):
        raise ArgumentError(
            f"importance={name} and reuse=Echo(…) both say how often a sample comes in an epoch. "
            "Use one of them, or reuse=rekindle.Refurbish(…)."
        )
    if order.kind is OrderKind.ITERABLE:
        raise ArgumentError(
            f"importance={name} does not go with an IterableDataset, which decides itself what comes next. "
            "Use a map-style dataset."
        )
    if order.kind is OrderKind.SAMPLER:
        raise ArgumentError(
            f"importance={name} chooses the samples itself, so it does not go with sampler=, batch_sampler= "
            "or generator=, except a DistributedSampler over the whole dataset. Use shuffle=True and seed=; "
            'with several ranks shard="ranks".'
        )
    shard = order.shard
    learns = getattr(method, "needs_feedback", True)
    if learns and shard is not None and shard.world > 1 and not is_the_group(shard):
        raise ArgumentError(
            f"importance={name} learns from what all {shard.world} ranks report, which they exchange by "
            "torch.distributed, but its process group is not that of these ranks. Call "
            "torch.distributed.init_process_group() before the loader is made."
        )


def check_features(
    loader: DataLoader[object], order: LoaderOrder, given: OrderKind, *, stacklevel: int
) -> None:
    """ArgumentError unless what a loader is to reuse, choose and leave out goes with this order.

    `given` is the kind of order that its arguments ask for.
    """
    put_in = given.is_planned and order.kind is OrderKind.SAMPLER
    own_batches = loader._auto_collation and (put_in or loader.batch_size is None)
    check_reuse(
        loader.reuse,
        loader.final_transform,
        order.kind,
        loader.sampler,
        own_batches,
        stacklevel=stacklevel + 1,
    )
    check_memory(loader.memory, loader.reuse)
    check_redundancy(loader.redundancy, order.kind, loader.reuse)
    check_importance(loader.importance, order, loader.reuse)
    if loader.importance is not None:
        _check_batches(loader, order)


def _check_batches(loader: DataLoader[Any], order: LoaderOrder) -> None:
    """ArgumentError for an epoch without a batch, on whose samples nobody could report."""
    samples = len(loader.dataset)  # type: ignore[arg-type]
    share = samples if order.shard is None else order.shard.share(samples)
    if order.batch_size is not None and not batches_per_epoch(share, order.batch_size, order.drop_last):
        raise ArgumentError(
            f"importance={name_of(loader.importance)}: there is no batch in an epoch of {share} samples "
            f"with batch_size={order.batch_size} and drop_last={order.drop_last}. Give a smaller batch_size, "
            "drop_last=False, or a larger dataset."
        )


def _takes_one(function: Callable[..., object]) -> bool:
    """Whether a function can be called with one argument, as far as it says which ones it has."""
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        parameters.bind(None)
    except TypeError:
        return False
    return True


def check_reuse(
    reuse: object,
    final_transform: object,
    order: OrderKind,
    sampler: object,
    own_batches: bool,
    *,
    stacklevel: int,
) -> None:
    """ArgumentError unless samples can be reused in a loader with this kind of order.

    A warning is shown for the line that called the loader's method: `stacklevel` calls from here.
    """
    if reuse is not None and not isinstance(reuse, Refurbish | Echo):
        raise ArgumentError(f"reuse is {reuse!r}. Give rk.Refurbish(…), rk.Echo(…) or None.")
    if final_transform is not None and not callable(final_transform):
        raise ArgumentError(f"final_transform is {final_transform!r}. Give a function of a sample, or None.")
    if callable(final_transform) and not _takes_one(final_transform):
        raise ArgumentError(
            f"final_transform is {final_transform!r}, which cannot be called with one argument. It is given "
            "the whole sample, as __getitem__ returns it: write `def finish(sample): image, label = sample; "
            "return last_steps(image), label`, say."
        )
    if isinstance(reuse, Refurbish) and order is OrderKind.ITERABLE:
        raise ArgumentError(
            "reuse=Refurbish(…) needs samples that can be asked for by index; an IterableDataset has none. "
            "Use rk.Echo(…), which repeats what it gives."
        )
    follows_sampler = order is OrderKind.SAMPLER
    if isinstance(reuse, Echo) and follows_sampler and (reuse.after == "batch" or own_batches):
        raise ArgumentError(
            f"reuse={reuse!r} does not go with a batch_sampler, nor with a sampler or a generator if whole "
            'batches are repeated. Repeat samples (after="augment") that a sampler= gives, or use '
            "shuffle=True and seed=."
        )
    if isinstance(reuse, Echo) and follows_sampler and not isinstance(sampler, Sized):
        raise ArgumentError(
            f"reuse=Echo(…) plans a whole epoch, but {type(sampler).__name__} has no length, so it may never "
            "end. Give the sampler a __len__."
        )
    if isinstance(reuse, Refurbish) and reuse.balance is not None and order is not OrderKind.SHUFFLED:
        how = "a sampler" if follows_sampler else "shuffle=False"
        warnings.warn(
            f"with {how}, the order is given, so batches cannot be balanced: some have more samples to "
            "recompute than others. Give shuffle=True if the order does not matter, or "
            "Refurbish(balance=None) to leave this warning out.",
            stacklevel=stacklevel + 1,
        )


def warn_of_feedback(*, stacklevel: int) -> None:
    """Warn that feedback reaches nobody: for the line that called the loader's method, as above."""
    warnings.warn(
        "loader.feedback() does nothing here, since the loader has no importance=. Give it a method, such as "
        "importance=rk.InfoBatch(…); where that is optional, call it only if loader.importance is not None.",
        stacklevel=stacklevel + 1,
    )


def check_echoed_state(reuse: Echo, dataset: object, order: OrderKind) -> None:
    """StateError if a dataset has a state of its own that goes on from epoch to epoch beneath its echoes."""
    if order is OrderKind.ITERABLE and is_stateful(dataset):
        raise StateError(
            f"iterable: {type(dataset).__name__} has a state_dict, which is ahead of what reuse={reuse!r} "
            "has repeated, so a later epoch cannot be saved. Save in the first epoch, use num_workers >= 1 "
            "without persistent_workers, where every epoch reads a new copy, or leave out reuse=."
        )


def check_redundancy(redundancy: object, order: OrderKind, reuse: object) -> None:
    """ArgumentError unless near-duplicates can be handled in a loader with this kind of order."""
    if redundancy is None:
        return
    if not isinstance(redundancy, Redundancy):
        raise ArgumentError(f"redundancy is {redundancy!r}. Give rk.Redundancy(…) or None.")
    if order is OrderKind.ITERABLE:
        raise ArgumentError(
            "redundancy= does not go with an IterableDataset, which decides itself what comes next. "
            "Use a map-style dataset."
        )
    if order is OrderKind.SAMPLER:
        raise ArgumentError(
            "redundancy= chooses the samples itself, so it does not go with sampler=, batch_sampler= or "
            "generator=, except a DistributedSampler over the whole dataset. Use shuffle=True and seed=; "
            'with several ranks shard="ranks".'
        )
    if redundancy.mode == "replace" and not isinstance(reuse, Refurbish):
        raise ArgumentError(
            "redundancy=Redundancy(mode='replace') substitutes samples whose first part is cached, but reuse "
            f"is {reuse!r}, which caches none. Give reuse=rk.Refurbish(…), or use mode='remove'."
        )
    if reuse is not None and not isinstance(reuse, Refurbish):
        raise ArgumentError("redundancy= does not go with reuse=Echo(…). Use reuse=rk.Refurbish(…), or none.")
