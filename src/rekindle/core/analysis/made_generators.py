"""Which code of a script makes generators, as far as its names show."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType

import numpy as np
import torch

from rekindle.core.analysis.bytecode import all_names, global_names
from rekindle.core.analysis.object_state import is_library, mro_of, vars_of

_MAKERS = (
    np.random.Generator, np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox,
    np.random.RandomState, np.random.SFC64, np.random.default_rng, random.Random, torch.Generator,
)  # fmt: skip
_NAMES = frozenset({*(one.__name__ for one in _MAKERS), "check_random_state", "spawn"})


def makers_among(near: list[object]) -> Callable[[FunctionType], bool]:
    """Says of a function whether it may make a generator: itself, or by functions and classes among these."""
    functions: list[tuple[FunctionType | type, FunctionType]] = [
        (one, one) for one in near if type(one) is FunctionType
    ]
    held = {type(one) for one in near}
    # What a class's constructor makes is new where it is called, and held where there is an instance.
    functions += [
        (one, init)
        for one in near
        if isinstance(one, type) and one not in held
        for init in [_constructor(one)]
        if init is not None
    ]
    makers: list[FunctionType | type] = []
    while found := [one for one, code in functions if one not in makers and _makes(code, makers)]:
        makers += found
    return lambda function: _makes(function, makers)


def _constructor(kind: type) -> FunctionType | None:
    """The constructor that a class of a script has."""
    for one in mro_of(kind):
        init = vars_of(one).get("__init__")
        if type(init) is FunctionType and not is_library(init.__module__):
            return init
    return None


def _makes(function: FunctionType, makers: list[FunctionType | type]) -> bool:
    """Whether a function names what makes a generator: one of these, or of the libraries'."""
    code, there = function.__code__, function.__globals__
    used = all_names(code)
    if not _NAMES.isdisjoint(used):
        return True
    known = {*map(id, _MAKERS), *map(id, makers)}
    of_globals = {name: there[name] for name in global_names(code) if name in there}
    if any(
        id(value) in known for value in of_globals.values()
    ):  # `from numpy.random import default_rng as rng`
        return True
    # What is no function of this module itself is known by its name: methods, say, and `make = cache(make)`.
    others = {name for name in used if not isinstance(of_globals.get(name), FunctionType | type)}
    return any(
        one.__name__ in others and (one.__name__ in of_globals or _is_attribute(one, function))
        for one in makers
    )


def _is_attribute(maker: FunctionType | type, function: FunctionType) -> bool:
    """Whether a function reaches another one, if at all, as an attribute: of an object or of a module."""
    return "." in maker.__qualname__ or maker.__module__ != function.__module__
