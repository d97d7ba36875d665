"""Whether a dataset that is split at its Compose gives the same samples as it does in one piece."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

from rekindle.core import counter_rng
from rekindle.core.analysis.near_objects import near_objects
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import MapStyleDataset, Sample
from rekindle.errors import ArgumentError
from rekindle.prepare.third_party_transforms import TakesArrays
from rekindle.reuse.cache.serialization import encode
from rekindle.reuse.compose_search import Compose, FoundCompose, copied, with_compose_replaced
from rekindle.reuse.diversity import view_hash
from rekindle.reuse.layers import Transform
from rekindle.reuse.recorded_calls import NAMED, ONE, Run, as_form
from rekindle.reuse.split_dataset import ComposeSplit, cannot_split, first_steps_of, steps_of
from rekindle.reuse.split_search import few_samples

Steps: TypeAlias = Sequence[Transform]
_CHECKED = 4  # samples
_SEEDS = 64


def check_split(
    dataset: MapStyleDataset, found: FoundCompose, first: Steps, last: Steps, wanted: str
) -> None:
    """ArgumentError, which says what was `wanted`, if some samples show that the split changes the data.

    Both ways, every call of the Compose draws the same random numbers, and what the dataset draws itself is
    the same. Samples that cannot be loaded, or differ each time, show nothing.
    """
    dataset = copied(dataset)
    is_called = None
    for index in few_samples(len(dataset), _CHECKED, 0):
        with generators_kept(GENERATORS):
            try:
                whole, calls_once = _whole(dataset, found, first, last, index)
                again, calls_again = _whole(dataset, found, first, last, index)
                if whole is None or whole != again:
                    continue
            except Exception as error:  # Workers will raise it.
                if is_interrupt(error):
                    raise
                continue
            if calls_once and not calls_again:
                reason = f"sample {index}: {type(dataset).__name__} keeps what its transform returns"
                raise cannot_split(wanted, f"{reason}, so it calls it once, and not for each use")
            try:
                in_two, calls = _in_two(dataset, found, first, last, index)
            except ArgumentError as error:
                raise ArgumentError(f"{wanted}: {error}") from None
            except Exception as error:
                if is_interrupt(error):
                    raise
                raise cannot_split(
                    wanted, f"sample {index} of {type(dataset).__name__}, split: {error}"
                ) from error
        if in_two != whole:
            reason = f"splitting {type(dataset).__name__} here changes its output (sample {index})"
            raise cannot_split(wanted, reason)
        is_called = is_called or calls
    if is_called is False and _is_held_elsewhere(dataset, found.compose):
        name = type(found.compose).__name__
        raise cannot_split(
            wanted,
            f"{type(dataset).__name__} does not call its {name} itself, but in a function or an object that "
            "holds it as well, which would go on to do all of its steps",
        )


def _is_held_elsewhere(dataset: MapStyleDataset, compose: Compose) -> bool:
    """Whether something near a dataset still holds its Compose when that is replaced."""
    replaced = with_compose_replaced(dataset, _nothing)
    return any(value is compose for _, value in near_objects(replaced))


def _whole(
    dataset: MapStyleDataset, found: FoundCompose, first: Steps, last: Steps, index: int
) -> tuple[bytes | None, bool]:
    """The hash of a sample in one piece, and whether the Compose was called for it."""
    # A Compose of Albumentations has a generator of its own, which no two calls share.
    in_turn = _after(steps_of(found, first), steps_of(found, last))
    whole = in_turn if found.albumentations else _as_it_is(found.compose)
    isolated = _Isolated(whole, [])
    in_one_piece = with_compose_replaced(dataset, _InOnePiece(isolated, found.albumentations))
    _seed(0)
    return view_hash(in_one_piece[index]), isolated.calls > 0


def _in_two(
    dataset: MapStyleDataset, found: FoundCompose, first: Steps, last: Steps, index: int
) -> tuple[bytes, bool]:
    """The hash of a sample in two parts, and whether the Compose was called for it.

    UnknownTypeError if the first part cannot be cached.
    """
    states: list[list[Callable[[], None]]] = []
    split = ComposeSplit(
        dataset,
        found,
        _Isolated(first_steps_of(found, first, len(last)), states),
        _Isolated(steps_of(found, last), states, resume=True),
    )
    _seed(0)
    cached = split.partial(index)
    encode(cached)
    whole = view_hash(split.finish(index, cached))
    split.partial(index)  # A dataset that keeps its samples returns what was made for this one before.
    return whole, cached[0] != repr(())


def _as_it_is(compose: Compose) -> Run:
    def run(form: int, value: Sample) -> Sample:
        if form == NAMED:
            return compose(**value)
        return compose(value) if form == ONE else compose(*value)

    return run


def _after(first: Run, last: Run) -> Run:
    return lambda form, value: last(form, first(form, value))


def _nothing(*_: Sample, **__: Sample) -> Sample:
    return None


class _InOnePiece(TakesArrays):
    """A run in the place of a Compose."""

    def __init__(self, run: Run, takes_arrays: bool) -> None:
        self._run, self.takes_arrays = run, takes_arrays

    def __call__(self, *values: Sample, **named: Sample) -> Sample:
        return self._run(*as_form(values, named))


class _Isolated:
    """Steps whose n-th call draws its own numbers; with `resume`, those after what the first steps drew."""

    def __init__(self, run: Run, states: list[list[Callable[[], None]]], resume: bool = False) -> None:
        self._run, self._states, self._resume = run, states, resume
        self.calls = 0

    def __call__(self, form: int, value: Sample) -> Sample:
        self.calls += 1
        with generators_kept(GENERATORS):
            if self._resume:
                for restore in self._states[self.calls - 1]:
                    restore()
            else:
                _seed(self.calls)
            result = self._run(form, copy.deepcopy(value))
            if not self._resume:
                self._states.append([generator.save() for generator in GENERATORS])
        return result


def _seed(number: int) -> None:
    for generator in GENERATORS:
        generator.seeder(counter_rng.seeds(0, list(range(_SEEDS))))(number % _SEEDS)
