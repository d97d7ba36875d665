"""Checks of methods' parameters, at construction, and of the feedback that they need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import name_of
from rekindle.choose.scores import stretches
from rekindle.core.given_numbers import integer_of, number_of
from rekindle.errors import ArgumentError, FeedbackError


def checked_probability(name: str, value: object) -> float:
    """A probability; ArgumentError if `value` is none."""
    number = number_of(value)
    if number is None or not 0 <= number <= 1:
        raise ArgumentError(f"{name} is a probability, from 0 to 1, but got {value!r}")
    return number


def checked_share(name: str, value: object, *, zero: bool = False, above_one: bool = False) -> float:
    """A share of the samples; ArgumentError if `value` is none."""
    number = number_of(value)
    is_large_enough = number is not None and (number >= 0 if zero else number > 0)
    if number is None or not is_large_enough or not (above_one or number <= 1):
        lowest, highest = ("from 0" if zero else "above 0"), ("" if above_one else " up to 1")
        raise ArgumentError(f"{name} is a share of the samples, {lowest}{highest}, but got {value!r}")
    return number


def checked_integer(name: str, value: object, least: int) -> int:
    """An integer; ArgumentError if `value` is none of at least `least`."""
    number = integer_of(value)
    if number is None or number < least:
        raise ArgumentError(f"{name} must be an integer of at least {least}, but got {value!r}")
    return number


def checked_number(name: str, value: object, least: float) -> float:
    """A number; ArgumentError if `value` is none of at least `least`."""
    number = number_of(value)
    if number is None or not number >= least:
        raise ArgumentError(f"{name} must be a number of at least {least}, but got {value!r}")
    return number


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
