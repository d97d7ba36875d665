"""Whether two lists of steps do the same, and copies of steps that later changes do not reach."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from rekindle.prepare.steps.compose import Lambda, StepContainer
from rekindle.prepare.steps.step import Step

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def are_same_steps(some: Sequence[Step], others: Sequence[Step]) -> bool:
    """Whether steps are equal one by one: their parameters, and which functions they call.

    What a function or a step of the user's depends on need not be seen in how it is shown, so these are the
    same only if they consist of the same objects.
    """
    return len(some) == len(others) and all(map(_is_same, some, others))


def snapshot(step: Step) -> Step:
    """A copy that keeps its parameters when those of the step are changed; functions are the same ones."""
    copied = copy.copy(step)
    if isinstance(copied, StepContainer):
        copied.transforms = [snapshot(one) for one in copied.transforms]
    return copied


def _is_same(one: Step, other: Step) -> bool:
    if one is other:
        return True
    mine, others = vars(one), vars(other)
    if type(one) is not type(other) or mine.keys() != others.keys():
        return False
    is_own = type(one).__module__.startswith("rekindle.") and not isinstance(one, Lambda)
    for name, value in mine.items():
        found = others[name]
        if name == "transforms" and isinstance(one, StepContainer):
            if not are_same_steps(value, found):
                return False
        elif is_own or type(value) in _PLAIN:
            if repr(value) != repr(found):
                return False
        elif value is not found:
            return False
    return True
