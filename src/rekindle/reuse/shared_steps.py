"""Whether anything else than the steps of a Compose sees what they keep: a mask is cut as its image just was.

Where a step notes what it has done, and the dataset reads that after the call, the step must not be done
later. Nothing else of a step that keeps something is known from outside.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from types import FunctionType

from rekindle.core.analysis.code_names import global_names
from rekindle.core.analysis.near_objects import near_objects
from rekindle.core.analysis.object_state import is_library, mro_of, vars_of
from rekindle.core.analysis.self_changes import kept_by, reached_functions

_CONTAINERS = (OrderedDict, defaultdict, deque, dict, list, set)


def shared_by_steps(dataset: object, compose: object) -> str:
    """What steps change and others see: the class of an object, or a global; empty if there is nothing."""
    kept = {id(one): kept_by(one) for one in reached_functions(compose)}
    changed = {key for key, one in kept.items() if one.own or one.items}
    elsewhere, items = any(one.elsewhere for one in kept.values()), any(one.items for one in kept.values())
    names = frozenset[str]().union(*(one.names for one in kept.values()))
    if not (changed or elsewhere or names):
        return ""
    others = [value for _, value in near_objects(dataset, without=compose)]
    for function in others:
        if type(function) is FunctionType and (read := names & global_names(function.__code__)):
            return min(read)
    seen = {*map(id, others)} | _seen_by_others(compose)
    for _, value in near_objects(compose):
        kind = type(value)
        if id(value) not in seen or type in mro_of(kind) or kind is FunctionType:
            continue
        is_own = not is_library(vars_of(kind).get("__module__"))
        if (items and kind in _CONTAINERS) or (is_own and (elsewhere or _has_one_of(kind, changed))):
            return kind.__qualname__
    return ""


def _seen_by_others(compose: object) -> set[int]:
    """The steps that other steps hold."""
    steps = {id(step): step for step in getattr(compose, "transforms", ())}
    return {
        id(value)
        for key, step in steps.items()
        for _, value in near_objects(step)
        if id(value) in steps and id(value) != key
    }


def _has_one_of(kind: type, functions: set[int]) -> bool:
    return any(id(member) in functions for base in mro_of(kind) for member in vars_of(base).values())
