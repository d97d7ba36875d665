"""Whether anything else than a step of a Compose sees what it keeps: a mask is cut as its image just was.

Where a step notes what it has done, and the dataset or another step reads that after the call, neither must
be done later. Nothing else of a step that keeps something is known from outside.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict, deque
from types import FunctionType
from typing import TypeAlias

from rekindle.core.analysis.bytecode import global_names
from rekindle.core.analysis.near_objects import ARRAYS, near_objects
from rekindle.core.analysis.object_state import is_of_script, mro_of, vars_of
from rekindle.core.analysis.reached_functions import reached_functions
from rekindle.core.analysis.self_changes import Kept, kept_by

_CONTAINERS = (OrderedDict, defaultdict, deque, dict, list, set, bytearray)
_ANY = frozenset({""})  # the name of what may be reached by any
_READS = " reads "  # in the way to a global

_KeptBy: TypeAlias = dict[FunctionType, Kept]
_Near: TypeAlias = list[tuple[str, object]]


def shared_by_steps(dataset: object, compose: object) -> str:
    """What steps change and others see: the class of an object, or a global; empty if there is nothing."""
    kept = _kept_by(compose)
    if not kept:
        return ""
    near_dataset = [*near_objects(dataset, without=compose, with_arrays=True)]
    is_elsewhere = any(one.elsewhere for one in kept.values())
    if found := _seen(_near(compose), kept, near_dataset, is_elsewhere):
        return found
    near = {id(step): (step, _near(step)) for step in getattr(compose, "transforms", ())}
    for key, (step, near_step) in near.items():
        kept = _kept_by(step)
        ways = frozenset[str]().union(*(one.ways for one in kept.values()))
        others = [one for other, (_, found_there) in near.items() if other != key for one in found_there]
        is_outside = any(one.outside for one in kept.values())
        if kept and (found := _seen(near_step, kept, others, is_outside, ways)):
            return found
    return ""


def _near(value: object) -> _Near:
    return [*near_objects(value, with_arrays=True)]


def _kept_by(value: object) -> _KeptBy:
    """Where the functions that an object may run keep something, of those that do."""
    kept = {one: kept_by(one) for one in reached_functions(value)}
    return {function: one for function, one in kept.items() if any(one)}


def _seen(near: _Near, kept: _KeptBy, others: _Near, in_objects: bool, ways: frozenset[str] = _ANY) -> str:
    """What is kept in one place and seen from another; `in_objects`, that it may be in any object.

    What has no method that changes it counts only if it is reached by one of the names `ways`.
    """
    names = frozenset[str]().union(*(one.names for one in kept.values()))
    for function in [one for _, one in others if type(one) is FunctionType and one not in kept]:
        if read := names & global_names(function.__code__):
            return min(read)
    changed = {id(function) for function, one in kept.items() if one.own or one.items}
    has_items = any(one.items for one in kept.values())
    seen = {id(value) for way, value in others if _may_be_written(way, names)}
    for way, value in near:
        kind = type(value)
        if id(value) not in seen or issubclass(kind, type) or kind is FunctionType:
            continue
        is_own = is_of_script(kind)
        holds_items = kind in _CONTAINERS or issubclass(kind, ARRAYS)
        if not _may_be_written(way, names):
            continue
        is_changed = (has_items and holds_items) or (is_own and in_objects)
        if (is_changed and _is_on(way, ways)) or (is_own and _has_one_of(kind, changed)):
            return kind.__qualname__
    return ""


def _is_on(way: str, ways: frozenset[str]) -> bool:
    """Whether code may reach an object by one of these names; in a closure, it has another one."""
    return "" in ways or ".closure[" in way or not ways.isdisjoint(re.split(r"[].[<]", way))


def _may_be_written(way: str, names: frozenset[str]) -> bool:
    """Whether an object is none that is only read: a table among the globals, say."""
    name = way.rpartition(_READS)[2] if _READS in way else ""
    return not name or not names.isdisjoint(re.split(r"[].[<]", name))  # It may begin with a module's name.


def _has_one_of(kind: type, functions: set[int]) -> bool:
    return any(id(member) in functions for base in mro_of(kind) for member in vars_of(base).values())
