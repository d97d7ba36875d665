"""Refuses torchvision's transforms of Pillow images in a list of steps, which are given arrays."""

from __future__ import annotations

from collections.abc import Iterable

from rekindle.errors import ArgumentError
from rekindle.prepare.steps.compose import Lambda, StepContainer
from rekindle.prepare.steps.from_torchvision import NATIVE_NAMES
from rekindle.prepare.steps.image_step import ImageStep
from rekindle.prepare.steps.step import Step, is_ours
from rekindle.prepare.steps.to_tensor import Conversion, TensorStep

# Those of torchvision's that take arrays. Others take Pillow images and tensors; v2's leave arrays alone.
_TAKE_ARRAYS = ("ToTensor", "ToPILImage", "ToImage", "Lambda", "Identity")
_IN_TURN = ("Compose", "Sequential")


def check_takes_arrays(steps: Iterable[Step]) -> None:
    """ArgumentError for a transform of torchvision's that an array is given to, but takes none."""
    _check_inputs(steps, is_array=True)


def _check_inputs(steps: Iterable[Step], is_array: bool) -> bool:
    """Whether the result is certainly an array, given whether the input is."""
    for step in steps:
        if isinstance(step, Lambda):
            wrong = _takes_no_array(step.lambd) if is_array else None
            if wrong is not None:
                raise ArgumentError(_refusal(wrong))
            is_array = False  # It may return anything.
        elif isinstance(step, StepContainer):
            is_array = _check_inputs(step.transforms, is_array)
        elif isinstance(step, Conversion | TensorStep) or not is_ours(step):
            is_array = False
        elif isinstance(step, ImageStep):
            is_array = True
    return is_array


def _takes_no_array(function: object) -> str | None:
    """The name of a torchvision transform that takes no array, among those that would be given this one."""
    if not type(function).__module__.startswith("torchvision.transforms"):
        return None
    name = type(function).__name__
    inner = list(getattr(function, "transforms", ()))
    if inner:
        found = map(_takes_no_array, inner[:1] if name in _IN_TURN else inner)
        return next((wrong for wrong in found if wrong is not None), None)
    return None if name in _TAKE_ARRAYS else name


def _refusal(name: str) -> str:
    ours = name if name in NATIVE_NAMES else "Lambda(function)"
    return (
        f"transform: {name} is torchvision's and takes Pillow images, but in a list of steps it is given an "
        f"array. Use {ours} of rekindle.transforms, or give a Compose of torchvision's in place of the list."
    )
