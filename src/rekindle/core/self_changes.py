"""Whether code of a script may change what it gives next, or what it is given, as far as its bytecode shows.

A reader that only goes forward, a counter, a pool that samples are taken from: who asks such a dataset twice
for a sample loses one. And what a function has done to its arguments in place, it does twice if it is called
twice. Code is looked at, never run, and that of libraries not at all.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from dis import Instruction
from types import CodeType, FunctionType, ModuleType

from rekindle.core.held_generators import near_objects
from rekindle.core.object_state import all_names, is_library

# Functions and methods of libraries that change what they are called on.
_CHANGING = frozenset(
    {
        "__next__", "__setattr__", "acquire", "add", "advance", "append", "appendleft", "clear", "extend",
        "fetchmany", "fetchone", "get_nowait", "grab", "insert", "pop", "popitem", "popleft", "read",
        "readinto", "readline", "readlines", "recv", "recv_bytes", "recvfrom", "remove", "reset", "retrieve",
        "seek", "send", "setdefault", "step", "update", "write",
    }
)  # fmt: skip
_CHANGING_FUNCTIONS = frozenset({"next", "setattr", "delattr"})
_STORES_ITEM = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_STORES = _STORES_ITEM | {"STORE_ATTR", "DELETE_ATTR"}
_NOTHING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "NOT_TAKEN"})
# Methods that are called without being named.
_OPERATORS = frozenset(
    {
        "__call__", "__contains__", "__enter__", "__exit__", "__getattr__", "__getattribute__", "__getitem__",
        "__getitems__", "__iter__", "__len__", "__next__", "forward",
    }
)  # fmt: skip
_Globals = dict[str, object]


def may_change_itself(dataset: object) -> bool:
    """Whether a dataset that is asked for a sample may change itself, or anything that is not the sample."""
    return any(_changes_more_than_variables(one.__code__, one.__globals__) for one in _reached(dataset))


def may_change_anything(function: object) -> bool:
    """Whether a function that is called may change anything: itself, its arguments."""
    return any(_changes_anything(one.__code__) for one in _reached(function))


def _reached(root: object) -> Iterator[FunctionType]:
    """Functions of a script that an object may run: those that it holds, and methods that they name."""
    called: list[FunctionType] = []
    methods: list[FunctionType] = []
    for _, value in near_objects(root):
        if type(value) is FunctionType and not is_library(value.__module__):
            (methods if _is_method(value) else called).append(value)
    names = set(_OPERATORS)
    while True:
        called += [method for method in methods if method.__name__ in names]
        methods = [method for method in methods if method.__name__ not in names]
        if not called:
            return
        for function in called:
            names |= all_names(function.__code__)
        yield from called
        called = []


def _is_method(function: FunctionType) -> bool:
    parent = function.__qualname__.rpartition(".")[0]
    return bool(parent) and not parent.endswith("<locals>")


def _within(code: CodeType, changes: Callable[[CodeType], bool]) -> bool:
    return any(changes(one) for one in code.co_consts if type(one) is CodeType)


def _changes_anything(code: CodeType) -> bool:
    if not (_CHANGING | _CHANGING_FUNCTIONS).isdisjoint(code.co_names):
        return True
    if any(step.opname in _STORES or _stores_elsewhere(step, code) for step in dis.get_instructions(code)):
        return True
    return _within(code, _changes_anything)


def _changes_more_than_variables(code: CodeType, names: _Globals) -> bool:
    """The same, but for what is done to an object in a variable, which is taken for the function's own."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]
    for number, step in enumerate(steps):
        if _stores_elsewhere(step, code):
            return True
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and not _is_variable(steps[number - 1], code):
            return True
        if step.opname in _STORES_ITEM and _is_in_an_attribute(step, steps, code):
            return True
        if step.argval in _CHANGING_FUNCTIONS and step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            return True
        is_method = step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval in _CHANGING
        if is_method and _is_held(steps, number - 1, code, names):
            return True
    return _within(code, lambda one: _changes_more_than_variables(one, names))


def _stores_elsewhere(step: Instruction, code: CodeType) -> bool:
    is_outer = step.opname == "STORE_DEREF" and step.argval in code.co_freevars
    return is_outer or step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")


def _is_variable(step: Instruction, code: CodeType) -> bool:
    """Whether an object was loaded from a variable other than the first argument, `self` mostly."""
    is_own = code.co_argcount > 0 and step.argval == code.co_varnames[0]
    return step.opname.startswith("LOAD_FAST") and not is_own


def _is_in_an_attribute(step: Instruction, steps: list[Instruction], code: CodeType) -> bool:
    """Whether an item is stored in what is no variable: `self.seen[index] = …` has one start with `self`."""
    start = step.positions and (step.positions.lineno, step.positions.col_offset)
    loads = [
        one
        for one in steps
        if one.opname.startswith("LOAD_")
        and one.positions is not None
        and (one.positions.lineno, one.positions.col_offset) == start
    ]
    return any(not one.opname.startswith("LOAD_FAST") or not _is_variable(one, code) for one in loads)


def _is_held(steps: list[Instruction], number: int, code: CodeType, names: _Globals) -> bool:
    """Whether the object whose method is loaded next is no variable, no result of a call, and no module."""
    if not steps[number].opname.startswith("LOAD_") or _is_variable(steps[number], code):
        return False
    while number > 0 and steps[number].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        number -= 1
    root = steps[number]
    return not (root.opname == "LOAD_GLOBAL" and type(names.get(str(root.argval))) is ModuleType)
