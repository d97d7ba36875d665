"""Which code of a script makes generators, as far as its names show."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType

import numpy as np
import torch

from rekindle.core.analysis.code_names import all_names
from rekindle.core.analysis.object_state import is_library, mro_of, vars_of

_MAKERS = (
    np.random.Generator, np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox,
    np.random.RandomState, np.random.SFC64, np.random.default_rng, random.Random, torch.Generator,
)  # fmt: skip
_NAMES = frozenset({*(one.__name__ for one in _MAKERS), "check_random_state", "spawn"})


def makers_among(near: list[object]) -> Callable[[FunctionType], bool]:
    """Says of a function whether it may make a generator: itself, or by functions and classes among these."""
    functions = [(one.__name__, one) for one in near if type(one) is FunctionType]
    held = {type(one) for one in near}
    # What a class's constructor makes is new where it is called, and held where there is an instance.
    functions += [
        (one.__name__, init)
        for one in near
        if isinstance(one, type) and one not in held
        for init in [_constructor(one)]
        if init is not None
    ]
    names = set(_NAMES)
    while found := {name for name, one in functions if name not in names and _names_any(one, names)}:
        names |= found
    return lambda function: _names_any(function, names)


def _constructor(kind: type) -> FunctionType | None:
    """The constructor that a class of a script has."""
    for one in mro_of(kind):
        init = vars_of(one).get("__init__")
        if type(init) is FunctionType and not is_library(init.__module__):
            return init
    return None


def _names_any(function: FunctionType, names: set[str]) -> bool:
    used = all_names(function.__code__)
    if not names.isdisjoint(used):
        return True
    there = function.__globals__  # `from numpy.random import default_rng as rng`
    return any(there[name] is one for name in used if name in there for one in _MAKERS)
