"""What a method of choosing samples is: the base class, and anything else that has a `plan`."""

from __future__ import annotations

import dataclasses
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.duplicates.groups_file import RedundantGroups
from rekindle.choose.scores import Scores
from rekindle.errors import StateError

Planned: TypeAlias = tuple[NDArray[np.integer], NDArray[np.floating] | None]
# Numbers, strings and arrays, in dictionaries: what they mean is known to the method alone.
MethodState: TypeAlias = dict[str, Any]
Parameter: TypeAlias = bool | int | float | str | list[object] | None


class EpochPlanner(Protocol):
    """The least that `importance=` takes: any object with such a `plan`."""

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """As that of `ImportanceMethod`."""


class ImportanceMethod(ABC):
    """Chooses the samples of each epoch. Subclasses implement `plan`; the rest has defaults.

    An object that is not a subclass works as well: only `plan` is needed, and whatever else it has under
    these names is used.
    """

    needs_feedback: bool = True
    """Whether an epoch without any feedback is an error."""

    even_batches: bool = False
    """Whether weights are scaled to a mean of 1 in each batch."""

    reads: frozenset[str] | None = None
    """The arrays of `Scores` that the `plan` of this class uses, beside `loss`, `epoch` and `uses`; None for
    any of them. Others take no memory, and these less: counts may have 16 bits (convert them before you
    multiply), other numbers 32 or 16. Counts only in the class that defines `plan`."""

    @abstractmethod
    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The samples of this epoch, as indices, and what each counts for in the loss (None for 1).

        Must depend on nothing but its arguments and the method's own state, so that all ranks, and a run that
        is resumed, compute the same plan. Random numbers are in `scores.uniforms(epoch)`.
        """

    def wants_load_times(self, epoch: int) -> bool:
        """Whether to time the loading of every single sample in this epoch."""
        return False

    def state_dict(self) -> Mapping[str, Any] | None:
        """What the method remembers from epoch to epoch, for checkpoints; None if nothing."""
        return None

    def load_state_dict(self, state: MethodState) -> None:
        """Continue from a saved state."""
        raise StateError(f"importance: {name_of(self)} has no load_state_dict for the state that was saved")

    def describe(self) -> Mapping[str, object]:
        """What to show in the loader's report."""
        return {}


def as_method(given: EpochPlanner) -> ImportanceMethod:
    """The object given as `importance=`, with all the attributes of an `ImportanceMethod`."""
    return given if isinstance(given, ImportanceMethod) else _Adapted(given)


def name_of(method: object) -> str:
    """The name of a method's class, for messages and checkpoints."""
    return type(_original(method)).__name__


def arrays_read_by(method: ImportanceMethod) -> frozenset[str] | None:
    """The arrays of `Scores` that a method uses; None if that may be any: a subclass has its own `plan`."""
    own = next(vars(kind) for kind in type(method).__mro__ if "plan" in vars(kind))
    reads: frozenset[str] | None = own.get("reads")
    return reads


def parameters_of(method: object) -> dict[str, Parameter]:
    """A method's parameters as plain values, which a checkpoint must agree with; arrays as checksums."""
    original = _original(method)
    if not dataclasses.is_dataclass(original):
        return {}
    init = [field.name for field in dataclasses.fields(original) if field.init]
    return {name: _plain(getattr(original, name)) for name in init}


@runtime_checkable
class _HasNeedsFeedback(Protocol):
    needs_feedback: bool


@runtime_checkable
class _HasEvenBatches(Protocol):
    even_batches: bool


@runtime_checkable
class _WantsLoadTimes(Protocol):
    def wants_load_times(self, epoch: int) -> bool: ...


@runtime_checkable
class _Saves(Protocol):
    def state_dict(self) -> Mapping[str, Any]: ...


@runtime_checkable
class _Loads(Protocol):
    def load_state_dict(self, state: MethodState) -> None: ...


@runtime_checkable
class _Describes(Protocol):
    def describe(self) -> Mapping[str, object]: ...


class _Adapted(ImportanceMethod):
    """An object of the user's own: what it lacks is as in the base class."""

    def __init__(self, original: EpochPlanner) -> None:
        self.original = original
        if isinstance(original, _HasNeedsFeedback):
            self.needs_feedback = bool(original.needs_feedback)
        if isinstance(original, _HasEvenBatches):
            self.even_batches = bool(original.even_batches)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        return self.original.plan(epoch, scores)

    def wants_load_times(self, epoch: int) -> bool:
        original = self.original
        return original.wants_load_times(epoch) if isinstance(original, _WantsLoadTimes) else False

    def state_dict(self) -> Mapping[str, Any] | None:
        return self.original.state_dict() if isinstance(self.original, _Saves) else None

    def load_state_dict(self, state: MethodState) -> None:
        if isinstance(self.original, _Loads):
            self.original.load_state_dict(state)
        else:
            super().load_state_dict(state)

    def describe(self) -> Mapping[str, object]:
        return self.original.describe() if isinstance(self.original, _Describes) else {}


def _original(method: object) -> object:
    return method.original if isinstance(method, _Adapted) else method


def _plain(value: object) -> Parameter:
    if isinstance(value, RedundantGroups):
        value = value.numbers()
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {zlib.crc32(np.ascontiguousarray(value).tobytes()):08x}"
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
