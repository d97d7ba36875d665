"""What `ImageDataset` and `ArrayImages` share: a pipeline of steps, and its device split."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from rekindle.core.analysis.look import Look
from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import DecodeError
from rekindle.fetch.source import Stored
from rekindle.prepare.steps.step import Step, Uniforms, Value, draw_uniforms

if TYPE_CHECKING:
    from rekindle.prepare.device.device_steps import DeviceSteps
    from rekindle.prepare.fused_kernel import Values
    from rekindle.prepare.pipeline import Pipeline
    from rekindle.prepare.steps.compose import StepOrFunction

# Steps in a list or a Compose, or a transform of another library.
Transform: TypeAlias = "Step | Sequence[StepOrFunction] | Callable[[Value], Value] | None"


class NativeImages(Dataset[tuple[Value, int]]):
    """A dataset of images; native if it has steps, and as long as no subclass overrides how samples are made.

    The methods are those of `native.NativeDataset`.
    """

    _transform: Transform = None
    _options: tuple[str | int, torch.dtype | None, bool] = ("cpu", None, False)  # that steps are run with
    _built_from: Look | None = None  # what the transform looked like when the pipeline was made of it
    releases_gil: bool = False
    draws_nothing: bool = False
    _pipeline: Pipeline | None = None
    _before_device: Pipeline | None = None
    _device_steps: DeviceSteps | None = None

    @property
    def transform(self) -> Transform:
        """The steps, in a list or a Compose, or a transform of another library. May be exchanged."""
        return self._transform

    @transform.setter
    def transform(self, transform: Transform) -> None:
        self._set_transform(transform, *self._options)

    def follow_transform(self) -> None:
        """Run the steps as they are now, if their attributes or their list were changed meanwhile.

        The loader calls this before an epoch: what can be decided once is not decided for every sample.
        """
        before = self._built_from
        if before is None or before.still_holds(self._transform):
            return
        if not Look(self._transform, process=False).finds_same(before):
            self._set_transform(self._transform, *self._options)

    @abstractmethod
    def _set_transform(
        self,
        transform: Transform,
        place: str | int = "cpu",
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
    ) -> None:
        """Use this transform from now on, with these options for steps."""

    @property
    def has_steps(self) -> bool:
        """Whether the transform is steps of ours, which the loader can run."""
        return self._pipeline is not None

    @property
    def uniforms(self) -> int:
        """How many uniform random numbers one sample needs."""
        return 0 if self._pipeline is None else self._pipeline.uniforms

    @property
    def device_steps(self) -> DeviceSteps | None:
        """The steps that run on the device; None if there are none."""
        return self._device_steps

    def _run_steps(
        self,
        steps: Sequence[StepOrFunction],
        place: str | int,
        *,
        dtype: torch.dtype | None,
        channels_last: bool,
        limits: Limits = DEFAULT_LIMITS,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Use these steps, of which those from `place` on run on the device."""
        whole = _pipeline(steps, dtype, channels_last, limits, size)
        self._options = place, dtype, channels_last
        self._built_from = Look(self._transform, process=False)
        self._use(whole)
        self._device_steps = self._before_device = None
        if place == "cpu":
            return
        from rekindle.prepare.device.device_steps import DeviceSteps
        from rekindle.prepare.device.split_point import find_device_split
        from rekindle.prepare.steps.to_tensor import PILToTensor

        split = find_device_split(whole.steps, place, size)
        if split is not None:
            before, after = whole.steps[:split], whole.steps[split:]
            self._device_steps = DeviceSteps(before, after, dtype=dtype, channels_last=channels_last)
            self._before_device = _pipeline([*before, PILToTensor()], None, False, limits, size)

    def _use(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.releases_gil, self.draws_nothing = pipeline.releases_gil, pipeline.draws_nothing

    def before_device(self) -> Self:
        """The dataset without the steps that run on the device: samples are bytes, channels first."""
        assert self._before_device is not None
        before = copy.copy(self)
        before._use(self._before_device)
        before._device_steps = before._before_device = None
        return before

    def __getitem__(self, index: int) -> tuple[Value, int]:
        return self.sample(self._check(index), draw_uniforms(self.uniforms))

    @abstractmethod
    def __len__(self) -> int:
        """How many images there are."""

    def example(self) -> tuple[Value, int] | None:
        """An image (of no meaning) and a label with the shape and dtype of all; None if these vary."""
        if self._pipeline is None or self._pipeline.output is None:
            return None
        image = self._pipeline.output.empty(1)[0]
        return (image if self._pipeline.output.tensor else image.numpy()), 0

    @abstractmethod
    def sample(self, index: int, uniforms: Uniforms) -> tuple[Value, int]:
        """(image, label), given `uniforms` random numbers."""

    def samples_of(self, indices: Sequence[int], uniforms: Uniforms) -> list[tuple[Value, int]]:
        """(image, label) of each, given a row of random numbers for each."""
        return [self.sample(index, row) for index, row in zip(indices, uniforms, strict=True)]

    @abstractmethod
    def write(self, index: int, uniforms: Uniforms, out: Values) -> int:
        """Write the image to `out`, given `uniforms` random numbers; returns the label."""

    def write_many(self, indices: Sequence[int], uniforms: Uniforms, out: Values) -> list[int]:
        """Write an image to each row of `out`, given a row of random numbers for each; returns the labels."""
        return [self.write(index, uniforms[row], out[row]) for row, index in enumerate(indices)]

    def split(self, split_point: int) -> tuple[Pipeline, Pipeline]:
        """The pipeline in two: its first `split_point` layers, from `raw` to an image, and the rest."""
        assert self._pipeline is not None
        return self._pipeline.split(split_point)

    @abstractmethod
    def raw(self, index: int) -> Stored:
        """The input of the pipeline: the bytes of a file, or pixels."""

    @abstractmethod
    def label(self, index: int) -> int:
        """The class index of a sample."""

    def located(self, error: DecodeError, index: int) -> DecodeError:
        """The error with the name of the file that it is about."""
        return DecodeError(f"sample {index}: {error}")

    def encoded_lengths(self) -> NDArray[np.int64] | None:
        """The length of each file in bytes, where it is known: a measure of the time that decoding takes."""
        return None

    def will_need(self, indices: Sequence[int]) -> None:
        """Start to fetch samples that will be requested soon, if the source can."""

    @abstractmethod
    def with_transform(self, transform: Transform) -> Self:
        """The same images with another transform."""

    def _check(self, index: int) -> int:
        size = len(self)
        try:
            if 0 <= index < size:
                return index
            if -size <= index < 0:
                return index + size
        except TypeError:
            raise TypeError(
                f"the index of a sample is an integer, but got {index!r}. For several at once, take "
                "torch.utils.data.Subset(dataset, indices)."
            ) from None
        raise IndexError(f"index {index} is out of range: the dataset has {size} samples")


def own_steps(transform: Transform) -> list[StepOrFunction] | None:
    """The transform as a list of steps; None if it is of another library."""
    if transform is None:
        return []
    if isinstance(transform, Step):
        return [transform]
    if isinstance(transform, list | tuple):
        return list(transform)
    return None


def _pipeline(
    steps: Iterable[StepOrFunction],
    dtype: torch.dtype | None,
    channels_last: bool,
    limits: Limits,
    size: tuple[int, int] | None,
) -> Pipeline:
    # Not at the top: compiled code and OpenCV take a second to load, which only users of images need.
    from rekindle.core.compiled_rng import load_uniforms
    from rekindle.prepare.array_inputs import check_takes_arrays
    from rekindle.prepare.pipeline import Pipeline
    from rekindle.prepare.steps.compose import Compose

    parts = Compose([*steps]).parts
    check_takes_arrays(parts)
    whole = Pipeline(parts, dtype=dtype, channels_last=channels_last, limits=limits, size=size, units=True)
    if whole.uniforms:  # They are drawn for the whole, wherever it is split.
        load_uniforms()
    return whole
