"""Whether code of a script sets the global generators itself, as far as its bytecode shows.

So an image and its mask get the same draws: the generator is seeded before the one, and again before the
other. What is done to them later, in another place, would draw other numbers for each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dis import Instruction
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
import torch

from rekindle.core.analysis.bytecode import steps_of, with_inner
from rekindle.core.analysis.reached_functions import reached_functions

_SETTING = frozenset(
    {
        "fix_seed", "fork_rng", "manual_seed", "seed", "seed_all", "seed_everything", "set_all_seeds",
        "set_random_seed", "set_rng_state", "set_seed", "set_state", "setstate",
    }
)  # fmt: skip
_FUNCTIONS: tuple[Callable[..., object], ...] = (
    random.seed,
    random.setstate,
    np.random.seed,
    np.random.set_state,
    torch.manual_seed,
    torch.set_rng_state,
    torch.random.fork_rng,
)
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_CALLABLE = (BuiltinFunctionType, FunctionType, MethodType)


def who_sets_generators(*roots: object) -> str:
    """The name of a function that objects may run and that sets a global generator; empty if none does."""
    return next(
        (
            function.__qualname__
            for function in reached_functions(*roots)
            if any(_sets(code, function.__globals__) for code in with_inner(function.__code__))
        ),
        "",
    )


def _sets(code: CodeType, reads: dict[str, object]) -> bool:
    steps = steps_of(code)
    imported = {
        after.argval
        for step, after in pairwise(steps)
        if step.opname in ("IMPORT_NAME", "IMPORT_FROM") and after.opname.startswith("STORE_")
    }
    for number, step in enumerate(steps):
        if step.opname == "IMPORT_FROM" and step.argval in _SETTING:
            return True
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and _is_one(reads.get(step.argval)):
            return True
        is_named = step.opname in _ATTRIBUTES and step.argval in _SETTING
        if is_named and _is_of_a_module(steps, number - 1, reads, imported):
            return True
    return False


def _is_one(value: object) -> bool:
    return type(value) in _CALLABLE and any(value == one for one in _FUNCTIONS)


def _is_of_a_module(
    steps: list[Instruction], number: int, reads: dict[str, object], imported: set[str]
) -> bool:
    """Whether what is loaded here is a module, or of one: not an object of the script's own."""
    while number > 0 and steps[number].opname in _ATTRIBUTES:
        number -= 1
    root = steps[number]
    if root.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        return isinstance(reads.get(root.argval), ModuleType)
    return root.opname.startswith("LOAD_") and root.argval in imported
