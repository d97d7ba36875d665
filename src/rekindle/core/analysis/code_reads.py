"""What code of a script reads by name, and what it writes itself, as far as its bytecode shows.

A dataset's code reads globals, classes and settings, which a script may change between two epochs. Some of
them the code changes itself: a counter, a list of what failed. By names alone these are told apart: what
stands behind a name that the code writes to is its own. Code is looked at, never run, and that of libraries
not at all.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dis import Instruction
from itertools import chain, pairwise
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import NamedTuple

from rekindle.core.analysis.attribute_uses import ANY_ATTRIBUTE, may_reach_any_attribute
from rekindle.core.analysis.bytecode import (
    Start,
    all_names,
    global_names,
    is_of_items,
    once_for_code,
    start_of,
    steps_of,
    with_inner,
)
from rekindle.core.analysis.held_changes import IN_PLACE
from rekindle.core.analysis.near_objects import near_objects, own_classes
from rekindle.core.analysis.object_state import is_installed, is_library, vars_of
from rekindle.core.analysis.reached_functions import functions_among
from rekindle.core.analysis.self_changes import (
    CHANGE_ARGUMENT,
    CHANGING,
    CHANGING_FUNCTIONS,
    STORES_ITEM,
)

_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_ATTR", "LOAD_METHOD"})
_NUMBERS = frozenset({"value", "raw"})  # of `ctypes`: to assign them writes to memory
# Through these, numbers of `ctypes` are written to under another name.
_OPENS_MEMORY = frozenset(
    {"as_array", "from_buffer", "frombuffer", "get_obj", "memmove", "memoryview", "memset"}
)
_NEAR = 3  # steps: a value, what it is stored in, and the key


class CodeReads(NamedTuple):
    """What code reads and writes.

    `names` are those of the globals, variables and attributes that it uses; None if it may use any attribute.
    What stands behind a name that is `written` is changed by the code itself. `writes_numbers` says that it
    may write to any number of `ctypes`.
    """

    functions: tuple[FunctionType, ...] = ()
    classes: tuple[type, ...] = ()
    modules: tuple[ModuleType, ...] = ()
    names: frozenset[str] | None = frozenset()
    written: frozenset[str] = frozenset()
    writes_numbers: bool = False


def code_reads(*roots: object) -> CodeReads:
    """What the code reads and writes that these objects may run."""
    reached, known = [*roots], {id(root) for root in roots}
    modules: dict[int, ModuleType] = {}
    while True:
        near = [value for _, value in near_objects(*reached)]
        classes = own_classes(near)
        functions = (*functions_among(near),)
        new: dict[int, object] = {}
        for function in functions:
            used = _of_modules(function, modules)
            new |= {id(value): value for value in used if id(value) not in known}
        if not new:
            break
        reached += new.values()
        known |= new.keys()
    names = set(chain.from_iterable(map(_names_in_getter, near)))
    written, writes_numbers = set[str](), False
    any_attribute = any(type(one) is BuiltinFunctionType and one.__name__ in ANY_ATTRIBUTE for one in near)
    for function in functions:
        names |= all_names(function.__code__)
        any_attribute = any_attribute or may_reach_any_attribute(function.__code__)
        for code in with_inner(function.__code__):
            names.update(code.co_freevars)
            found = _written(code)
            written |= {one for one in found if one is not None}
            writes_numbers = writes_numbers or None in found
    # What these write to is the new object's own.
    makers = (*_that_make_objects(classes, names),)
    for function in makers:
        names |= all_names(function.__code__)
        any_attribute = any_attribute or may_reach_any_attribute(function.__code__)
    return CodeReads(
        (*functions, *makers),
        classes,
        (*modules.values(),),
        None if any_attribute else frozenset(names),
        frozenset(written),
        writes_numbers or not _OPENS_MEMORY.isdisjoint(names),
    )


def _names_in_getter(value: object) -> Iterator[str]:
    """The names of attributes that `operator.attrgetter("a.b")` or `methodcaller("a")` reads."""
    if type(value) in (operator.attrgetter, operator.methodcaller):
        for argument in value.__reduce__()[1]:
            if type(argument) is str:
                yield from argument.split(".")


def _that_make_objects(classes: tuple[type, ...], names: set[str]) -> Iterator[FunctionType]:
    """Functions that run where code calls one of the script's classes, by its name."""
    for kind in classes:
        if vars_of(type)["__name__"].__get__(kind) in names:
            members = (vars_of(kind).get(name) for name in ("__new__", "__init__", "__post_init__"))
            for member in members:
                function = member.__func__ if type(member) is staticmethod else member
                if type(function) is FunctionType:
                    yield function


def _of_modules(function: FunctionType, modules: dict[int, ModuleType]) -> Iterator[object]:
    """What a function may read of modules of a script, each of which is noted among the `modules`."""
    names, reads = all_names(function.__code__), function.__globals__
    waiting = [reads.get(name, sys.modules.get(name)) for name in global_names(function.__code__)]
    for module in waiting:
        if type(module) is not ModuleType or is_library(vars(module).get("__name__")):
            continue
        if id(module) in modules or is_installed(module):
            continue
        modules[id(module)] = module
    for module in [*modules.values()]:
        for name in (*names, "__getattr__"):  # which gives what is not there
            value = vars(module).get(name)
            if type(value) is ModuleType and id(value) not in modules and not is_installed(value):
                modules[id(value)] = value
            elif value is not None:
                yield value


@once_for_code
def _written(code: CodeType) -> frozenset[str | None]:
    """The names of what code writes to; None among them: it may be any number of `ctypes`."""
    return frozenset(_find_written(code))


def _find_written(code: CodeType) -> Iterator[str | None]:
    steps = steps_of(code)
    variables = _names_of_variables(steps)
    for number, step in enumerate(steps):
        name, before = step.opname, steps[:number]
        if name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield str(step.argval)
        elif name in ("STORE_DEREF", "DELETE_DEREF"):
            if step.argval in code.co_freevars:
                yield str(step.argval)
        elif name in ("STORE_ATTR", "DELETE_ATTR"):
            yield str(step.argval)
            if step.argval in _NUMBERS:
                holder = [one for one in before if one.argval != step.argval]  # `self.count.value += 1`
                yield from _names_at(start_of(step), holder, variables) or (None,)
        elif name in STORES_ITEM:
            yield from _names_at(start_of(step), before, variables)
        elif name in _NAMES:
            is_method = name in ("LOAD_ATTR", "LOAD_METHOD")
            if is_method and (step.argval in CHANGING or IN_PLACE(str(step.argval))):
                yield from _names_at(start_of(step), before, variables)
            elif step.argval in ("setattr", "delattr"):
                yield from (one for one in code.co_consts if type(one) is str)
            elif step.argval in CHANGING_FUNCTIONS or (is_method and step.argval in CHANGE_ARGUMENT):
                after = steps[number + 1 :]
                if after:
                    yield from _names_at(start_of(after[0]), after, variables)


def _names_of_variables(steps: list[Instruction]) -> dict[str, set[str]]:
    """Of what else a variable is a name: `pool = self.pools[label]`."""
    found: dict[str, set[str]] = {}
    for number, (load, store) in enumerate(pairwise(steps)):
        if store.opname.startswith("STORE_FAST") and (is_of_items(load) or load.opname in _NAMES):
            names = _names_at(start_of(load), steps[: number + 1], found)
            found.setdefault(_variables_of(store)[0], set()).update(names)
    return found


def _names_at(start: Start, steps: list[Instruction], variables: dict[str, set[str]]) -> set[str]:
    """The name of what is loaded from this place in the text on, as the last of `a.b.c`; none of a result."""
    loads = [step for step in steps if start_of(step) == start]
    if start == (None, None) or any(step.opname.startswith("CALL") for step in loads):
        return set()
    named = [step for step in loads if step.opname in _NAMES]
    if named:
        return {str(named[-1].argval)}
    # Where Python has made one step of two (since 3.13), that is where the first of them is in the text.
    loads = [step for step in loads if "LOAD_FAST" in step.opname]
    loads += [step for step in steps[-_NEAR:] if type(step.argval) is tuple and "LOAD_FAST" in step.opname]
    return {name for step in loads for one in _variables_of(step) for name in variables.get(one, ())}


def _variables_of(step: Instruction) -> tuple[str, ...]:
    return step.argval if type(step.argval) is tuple else (str(step.argval),)
