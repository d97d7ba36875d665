"""Whether asking a dataset for a sample may change what it gives next, as far as the code of a script shows.

A reader that only goes forward, a counter, a pool that samples are taken from: who asks such a dataset twice
for a sample loses one. Code is looked at, never run: what it stores, and the methods that it calls, by name.
"""

from __future__ import annotations

import dis
from types import CodeType, FunctionType

from rekindle.core.held_generators import near_objects
from rekindle.core.object_state import all_names, is_library

_STORES = frozenset(
    {
        "STORE_ATTR",
        "DELETE_ATTR",
        "STORE_SUBSCR",
        "DELETE_SUBSCR",
        "STORE_SLICE",
        "STORE_GLOBAL",
        "DELETE_GLOBAL",
    }
)
# Functions and methods of libraries that change what they are called on.
_CHANGING = frozenset(
    {
        "__next__", "__setattr__", "acquire", "add", "advance", "append", "appendleft", "clear", "extend",
        "fetchmany", "fetchone", "get_nowait", "getline", "grab", "insert", "next", "pop", "popitem",
        "popleft", "read", "readinto", "readline", "readlines", "recv", "recv_bytes", "recvfrom", "remove",
        "reset", "retrieve", "seek", "send", "setattr", "setdefault", "shuffle", "step", "update", "write",
    }
)  # fmt: skip
# Methods that are called without being named.
_OPERATORS = frozenset(
    {
        "__call__",
        "__contains__",
        "__enter__",
        "__exit__",
        "__getattr__",
        "__getattribute__",
        "__getitem__",
        "__getitems__",
        "__iter__",
        "__len__",
        "__next__",
        "forward",
    }
)


def may_change_itself(dataset: object) -> bool:
    """Whether code of a script's that a dataset or a function runs may change itself, or what it gets.

    Libraries' own code is not looked into.
    """
    methods: list[FunctionType] = []
    called: list[FunctionType] = []
    for _, value in near_objects(dataset):
        if type(value) is FunctionType and not is_library(value.__module__):
            (methods if _is_method(value) else called).append(value)
    names = set(_OPERATORS)
    while called or methods:
        reached = [method for method in methods if method.__name__ in names]
        methods = [method for method in methods if method.__name__ not in names]
        called += reached
        if not called:
            return False
        for function in called:
            if _changes_something(function.__code__):
                return True
            names |= all_names(function.__code__)
        called = []
    return False


def _is_method(function: FunctionType) -> bool:
    parent = function.__qualname__.rpartition(".")[0]
    return bool(parent) and not parent.endswith("<locals>")


def _changes_something(code: CodeType) -> bool:
    if not _CHANGING.isdisjoint(code.co_names):
        return True
    for step in dis.get_instructions(code):
        if step.opname in _STORES or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
            return True
    return any(_changes_something(one) for one in code.co_consts if type(one) is CodeType)
