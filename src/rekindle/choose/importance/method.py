"""What a method of choosing samples is, and what ours have in common."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.scores import Scores
from rekindle.errors import ArgumentError, FeedbackError

Planned: TypeAlias = tuple[NDArray[np.integer[Any]], NDArray[np.floating[Any]] | None]


class Method(Protocol):
    """Chooses the samples of each epoch. Anything with such a `plan` can be given as `importance=`.

    It may also have: `needs_feedback = False`, if it chooses without; `even_batches = True`, to have its
    weights scaled to a mean of 1 in each batch; `wants_load_times(epoch)`, true to have every sample's
    loading timed in that epoch; `state_dict()` and `load_state_dict(state)`, if it remembers anything from
    epoch to epoch; `describe()`, a dictionary for the report.
    """

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The samples of this epoch, as indices, and what each counts for in the loss (None for 1).

        Must depend on nothing but its arguments and the method's own state, so that all ranks, and a run that
        is resumed, come to the same plan. Random numbers are in `scores.uniforms(epoch)`.
        """


def check_share(name: str, value: Any, *, zero: bool = False, above_one: bool = False) -> None:
    """ArgumentError unless `value` is a share of the samples."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value >= 0 if zero else value > 0) or not (above_one or value <= 1):
        lowest, highest = ("from 0" if zero else "above 0"), ("" if above_one else " up to 1")
        raise ArgumentError(f"{name} is a share of the samples, {lowest}{highest}, but got {value!r}")


def check_whole(name: str, value: Any, least: int) -> None:
    """ArgumentError unless `value` is a whole number that is not too small."""
    if type(value) is not int or value < least:
        raise ArgumentError(f"{name} must be a whole number from {least} on, but got {value!r}")


def check_one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    """ArgumentError unless `value` is one of those known."""
    if value not in known:
        raise ArgumentError(f"{name} must be one of {known}, but got {value!r}")


def require_logits(method: Any, what: NDArray[Any], purpose: str) -> None:
    """FeedbackError unless anything is known that only logits tell."""
    if np.all(what < 0) if what.dtype.kind == "i" else np.all(np.isnan(what)):
        raise FeedbackError(
            f"{name_of(method)} needs {purpose}, which losses alone do not tell. "
            "Call loader.feedback(logits=…, targets=…) after each batch."
        )


def name_of(method: Any) -> str:
    """What a method is called in messages and states."""
    return type(method).__name__


def parameters_of(method: Any) -> dict[str, Any]:
    """A method's parameters as plain values, for a state to agree with; arrays as their checksum."""
    if not dataclasses.is_dataclass(method):
        return {}
    return {
        field.name: _plain(getattr(method, field.name)) for field in dataclasses.fields(method) if field.init
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {zlib.crc32(np.ascontiguousarray(value).tobytes()):08x}"
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
