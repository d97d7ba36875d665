"""The steps of a data set, and where among them it can be cut."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Subset

from rekindle.errors import ArgumentError

_NAMED = re.compile(r"(\w+)(?:\[(\d+)\])?$")


class Layer(NamedTuple):
    """One step, or a layer of one that consists of several."""

    name: str  # of the step it belongs to
    number: int  # of the layer within that step
    step: Any
    diversity: float | None  # how many distinct outcomes it has; None if nobody knows

    def __str__(self) -> str:
        return f"{self.name}[{self.number}]" if self.number else self.name


def layers_of(pipeline: Any) -> list[Layer]:
    """The layers of steps in a list or a Compose, or of a data set that has them; none if it has no steps."""
    if isinstance(pipeline, Subset):
        return layers_of(pipeline.dataset)
    steps = pipeline
    if not _is_list_of_steps(steps):
        steps = getattr(pipeline, "transform", None)
    if is_compose(steps):
        steps = steps.transforms
    if steps is None or isinstance(steps, str):
        return []
    if not isinstance(steps, Iterable):
        steps = [steps]
    return [layer for step in steps for layer in _layers_of_step(step)]


def is_compose(value: Any) -> bool:
    """Whether this does its `transforms` one after the other: a Compose of ours, torchvision's or one's own.

    Albumentations' works on other things than images, and RandomChoice and the like do only some of them.
    """
    kinds = type(value).__mro__
    return (
        isinstance(getattr(value, "transforms", None), list | tuple)
        and any(kind.__name__ == "Compose" for kind in kinds)
        and not any(kind.__module__.partition(".")[0] == "albumentations" for kind in kinds)
    )


def _is_list_of_steps(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "transforms") and callable(value))


def _layers_of_step(step: Any) -> list[Layer]:
    if hasattr(step, "transforms") and hasattr(step, "layers"):  # a Compose of ours within another
        return [layer for part in step.transforms for layer in _layers_of_step(part)]
    name = type(step).__name__
    parts: Sequence[Any] = getattr(step, "layers", None) or _layers_of_foreign(step)
    return [Layer(name, number, part, _diversity(part)) for number, part in enumerate(parts)]


def _layers_of_foreign(step: Any) -> list[Any]:
    """Torchvision's RandAugment is as many of one operation each; whatever else stays whole."""
    ops = getattr(step, "num_ops", None)
    if type(step).__name__ != "RandAugment" or not isinstance(ops, int) or ops < 2:
        return [step]
    single = copy.copy(step)
    single.num_ops = 1
    return [single] * ops


def _diversity(step: Any) -> float | None:
    """What a step says itself, or else what our step of the same name says."""
    said = getattr(step, "diversity", None)
    if isinstance(said, int | float):
        return said if getattr(step, "knows_diversity", True) else None
    if type(step).__module__.partition(".")[0] != "torchvision":
        return None
    from rekindle.prepare.from_torchvision import from_torchvision

    try:
        ours = from_torchvision(step)
    except ArgumentError:
        return None
    return float(ours.diversity)


def find_split(layers: Sequence[Layer], split: int | str) -> int:
    """How many layers come before the cut."""
    if isinstance(split, str):
        match = _NAMED.match(split)
        wanted = (match[1], int(match[2] or 0)) if match else (split, 0)
        for place, layer in enumerate(layers):
            if (layer.name, layer.number) == wanted:
                return place
    elif type(split) is int and 0 <= split <= len(layers):
        return split
    shown = ", ".join(f"{place}: {layer}" for place, layer in enumerate(layers)) or "none"
    raise ArgumentError(
        f"split={split!r}: there is no such step. Name the first step that is to be done anew each time, or "
        f"give its number; the steps are {shown}."
    )


def end_of(layers: Sequence[Layer], step: int | str) -> int:
    """How many layers come before the end of a step, or of one layer of it."""
    place = find_split(layers, step) + 1
    if isinstance(step, str) and not step.endswith("]"):
        while place < len(layers) and layers[place].number:
            place += 1
    return place
