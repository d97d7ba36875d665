"""The steps of a dataset, and where among them it can be split."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeGuard

from torch.utils.data import Subset

from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.prepare.steps.outcomes import Outcomes, uniform
from rekindle.prepare.steps.step import Step
from rekindle.prepare.third_party_transforms import is_albumentations
from rekindle.reuse.settings import STAGES

Transform: TypeAlias = Callable[[Sample], Sample]
_STEP_AND_LAYER = re.compile(r"(\w+)(?:\[(\d+)\])?$")


class Layer(NamedTuple):
    """One step, or a layer of a step that consists of several."""

    name: str  # of the step it belongs to
    number: int  # of the layer within that step
    step: Transform
    diversity: float | None  # how many distinct outcomes it has; None if that is not known
    ours: Step | None = None  # the step itself, or our step that does the same

    def outcomes(self, size: tuple[int, int] | None = None) -> Outcomes | None:
        """How probable its distinct outcomes are, in an image of this size; None if that is not known."""
        if self.diversity is None:
            return None
        return uniform(self.diversity) if self.ours is None else self.ours.outcomes(size)

    def __str__(self) -> str:
        return f"{self.name}[{self.number}]" if self.number else self.name


class ComposeLike(Protocol):
    """Applies its `transforms` one after the other."""

    transforms: Sequence[Transform]


def layers_of(pipeline: object) -> list[Layer]:
    """The layers of a list of steps, a Compose, or a dataset that has them; none if it has no steps."""
    if isinstance(pipeline, Subset):
        return layers_of(pipeline.dataset)
    steps = pipeline if _has_steps(pipeline) else getattr(pipeline, "transform", None)
    if is_compose(steps):
        steps = steps.transforms
    if steps is None or isinstance(steps, str):
        return []
    if not isinstance(steps, Iterable):
        steps = [steps]
    return [layer for step in steps for layer in _layers_of_step(step)]


def is_compose(value: object) -> TypeGuard[ComposeLike]:
    """Whether this is a Compose: ours, torchvision's or the user's own.

    Albumentations' Compose takes more than images, and RandomChoice and the like apply only some transforms.
    """
    kinds = type(value).__mro__
    return (  # By its class first: to ask any other object for an attribute may run any code.
        any(kind.__name__ == "Compose" for kind in kinds)
        and not is_albumentations(value)
        and isinstance(getattr(value, "transforms", None), list | tuple)
    )


def _has_steps(value: object) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "transforms") and callable(value))


def _layers_of_step(step: Transform) -> list[Layer]:
    parts: Sequence[Transform] = step.parts if isinstance(step, Step) else (step,)
    found = []
    for part in parts:
        layers: Sequence[Transform] = part.layers if isinstance(part, Step) else _single_operations(part)
        found += [Layer(type(part).__name__, *one, *_known(one[1])) for one in enumerate(layers)]
    return found


class _RandAugment(Protocol):
    """Torchvision's."""

    num_ops: int

    def __call__(self, image: Sample) -> Sample: ...


def _is_rand_augment(step: object) -> TypeGuard[_RandAugment]:
    return type(step).__name__ == "RandAugment" and isinstance(getattr(step, "num_ops", None), int)


def _single_operations(step: Transform) -> list[Transform]:
    """Torchvision's RandAugment of n operations as n of one operation each; any other step as it is."""
    if not _is_rand_augment(step) or step.num_ops < 2:
        return [step]
    single = copy.copy(step)
    single.num_ops = 1
    return [single] * step.num_ops


def _known(step: Transform) -> tuple[float | None, Step | None]:
    """The diversity that a step declares, or else that of our step of the same name, and our step."""
    if isinstance(step, Step):
        return (step.diversity if step.knows_diversity else None), step
    declared = getattr(step, "diversity", None)
    if isinstance(declared, int | float):
        return (declared if getattr(step, "knows_diversity", True) else None), None
    if type(step).__module__.partition(".")[0] != "torchvision":
        return None, None
    from rekindle.prepare.steps.from_torchvision import from_torchvision

    try:
        ours = from_torchvision(step)
    except ArgumentError:
        return None, None
    return (float(ours.diversity) if ours.knows_diversity else None), ours


def find_split(layers: Sequence[Layer], split: int | str) -> int:
    """How many layers come before the split."""
    if isinstance(split, str):
        match = _STEP_AND_LAYER.match(split)
        wanted = (match[1], int(match[2] or 0)) if match else (split, 0)
        for index, layer in enumerate(layers):
            if (layer.name, layer.number) == wanted:
                return index
    elif type(split) is int and 0 <= split <= len(layers):
        return split
    raise ArgumentError(
        f"split={split!r}: there is no such step. Name the first step that is to be recomputed each time, or "
        f"give its number; the steps are {_numbered(layers)}."
    )


def end_of(layers: Sequence[Layer], step: str) -> int:
    """How many layers come before the end of a step, or of one layer of it."""
    try:
        end = find_split(layers, step) + 1
    except ArgumentError:
        raise ArgumentError(
            f"Echo(after={step!r}): there is no such stage or step. Give {', '.join(map(repr, STAGES))}, or "
            f"name the step whose result is to be repeated; the steps are {_numbered(layers)}."
        ) from None
    if not step.endswith("]"):
        while end < len(layers) and layers[end].number:
            end += 1
    return end


def _numbered(layers: Sequence[Layer]) -> str:
    return ", ".join(f"{index}: {layer}" for index, layer in enumerate(layers)) or "none"
