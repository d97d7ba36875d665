"""Checks a loader's own arguments, so that what cannot work is found before anything starts."""

from __future__ import annotations

from typing import Any

from rekindle.errors import ArgumentError


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
