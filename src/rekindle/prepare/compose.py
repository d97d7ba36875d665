"""Steps made of other steps: Compose and RandomApply; and Lambda, any function as a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rekindle.errors import ArgumentError
from rekindle.prepare import parameters
from rekindle.prepare.image_step import ImageStep, as_image
from rekindle.prepare.step import Numbers, Step
from rekindle.prepare.tensors import Conversion, ConvertImageDtype, TensorStep


class Lambda(Step):
    """What the function makes of the image, whatever that is.

    How many distinct outcomes it has for one image can be said with `diversity`. Otherwise it counts as
    deterministic, and reuse judges by trying it out.
    """

    releases_gil = False

    def __init__(self, lambd: Callable[[Any], Any], *, diversity: float | None = None) -> None:
        if not callable(lambd):
            raise ArgumentError(f"Lambda: lambd is {lambd!r}. Give a function of one image.")
        if diversity is not None and not (isinstance(diversity, int | float) and diversity >= 1):
            raise ArgumentError(f"Lambda: diversity is {diversity!r}. Give a number from 1 on, or None.")
        self.lambd = lambd
        self.diversity = 1 if diversity is None else diversity
        self.knows_diversity = diversity is not None

    def __repr__(self) -> str:
        said = f", diversity={self.diversity}" if self.knows_diversity else ""
        return f"Lambda({self.lambd!r}{said})"

    def apply(self, image: Any, numbers: Numbers) -> Any:
        return self.lambd(image)


class _Several(Step):
    """Some steps, one after the other."""

    def __init__(self, transforms: Iterable[Any]) -> None:
        name = type(self).__name__
        if isinstance(transforms, str) or not isinstance(transforms, Iterable):
            raise ArgumentError(f"{name}: transforms is {transforms!r}. Give a list of steps.")
        self.transforms = [_as_step(name, step) for step in transforms]
        self.releases_gil = all(step.releases_gil for step in self.transforms)
        self.keeps_size = all(step.keeps_size for step in self.transforms)
        self.knows_diversity = all(step.knows_diversity for step in self.transforms)
        _check_order(name, self.transforms)

    def _apply_all(self, image: Any, numbers: Numbers) -> Any:
        used = 0
        for step in self.transforms:
            image = step.apply(image, numbers[used : used + step.uniforms])
            used += step.uniforms
        return image

    def __call__(self, image: Any) -> Any:
        """Apply to one image with numbers from torch's global generator; converts Pillow images."""
        first = next(_plain_steps(self.transforms), None)
        if isinstance(first, ImageStep):
            image = as_image(image, type(self).__name__)
        return super().__call__(image)

    def __repr__(self) -> str:
        lines = "".join(f"\n    {step!r}," for step in self.transforms)
        return f"{type(self).__name__}([{lines}\n])"


class Compose(_Several):
    """The steps one after the other, as one step. Functions that are no steps become `Lambda`.

    >>> import numpy as np
    >>> prepare = Compose([RandomApply([Lambda(np.fliplr)], p=1), Lambda(np.shape)])
    >>> prepare(np.zeros((4, 5, 3)))
    (4, 5, 3)
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__(transforms)
        self.uniforms = sum(step.uniforms for step in self.transforms)
        self.diversity = math.prod(step.diversity for step in self.transforms)
        self.size = self.size_after(None)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        for step in self.transforms:
            size = step.size_after(size)
        return size

    @property
    def layers(self) -> tuple[Step, ...]:
        return tuple(layer for step in self.transforms for layer in step.layers)

    def apply(self, image: Any, numbers: Numbers) -> Any:
        return self._apply_all(image, numbers)


class RandomApply(_Several):
    """The steps one after the other with probability `p`, the image as it is otherwise."""

    def __init__(self, transforms: Sequence[Any], p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p = parameters.probability("RandomApply", p)
        self.uniforms = 1 + sum(step.uniforms for step in self.transforms)
        outcomes = math.prod(step.diversity for step in self.transforms)
        self.diversity = 1 if self.p == 0 else outcomes if self.p == 1 else outcomes + 1

    def happens(self, numbers: Numbers) -> Any:
        """Whether the image is changed; for rows of numbers, an array that says it of each row."""
        return numbers[..., 0] < self.p

    def apply(self, image: Any, numbers: Numbers) -> Any:
        return self._apply_all(image, numbers[1:]) if self.happens(numbers) else image


def _as_step(name: str, step: Any) -> Step:
    if isinstance(step, Step):
        return step
    if callable(step) and not isinstance(step, type):
        return Lambda(step)
    raise ArgumentError(
        f"{name}: {step!r} is not a step. Give steps of rekindle.transforms, made with their parameters, "
        "or functions of one image."
    )


def _plain_steps(steps: Iterable[Step]) -> Iterator[Any]:
    for step in steps:
        if isinstance(step, _Several):
            yield from _plain_steps(step.transforms)
        else:
            yield step


def _check_order(name: str, steps: Sequence[Step]) -> None:
    """Refuse steps on images after the conversion to a tensor, and steps on tensors before it."""
    converted_by: Step | None = None
    image_step: Step | None = None
    for step in _plain_steps(steps):
        if isinstance(step, Lambda):
            converted_by = image_step = None  # anything may come out of it
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
                    "converted the image already. Leave one of them out."
                )
            converted_by = step
        elif isinstance(step, TensorStep) and converted_by is None and image_step is not None:
            raise ArgumentError(
                f"{name}: {type(step).__name__} works on tensors and comes after "
                f"{type(image_step).__name__}, which gives an image of bytes. Put ToTensor() between them."
            )
