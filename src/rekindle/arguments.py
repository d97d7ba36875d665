"""Checks a loader's own arguments, so that what cannot work is found before anything starts."""

from __future__ import annotations

from typing import Any

from rekindle.all_ranks import rank_and_world
from rekindle.choose.importance import name_of
from rekindle.errors import ArgumentError
from rekindle.reuse import Echo


def check(seed: Any, executor: Any, on_error: Any, error_budget: Any, stream: bool) -> None:
    """Find arguments that cannot work before anything starts."""
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**63):
        raise ArgumentError(f"seed must be a whole number from 0 to 2**63 - 1 or None, but got {seed!r}")
    for name, value, known in (
        ("executor", executor, ("auto", "threads", "processes")),
        ("on_error", on_error, ("raise", "skip", "substitute")),
    ):
        if value not in known:
            raise ArgumentError(f"{name} must be one of {known}, but got {value!r}")
    if not (isinstance(error_budget, int | float) and 0 <= error_budget <= 1):
        raise ArgumentError(f"error_budget is a share of the samples, from 0 to 1, but got {error_budget!r}")
    if stream and on_error != "raise":
        raise ArgumentError(
            f"on_error={on_error!r} does not go with an IterableDataset, whose iterator ends with its first "
            "exception. Handle bad samples within the data set."
        )
    if stream and executor == "threads":
        raise ArgumentError(
            "executor='threads' does not go with an IterableDataset: threads share one copy of it. "
            "Use executor='processes', or num_workers=0."
        )


def check_importance(method: Any, order: str, seed: int | None, reuse: Any) -> None:
    """ArgumentError unless samples can be chosen for a loader with this kind of order."""
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
    if order == "stream":
        raise ArgumentError(
            f"importance={name} does not go with an IterableDataset, which decides itself what comes next. "
            "Use a map-style data set."
        )
    if order == "sampler":
        raise ArgumentError(
            f"importance={name} chooses the samples itself, so it does not go with sampler=, batch_sampler= "
            "or generator=. Use shuffle=True and seed=; ranks of torch.distributed share samples without a "
            "sampler. (A framework that puts in a sampler of its own must be told not to.)"
        )
    if rank_and_world()[1] > 1 and seed is None:
        raise ArgumentError(f"importance={name} needs the same seed= on all ranks, but none is given")
