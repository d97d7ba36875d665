"""Steps that consist of other steps (Compose, RandomApply), and any function as a step (Lambda)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import Limits
from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.image_step import ImageStep, as_image
from rekindle.prepare.steps.mixup_cutmix import BatchMixing
from rekindle.prepare.steps.outcomes import ONE, Outcomes
from rekindle.prepare.steps.step import Step, Uniforms, Value, is_ours
from rekindle.prepare.steps.to_tensor import Conversion, ConvertImageDtype, TensorStep

# A step, or a function of one image that becomes a `Lambda`.
StepOrFunction: TypeAlias = "Step | Callable[[Value], Value]"


class Lambda(Step):
    """Apply a function to the image; its result may be anything.

    Args:
        lambd: A function of one image.
        diversity: How many distinct results it can have for one image. With None it counts as deterministic,
            and reuse finds out by calling it.

    """

    releases_gil = False

    def __init__(self, lambd: Callable[[Value], Value], *, diversity: float | None = None) -> None:
        if not callable(lambd):
            raise ArgumentError(f"Lambda: lambd is {lambd!r}. Give a function of one image.")
        if diversity is not None and not (isinstance(diversity, int | float) and diversity >= 1):
            raise ArgumentError(f"Lambda: diversity is {diversity!r}. Give a number of at least 1, or None.")
        self.lambd = lambd
        self.diversity = 1 if diversity is None else diversity
        self.knows_diversity = diversity is not None

    def __repr__(self) -> str:
        diversity = f", diversity={self.diversity}" if self.knows_diversity else ""
        return f"Lambda({self.lambd!r}{diversity})"

    def apply(self, image: Value, uniforms: Uniforms) -> Value:
        return self.lambd(image)


class StepContainer(Step):
    """A step that applies its `transforms`, steps themselves, one after the other."""

    def __init__(self, transforms: object) -> None:
        name = type(self).__name__
        if isinstance(transforms, str) or not isinstance(transforms, Iterable):
            raise ArgumentError(f"{name}: transforms is {transforms!r}. Give a list of steps.")
        self.transforms = [_as_step(name, step) for step in transforms]
        self.releases_gil = all(step.releases_gil for step in self.transforms)
        self.keeps_size = all(step.keeps_size for step in self.transforms)
        self.knows_diversity = all(step.knows_diversity for step in self.transforms)
        self._input_checks = input_checks(self.transforms, are_functions(self.transforms))
        _check_order(name, self.transforms)

    def with_limits(self, limits: Limits) -> Step:
        limited = copy.copy(self)
        limited.transforms = [step.with_limits(limits) for step in self.transforms]
        return limited

    def compile_kernels(self) -> None:
        for step in self.transforms:
            step.compile_kernels()

    def _apply_all(self, image: Value, uniforms: Uniforms) -> Value:
        used = 0
        for step, checks_input in zip(self.transforms, self._input_checks, strict=True):
            if checks_input:
                image = as_image(image, type(step).__name__)
            image = step.apply(image, uniforms[used : used + step.uniforms])
            used += step.uniforms
        return image

    def __call__(self, image: Value) -> Value:
        """Apply to one image with random numbers from torch's global generator; converts Pillow images."""
        first = next(_plain_steps(self.transforms), None)
        if isinstance(first, ImageStep):
            image = as_image(image, type(self).__name__)
        return super().__call__(image)

    def __repr__(self) -> str:
        lines = "".join(f"\n    {step!r}," for step in self.transforms)
        return f"{type(self).__name__}([{lines}\n])"


class Compose(StepContainer):
    """Apply several steps one after the other. Functions that are no steps become `Lambda`.

    >>> import numpy as np
    >>> prepare = Compose([RandomApply([Lambda(np.fliplr)], p=1), Lambda(np.shape)])
    >>> prepare(np.zeros((4, 5, 3)))
    (4, 5, 3)
    """

    def __init__(self, transforms: Sequence[StepOrFunction]) -> None:
        super().__init__(transforms)
        self.uniforms = sum(step.uniforms for step in self.transforms)
        self.diversity = math.prod(step.diversity for step in self.transforms)
        self.size = self.size_after(None)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        for step in self.transforms:
            size = step.size_after(size)
        return size

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return _outcomes_in_turn(self.transforms, size)

    @property
    def parts(self) -> tuple[Step, ...]:
        if not is_ours(self):
            return (self,)
        return tuple(chain.from_iterable(map(attrgetter("parts"), self.transforms)))

    @property
    def layers(self) -> tuple[Step, ...]:
        if not is_ours(self):
            return (self,)
        return tuple(layer for part in self.parts for layer in part.layers)

    def apply(self, image: Value, uniforms: Uniforms) -> Value:
        return self._apply_all(image, uniforms)


class RandomApply(StepContainer):
    """Apply all of the steps with probability `p`, and none of them otherwise."""

    def __init__(self, transforms: Sequence[StepOrFunction], p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p = parameters.probability("RandomApply", p)
        self.uniforms = 1 + sum(step.uniforms for step in self.transforms)
        outcomes = math.prod(step.diversity for step in self.transforms)
        self.diversity = 1 if self.p == 0 else outcomes if self.p == 1 else outcomes + 1

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, p={self.p})"

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes:
        return _outcomes_in_turn(self.transforms, size).with_probability(self.p)

    def happens_in(self, uniforms: Uniforms) -> NDArray[np.bool_]:
        """Which images of a batch are changed, given a row of random numbers for each."""
        return uniforms[:, 0] < self.p

    def apply(self, image: Value, uniforms: Uniforms) -> Value:
        return self._apply_all(image, uniforms[1:]) if uniforms[0] < self.p else image


def are_functions(steps: Sequence[Step]) -> list[bool]:
    """For each step, whether it is a user's function or of a user's class, or contains one.

    Such a step may return anything.
    """
    ours = [*map(is_ours, steps)]
    return [
        not own
        or isinstance(step, Lambda)
        or (isinstance(step, StepContainer) and any(are_functions(step.transforms)))
        for step, own in zip(steps, ours, strict=True)
    ]


def input_checks(
    steps: Sequence[Step], functions: Sequence[bool], after_function: bool = False
) -> list[bool]:
    """For each step, whether it takes an image, and may get something else: what a user's function returned.

    `functions` says which of the steps are such functions, `after_function` whether one comes before them.
    """
    checks = []
    for step, is_function in zip(steps, functions, strict=True):
        first = next(_plain_steps([step]), None)
        checks.append(after_function and isinstance(first, ImageStep))
        after_function = after_function or is_function
    return checks


def _outcomes_in_turn(steps: Sequence[Step], size: tuple[int, int] | None) -> Outcomes:
    """The outcomes of steps that are applied one after the other."""
    outcomes = ONE
    for step in steps:
        outcomes, size = outcomes.then(step.outcomes(size)), step.size_after(size)
    return outcomes


def _as_step(name: str, step: object) -> Step:
    if isinstance(step, Step):
        return step
    if isinstance(step, BatchMixing):
        raise ArgumentError(
            f"{name}: {type(step).__name__} mixes a batch, and a step has one image. Give it to "
            f"the loader: DataLoader(…, batch_transform={step!r})."
        )
    if callable(step) and not isinstance(step, type):
        return Lambda(step)
    raise ArgumentError(
        f"{name}: {step!r} is not a step. Give instances of the steps in rekindle.transforms, or functions "
        "of one image."
    )


def _plain_steps(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, StepContainer):
            yield from _plain_steps(step.transforms)
        else:
            yield step


def _check_order(name: str, steps: Sequence[Step]) -> None:
    """ArgumentError for a step on images after the conversion to a tensor, or a step on tensors before it."""
    converted_by: Step | None = None
    image_step: Step | None = None
    tensor_step: Step | None = None  # that comes first
    for step in _plain_steps(steps):
        takes_images = isinstance(step, ImageStep | Conversion) and not isinstance(step, ConvertImageDtype)
        if takes_images and tensor_step is not None:
            raise ArgumentError(
                f"{name}: {type(tensor_step).__name__} works on tensors and comes before "
                f"{type(step).__name__}, which takes an image of bytes. Put ToTensor() before "
                f"{type(tensor_step).__name__}, and what works on images before that."
            )
        if isinstance(step, Lambda):
            converted_by = image_step = tensor_step = None  # its result may be anything
        elif isinstance(step, ImageStep):
            image_step = step
            if converted_by is not None:
                raise ArgumentError(
                    f"{name}: {type(step).__name__} works on images of bytes and comes after "
                    f"{type(converted_by).__name__}. Put it before."
                )
        elif isinstance(step, Conversion):
            if converted_by is not None and not isinstance(step, ConvertImageDtype):
                raise ArgumentError(
                    f"{name}: {type(step).__name__} comes after {type(converted_by).__name__}, which has "
                    "already converted the image. Remove one of them."
                )
            converted_by = step
        elif isinstance(step, TensorStep) and converted_by is None and image_step is not None:
            raise ArgumentError(
                f"{name}: {type(step).__name__} works on tensors and comes after "
                f"{type(image_step).__name__}, which returns an image of bytes. Put ToTensor() between them."
            )
        elif isinstance(step, TensorStep) and converted_by is None and tensor_step is None:
            tensor_step = step
