"""Checks of methods' parameters, at construction, and of the feedback that they need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import name_of
from rekindle.choose.scores import stretches
from rekindle.errors import ArgumentError, FeedbackError


def check_share(name: str, value: object, *, zero: bool = False, above_one: bool = False) -> None:
    """ArgumentError unless `value` is a share of the samples."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if not (number >= 0 if zero else number > 0) or not (above_one or number <= 1):
        lowest, highest = ("from 0" if zero else "above 0"), ("" if above_one else " up to 1")
        raise ArgumentError(f"{name} is a share of the samples, {lowest}{highest}, but got {value!r}")


def check_integer(name: str, value: object, least: int) -> None:
    """ArgumentError unless `value` is an integer of at least `least`."""
    if type(value) is not int or value < least:
        raise ArgumentError(f"{name} must be an integer of at least {least}, but got {value!r}")


def check_at_least(name: str, value: object, least: float) -> None:
    """ArgumentError unless `value` is a number of at least `least`."""
    if not (isinstance(value, int | float) and value >= least):
        raise ArgumentError(f"{name} must be a number of at least {least}, but got {value!r}")


def check_one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    """ArgumentError unless `value` is one of those known."""
    if value not in known:
        raise ArgumentError(f"{name} must be one of {known}, but got {value!r}")


def any_known(values: NDArray[np.number]) -> bool:
    """Whether one of some values, of which what is not known is NaN or −1, is known."""
    return any(bool((values[part] >= 0).any()) for part in stretches(len(values)))


def require_logits(method: object, values: NDArray[np.int8] | NDArray[np.float32], purpose: str) -> None:
    """FeedbackError unless some of `values`, which take logits, are known (neither NaN nor −1)."""
    if not any_known(values):
        raise FeedbackError(
            f"{name_of(method)} needs {purpose}, which losses alone do not show. "
            "Call loader.feedback(logits=…, targets=…) after each batch."
        )
