"""A dataset in two parts: what is cached, and what is done afresh each time.

A native dataset is split between any two of its layers, or before the first (the decoded image is cached), or
before decoding (the bytes are). A dataset with a Compose of torchvision or Albumentations is split the same
way, unmodified. For any other, what it gives is cached, and `final_transform` is the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import Index, MapStyleDataset, Sample
from rekindle.errors import ArgumentError, DecodeError
from rekindle.prepare.native import NativeDataset
from rekindle.reuse.compose_search import Compose, FoundCompose, with_compose_replaced
from rekindle.reuse.layers import Layer, Transform
from rekindle.reuse.own_compose import StepsByOwnCode, runs_own_code
from rekindle.reuse.recorded_calls import NAMED, ONE, FirstSteps, NotFinishedError, Run, finished, recorded
from rekindle.reuse.unfinished import HOW_TO_FINISH, NAME

if TYPE_CHECKING:
    from rekindle.prepare.fused_kernel import Values

BEFORE_DECODING = -1


class NativeSplit:
    """A native dataset, split before layer `index`.

    Attributes:
        uniforms: How many uniform random numbers a sample takes.
        early: How many of them are for the part that is cached.

    """

    def __init__(self, dataset: NativeDataset, index: int) -> None:
        self._dataset = dataset
        self.uniforms: int = dataset.uniforms
        self._encoded = index == BEFORE_DECODING
        self._first, self._rest = dataset.split(max(index, 0))
        self.early: int = self._first.uniforms

    @property
    def read_from(self) -> MapStyleDataset:
        """The dataset that samples are read from."""
        return self._dataset

    @property
    def first_part(self) -> object:
        """All that computes what is cached."""
        return self._dataset, self._encoded

    @property
    def code(self) -> tuple[object, ...]:
        """What may have code of a script to compute it with."""
        return () if self._encoded else (self._first,)

    def partial(self, index: int, numbers: NDArray[np.float64]) -> Sample:
        """What is cached of a sample, in memory of its own."""
        raw = self._dataset.raw(index)
        if self._encoded:
            return raw.copy() if isinstance(raw, np.ndarray) else bytes(raw)
        try:
            return self._first.make(raw, numbers)
        except DecodeError as error:
            raise self._dataset.located(error, index) from error

    def finish(self, index: int, cached: Sample, numbers: NDArray[np.float64], out: Values | None) -> Sample:
        """The image of a sample, of which this was cached; written to `out`, if that is given."""
        if not self._encoded:
            if out is None:
                return self._rest.make_image(cached, numbers)
            return self._rest.run_image(cached, numbers, out)
        try:
            if out is None:
                return self._rest.make(cached, numbers)
            return self._rest.run(cached, numbers, out)
        except DecodeError as error:
            raise self._dataset.located(error, index) from error

    def example_part(self) -> NDArray[np.uint8] | None:
        """What is cached of a sample, as all look that are cached; None if they do not all look alike."""
        output = self._first.output
        return None if self._encoded or output is None else output.empty(1)[0].numpy()

    def label(self, index: int) -> int:
        """The label of a sample."""
        return self._dataset.label(index)


class TorchSplit:
    """Any other dataset: what it gives is cached, and `finish` is a function of that."""

    def __init__(self, partial: MapStyleDataset | Finished, finish: Transform | None) -> None:
        self._partial, self._finish = partial, finish

    @property
    def read_from(self) -> MapStyleDataset:
        """The dataset that samples are read from."""
        return self._partial.dataset if isinstance(self._partial, Finished) else self._partial

    @property
    def first_part(self) -> object:
        """All that computes what is cached."""
        return self._partial

    @property
    def code(self) -> tuple[object, ...]:
        """What may have code of a script to compute it with."""
        return (self._partial,)

    def partial(self, index: Index) -> Sample:
        """What is cached of a sample."""
        return self._partial[index]

    def finish(self, index: Index, cached: Sample) -> Sample:
        """The sample of which this was cached."""
        return cached if self._finish is None else self._finish(cached)


class ComposeSplit(TorchSplit):
    """A dataset with a Compose, which does some of its steps; those after them are done to what it has done.

    What is cached of a sample is a record of that (see `recorded_calls`), and the sample.
    """

    def __init__(self, dataset: MapStyleDataset, found: FoundCompose, first: Run, last: Run) -> None:
        self._found, self._first, self._last = found, FirstSteps(first, found.albumentations), last
        super().__init__(with_compose_replaced(dataset, self._first), None)

    def followed_by(self, step: Transform) -> ComposeSplit:
        """The same with no more than this step after the first ones."""
        other = copy.copy(self)
        other._last = steps_of(self._found, [step])
        return other

    def partial(self, index: Index) -> tuple[str, Sample]:
        """What is cached of a sample."""
        with self._first.recording(index, self._partial) as recording:
            try:
                sample = self._partial[index]
            except Exception as error:
                if is_interrupt(error) or error is recording.refusal:
                    raise
                if recording.refusal is None and NAME in str(error):
                    recording.refused_use(f"{type(error).__name__}: {error}")  # by C code, which asks nothing
                if recording.refusal is None:
                    raise
                raise recording.refusal from error
        if recording.refusal is not None:
            raise recording.refusal
        return recorded(sample, recording)

    def finish(self, index: Index, cached: Sample) -> Sample:
        """The sample of which this was cached."""
        record, sample = cached
        try:
            return finished(sample, record, self._last)
        except NotFinishedError as error:
            raise ArgumentError(f"sample {index}: {error}. {HOW_TO_FINISH}") from None


class Finished:
    """A dataset with a function applied to what it gives."""

    def __init__(self, dataset: MapStyleDataset, function: Transform) -> None:
        self.dataset, self._function = dataset, function

    def __getitem__(self, index: Index) -> Sample:
        return self._function(self.dataset[index])


Split: TypeAlias = NativeSplit | TorchSplit


def split_compose(
    dataset: MapStyleDataset, found: FoundCompose, first: Sequence[Transform], last: Sequence[Transform]
) -> ComposeSplit:
    """A dataset with a Compose, whose first steps are done before a sample is cached, and the last after."""
    return ComposeSplit(dataset, found, first_steps_of(found, first, len(last)), steps_of(found, last))


def first_steps_of(found: FoundCompose, first: Sequence[Transform], later: int) -> Run:
    """The first steps of a Compose as a function, where this many others are done later."""
    if not found.albumentations and runs_own_code(found.compose):
        return StepsByOwnCode(found.compose, first, later)
    return steps_of(found, first)


def steps_of(found: FoundCompose, steps: Sequence[Transform]) -> Run:
    """Some steps of a Compose as a function."""
    return AlbumentationsSteps(found.compose, steps) if found.albumentations else StepsInOrder(steps)


class StepsInOrder:
    """Steps, each of which gets what the one before it returned: one value, or several."""

    def __init__(self, steps: Sequence[Transform]) -> None:
        self._steps = list(steps)

    def __call__(self, form: int, value: Sample) -> Sample:
        if form == NAMED:
            raise TypeError(f"a Compose is called with values by name: {', '.join(value)}")
        for step in self._steps:
            value = step(value) if form == ONE else step(*value)
        return value


class AlbumentationsSteps:
    """Some steps of a Compose of Albumentations, seeded from torch's generator for each call."""

    def __init__(self, compose: Compose, steps: Sequence[Transform]) -> None:
        self._part = copy.copy(compose)
        self._part.transforms = list(steps)

    def __call__(self, form: int, value: Sample) -> Sample:
        if form != NAMED:
            raise TypeError("a Compose of Albumentations is called with values that have no names")
        if not self._part.transforms:
            return dict(value)
        if hasattr(self._part, "set_random_seed"):  # since 1.4.19; before, it draws from Python's and NumPy's
            self._part.set_random_seed(int(torch.randint(2**31, ())))
        return self._part(force_apply=True, **value)


def cannot_split(wanted: str, reason: str) -> ArgumentError:
    """The error for a dataset that cannot be split."""
    return ArgumentError(f"{wanted}: {reason}. {HOW_TO_FINISH}")


def described(layers: Sequence[Layer], index: int) -> str:
    """A split point in words."""
    if index == BEFORE_DECODING:
        return "before decoding"
    if index >= len(layers):
        return "after the last step"
    return f"before {layers[index]} (split={index})"
