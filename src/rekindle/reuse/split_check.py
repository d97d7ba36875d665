"""Whether a dataset that is split at its Compose gives the same samples as it does in one piece."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

from rekindle.core import counter_rng
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import MapStyleDataset, Sample
from rekindle.errors import ArgumentError
from rekindle.reuse.cache.serialization import encode
from rekindle.reuse.compose_search import Compose, FoundCompose, copied
from rekindle.reuse.diversity import view_hash
from rekindle.reuse.layers import Transform
from rekindle.reuse.recorded_calls import NAMED, ONE, Run
from rekindle.reuse.split_dataset import ComposeSplit, cannot_split, steps_of
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
    for index in few_samples(len(dataset), _CHECKED, 0):
        with generators_kept(GENERATORS):
            try:
                whole = _whole(dataset, found, first, last, index)
                if whole is None or whole != _whole(dataset, found, first, last, index):
                    continue
            except Exception as error:  # Workers will raise it.
                if is_interrupt(error):
                    raise
                continue
            try:
                same = _in_two(dataset, found, first, last, index) == whole
            except ArgumentError as error:
                raise ArgumentError(f"{wanted}: {error}") from None
            except Exception as error:
                if is_interrupt(error):
                    raise
                raise cannot_split(
                    wanted, f"sample {index} of {type(dataset).__name__}, split: {error}"
                ) from error
        if not same:
            reason = f"splitting {type(dataset).__name__} here changes its output (sample {index})"
            raise cannot_split(wanted, reason)


def _whole(
    dataset: MapStyleDataset, found: FoundCompose, first: Steps, last: Steps, index: int
) -> bytes | None:
    """The hash of a sample in one piece."""
    # A Compose of Albumentations has a generator of its own, which no two calls share.
    in_turn = _after(steps_of(found, first), steps_of(found, last))
    whole = in_turn if found.albumentations else _as_it_is(found.compose)
    split = ComposeSplit(dataset, found, _Isolated(whole, []), _nothing)
    _seed(0)
    return view_hash(split.read_from[index])


def _in_two(dataset: MapStyleDataset, found: FoundCompose, first: Steps, last: Steps, index: int) -> bytes:
    """The hash of a sample in two parts; UnknownTypeError if the first cannot be cached."""
    states: list[list[Callable[[], None]]] = []
    split = ComposeSplit(
        dataset,
        found,
        _Isolated(steps_of(found, first), states),
        _Isolated(steps_of(found, last), states, resume=True),
    )
    _seed(0)
    cached = split.partial(index)
    encode(cached)
    return view_hash(split.finish(index, cached))


def _as_it_is(compose: Compose) -> Run:
    def run(form: int, value: Sample) -> Sample:
        if form == NAMED:
            return compose(**value)
        return compose(value) if form == ONE else compose(*value)

    return run


def _after(first: Run, last: Run) -> Run:
    return lambda form, value: last(form, first(form, value))


def _nothing(_: int, value: Sample) -> Sample:
    return value


class _Isolated:
    """Steps whose n-th call draws its own numbers; with `resume`, those after what the first steps drew."""

    def __init__(self, run: Run, states: list[list[Callable[[], None]]], resume: bool = False) -> None:
        self._run, self._states, self._resume = run, states, resume
        self._calls = 0

    def __call__(self, form: int, value: Sample) -> Sample:
        self._calls += 1
        with generators_kept(GENERATORS):
            if self._resume:
                for restore in self._states[self._calls - 1]:
                    restore()
            else:
                _seed(self._calls)
            result = self._run(form, copy.deepcopy(value))
            if not self._resume:
                self._states.append([generator.save() for generator in GENERATORS])
        return result


def _seed(number: int) -> None:
    for generator in GENERATORS:
        generator.seeder(counter_rng.seeds(0, list(range(_SEEDS))))(number % _SEEDS)
