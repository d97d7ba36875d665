"""Whether code of a script may change what it gives next, or what it is given, as far as its bytecode shows.

A reader that only goes forward, a counter, a pool that samples are taken from: who asks such a dataset twice
for a sample loses one. What is kept for later, a file opened at the first sample say, is the same the second
time. And what a function has done to its arguments in place, it does twice if it is called twice. Code is
looked at, never run, and that of libraries not at all.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.queues
import os
import queue
from collections.abc import Iterator
from dis import Instruction
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

from rekindle.core.analysis.bytecode import (
    is_of_items,
    loads_at,
    on_line_of,
    start_of,
    steps_of,
    with_inner,
)
from rekindle.core.analysis.held_changes import IN_PLACE, changes_what_is_held
from rekindle.core.analysis.made_generators import makers_among
from rekindle.core.analysis.near_objects import near_objects
from rekindle.core.analysis.object_state import is_library, vars_of
from rekindle.core.analysis.reached_functions import functions_among

# Functions and methods of libraries that change what they are called on.
CHANGING = frozenset(
    {
        "__next__", "__setattr__", "acquire", "add", "advance", "append", "appendleft", "clear", "extend",
        "fetchmany", "fetchone", "get_nowait", "grab", "insert", "pop", "popitem", "popleft", "read",
        "readinto", "readline", "readlines", "recv", "recv_bytes", "recvfrom", "remove", "reset", "retrieve",
        "seek", "send", "setdefault", "step", "update", "write",
    }
)  # fmt: skip
CHANGING_FUNCTIONS = frozenset({"next", "setattr", "delattr", "heappop", "heappushpop", "heapreplace"})
_QUEUES = (queue.Queue, queue.SimpleQueue, multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue)
_SAME_AGAIN = frozenset({"add", "seek", "setdefault"})  # change something, but the second time nothing
# In code that seeks, they start where they started.
_READING = frozenset({"read", "readinto", "readline", "readlines"})
# Functions of modules that change what they are given: `random.shuffle(self.pool)`, `np.add.at(self.n, …)`.
CHANGE_ARGUMENT = frozenset({"at", "copyto", "place", "put", "putmask", "shuffle"})
STORES_ITEM = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_STORES = STORES_ITEM | {"STORE_ATTR", "DELETE_ATTR"}
_WITH_MEMORY = (functools._lru_cache_wrapper, functools.cached_property)
_Globals = dict[str, object]


def may_read_on(dataset: object, *, inherited: bool = True) -> bool:
    """Whether a dataset that is asked for a sample twice may give another, or change others by it.

    What functions remember is not `inherited` by processes that are not forked: they make it themselves.
    """
    near = [value for _, value in near_objects(dataset)]
    functions = [*functions_among(near)]
    seeking = [one.__code__.co_names for one in functions if "seek" in one.__code__.co_names]
    seeks = bool(seeking) and all(map(_seeks_first, seeking))
    # By the type: `isinstance` asks the object for its `__class__`, which may run any code.
    if not seeks and any(issubclass(type(value), (Iterator, *_QUEUES)) for value in near):
        return True
    harmless = _SAME_AGAIN | _READING if seeks else _SAME_AGAIN
    for function in functions:
        codes = with_inner(function.__code__)
        if any(_reads_on(code, function.__globals__, CHANGING - harmless) for code in codes):
            return True
    if changes_what_is_held(near, functions, CHANGING - harmless):
        return True
    return may_keep_a_generator(near, functions, inherited)


def _seeks_first(names: tuple[str, ...]) -> bool:
    """Whether code seeks before it reads, by its names in the order of their use; else it starts over."""
    return _READING.isdisjoint(names[: names.index("seek")])


def may_keep_a_generator(near: list[object], functions: list[FunctionType], inherited: bool) -> bool:
    """Whether a function may make a generator for later samples: what those draw follows from earlier ones.

    One that is held from the beginning is seeded for each sample, and a function's own is gone behind it.
    """
    remembers = any(_keeps_results(one) and not (inherited and _has_its_only_result(one)) for one in near)
    keeping = functions if remembers else [one for one in functions if _keeps_something(one)]
    if not keeping:
        return False
    makers = makers_among(near)
    return any(makers(one) for one in keeping)


def _keeps_something(function: FunctionType) -> bool:
    """Whether a function stores anything that is still there when it returns."""
    return any(map(_stores_something, with_inner(function.__code__)))


def _stores_something(code: CodeType) -> bool:
    steps = steps_of(code)
    held = _held_variables(code)
    return any(
        step.opname == "STORE_ATTR"
        or step.argval == "setdefault"
        or (step.opname in STORES_ITEM and _is_in_an_attribute(step, steps, held))
        for step in steps
    )


class Kept(NamedTuple):
    """Where a function keeps something."""

    own: bool  # in what it is a method of
    elsewhere: bool  # in other objects, which may be such that it was given
    outside: bool  # in other objects that it was not given
    items: bool  # in items of what it was not given
    names: frozenset[str]  # in globals, or in objects and items of these
    ways: frozenset[str]  # the names by which it reaches these; "" for a variable, which may hold anything


def kept_by(function: FunctionType) -> Kept:
    """Where a function may keep something that can be read later."""
    own = elsewhere = outside = items = False
    names, ways = set[str](), set[str]()
    for code in with_inner(function.__code__):
        steps, first, held = steps_of(code), _first_parameter(code), _held_variables(code)
        for number, step in enumerate(steps):
            if step.opname == "STORE_ATTR":
                target = _target(steps[:number])
                is_own = target.opname.startswith("LOAD_FAST") and target.argval in first
                own, elsewhere = own or is_own, elsewhere or not is_own
                outside = outside or not (is_own or _is_variable(target, held))
                names |= _global_in(target)
                if not is_own:
                    ways |= {str(target.argval) if target.opname == "LOAD_ATTR" else ""}
            elif step.opname in STORES_ITEM and _is_in_an_attribute(step, steps, held):
                items = True
                loads = loads_at(start_of(step), steps)
                names |= _global_in(*loads)
                ways |= {str(one.argval) for one in loads if one.opname == "LOAD_ATTR"} or {""}
            elif step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval in CHANGING:
                if _is_held(steps, number - 1, held, function.__globals__):
                    items = True
                    names |= _global_in(_root(steps, number))
                    before = steps[number - 1]
                    ways |= {str(before.argval) if before.opname == "LOAD_ATTR" else ""}
            elif step.opname == "STORE_GLOBAL":
                names.add(str(step.argval))
    return Kept(own, elsewhere, outside, items, frozenset(names), frozenset(ways))


def _target(steps: list[Instruction]) -> Instruction:
    """What loads the object whose attribute is stored next: of `self.calls += 1`, it was copied before."""
    number = len(steps) - 1
    if steps[number].opname == "SWAP":
        copied = (at for at in range(number, 0, -1) if steps[at].opname == "COPY")
        number = next(copied, number + 1) - 1
    return steps[number]


def _global_in(*steps: Instruction) -> set[str]:
    """The global that is loaded here, if one is."""
    return {str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def may_keep_draws(*roots: object) -> bool:
    """Whether what these draw for one sample may decide about others: they keep something."""
    near = [value for _, value in near_objects(*roots)]
    if any(map(_keeps_results, near)):
        return True
    codes = (code for one in functions_among(near) for code in with_inner(one.__code__))
    return any(map(_changes_anything, codes))


def _keeps_results(value: object) -> bool:
    """Whether this is a function with a memory, or a class of a script that has one."""
    if issubclass(type(value), _WITH_MEMORY):
        return True
    members = vars_of(value) if issubclass(type(value), type) else {}  # type: ignore[arg-type]
    is_own = not is_library(members.get("__module__"))
    return is_own and any(issubclass(type(one), _WITH_MEMORY) for one in [*members.values()])


def _has_its_only_result(value: object) -> bool:
    """Whether this is a function without arguments that remembers what it returned."""
    if type(value) is not functools._lru_cache_wrapper or not value.cache_info().currsize:
        return False
    function = value.__wrapped__
    if type(function) is not FunctionType:
        return False
    code = function.__code__
    takes_more = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return not (code.co_argcount or code.co_kwonlyargcount or takes_more)


def _changes_anything(code: CodeType) -> bool:
    known = CHANGING | CHANGING_FUNCTIONS | CHANGE_ARGUMENT
    if any(one in known or IN_PLACE(one) for one in code.co_names):
        return True
    return any(step.opname in _STORES or _stores_elsewhere(step, code) for step in steps_of(code))


def _reads_on(code: CodeType, names: _Globals, changing: frozenset[str]) -> bool:
    """Whether code changes what it reads; an object in a variable is taken for the function's own."""
    steps, own, held = steps_of(code), _first_parameter(code), _held_variables(code)
    if any(type(one) is tuple and "out" in one for one in code.co_consts):  # an argument: `np.add(…, out=…)`
        return True
    for number, step in enumerate(steps):
        if _stores_elsewhere(step, code) or step.opname == "DELETE_ATTR":
            return True
        if step.opname == "STORE_ATTR" and _is_read(step.argval, steps[:number]):
            return True
        if (
            step.opname in STORES_ITEM
            and _is_in_an_attribute(step, steps, held)
            and _is_update(step, steps, held - own)
        ):
            return True
        is_attribute = step.opname in ("LOAD_METHOD", "LOAD_ATTR")
        if step.argval in CHANGING_FUNCTIONS and (
            is_attribute or step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        ):
            return True
        is_changing = is_attribute and (step.argval in changing or IN_PLACE(step.argval))
        if is_changing and _is_held(steps, number - 1, held, names):
            return True
        if is_attribute and step.argval in CHANGE_ARGUMENT and _is_given_held(steps[number + 1 :], held):
            # Not `self.table.at[…]`.
            is_function = _root(steps, number).opname in ("LOAD_GLOBAL", "LOAD_NAME")
            if is_function or step.argval == "shuffle":
                return True
    return False


def _first_parameter(code: CodeType) -> frozenset[str]:
    """The name of it, `self` as a rule; empty if there is none."""
    return frozenset(code.co_varnames[: min(code.co_argcount, 1)])


def _held_variables(code: CodeType) -> frozenset[str]:
    """Variables of what is not the function's own: `self`, `pool = self.pool`, `pool = self.pools[label]`."""
    steps, first = steps_of(code), _first_parameter(code)
    found = {*first}
    for number, (load, store) in enumerate(pairwise(steps)):
        if store.opname != "STORE_FAST":
            continue
        if load.opname == "LOAD_ATTR" or (is_of_items(load) and _starts_with(load, steps[:number], first)):
            found.add(str(store.argval))
    return frozenset(found)


def _starts_with(step: Instruction, steps: list[Instruction], own: frozenset[str]) -> bool:
    """Whether what is made here begins with an attribute of `self`."""
    return any(
        load.opname.startswith("LOAD_FAST")
        and load.argval in own
        and start_of(load) == start_of(step)
        and after.opname == "LOAD_ATTR"
        for load, after in pairwise(steps)
    )


def _is_given_held(steps: list[Instruction], held: frozenset[str]) -> bool:
    """Whether the first argument, which is loaded next, is no variable of the function's own."""
    number = 0
    while number + 1 < len(steps) and steps[number + 1].opname == "LOAD_ATTR":
        number += 1
    root = steps[0] if steps else None
    return root is not None and root.opname.startswith("LOAD_") and (number > 0 or root.argval in held)


def _is_read(attribute: object, steps: list[Instruction]) -> bool:
    """Whether an attribute is read in these steps, other than to see whether it is None."""
    return any(
        step.opname == "LOAD_ATTR" and step.argval == attribute and not after.opname.endswith("NONE")
        for step, after in pairwise([*steps, steps[-1]])
    )


def _is_update(step: Instruction, steps: list[Instruction], held: frozenset[str]) -> bool:
    """Whether what is stored there is made of what was there, as far as the line shows."""
    if step.opname == "DELETE_SUBSCR":
        return True
    line = on_line_of(step, steps)
    loaded = [one.argval for one in line if one.opname == "LOAD_ATTR"]
    variables = [one.argval for one in line if one.opname.startswith("LOAD_FAST") and one.argval in held]
    key = steps[steps.index(step) - 1].argval
    if len(variables) > len({*variables}) and sum(one.argval == key for one in line) > 1:
        return True  # `seen["calls"] = seen["calls"] + 1`; not `record["image"] = read(record["path"])`
    return len(loaded) > len({*loaded}) or any(
        one.opname == "BINARY_OP" and one.argrepr.endswith("=") for one in line
    )


def _stores_elsewhere(step: Instruction, code: CodeType) -> bool:
    is_outer = step.opname == "STORE_DEREF" and step.argval in code.co_freevars
    return is_outer or step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")


def _is_variable(step: Instruction, held: frozenset[str]) -> bool:
    """Whether an object was loaded from a variable of the function's own."""
    return step.opname.startswith("LOAD_FAST") and step.argval not in held


def _is_in_an_attribute(step: Instruction, steps: list[Instruction], held: frozenset[str]) -> bool:
    """Whether an item is stored in what is no variable: `self.seen[index] = …` has one start with `self`."""
    return any(not _is_variable(one, held) for one in loads_at(start_of(step), steps))


def _is_held(steps: list[Instruction], number: int, held: frozenset[str], names: _Globals) -> bool:
    """Whether the object whose method is loaded next is no variable, no result of a call, and no module."""
    if not steps[number].opname.startswith("LOAD_") or _is_variable(steps[number], held):
        return False
    root = _root(steps, number)
    module = names.get(str(root.argval)) if root.opname == "LOAD_GLOBAL" else None
    return type(module) is not ModuleType or module is os


def _root(steps: list[Instruction], number: int) -> Instruction:
    """What `a.b.c`, which is loaded here, begins with."""
    while number > 0 and steps[number].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        number -= 1
    return steps[number]
