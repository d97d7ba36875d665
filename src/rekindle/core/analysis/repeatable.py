"""Whether it is proven that a dataset which is asked twice for a sample is none the wiser.

`self_changes` recognises what reads on; there are more ways to do so than anybody can list. Here it is the
other way round: what is held, each name in the code and each assignment must be known to leave all as it is,
or to be a memo: kept once, and the same the second time. Whatever is not known may read on.
"""

from __future__ import annotations

import builtins
import logging
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dis import Instruction
from functools import _lru_cache_wrapper
from itertools import chain, pairwise
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)

import numpy as np
import torch
from PIL.Image import Image

from rekindle.core.analysis.bytecode import (
    all_names,
    imported_names,
    is_of_items,
    on_line_of,
    steps_of,
    with_inner,
)
from rekindle.core.analysis.near_objects import MOST_OBJECTS, near_objects, read_of_modules
from rekindle.core.analysis.object_state import (
    GENERATORS,
    attributes_of,
    is_installed,
    is_library,
    mro_of,
    vars_of,
)
from rekindle.core.analysis.reached_functions import functions_among
from rekindle.core.analysis.self_changes import (
    CHANGE_ARGUMENT,
    CHANGING,
    CHANGING_FUNCTIONS,
    STORES_ITEM,
    may_read_on,
)
from rekindle.core.interrupts import is_interrupt

_CONTAINERS = frozenset({OrderedDict, deque, dict, frozenset, list, set, tuple, slice})
# A log may have lines twice.
_LOCKS_AND_LOGS = frozenset(
    {type(threading.Lock()), type(threading.RLock()), logging.Logger, logging.RootLogger}
)
_OF_LOGS = {"critical", "debug", "error", "exception", "info", "isEnabledFor", "log", "warning"}
_CODE = frozenset({FunctionType, MethodType, staticmethod, classmethod, property})
_MEMORY = frozenset({"_lru_cache_wrapper", "_lru_list_elem"})  # of functools, which returns the same again
# Of these, objects change only where code says so: by a method that is none of the names below.
_LIBRARIES = frozenset(
    {
        "PIL", "abc", "albumentations", "dataclasses", "datetime", "numpy", "pathlib", "re", "torch",
        "torchvision", "typing",
    }
)  # fmt: skip
_MODULES = frozenset({"PIL", "PIL.Image", "math", "numpy", "posixpath", "random", "struct", "time", "torch"})
_BUILTINS = frozenset(
    {
        "abs", "all", "any", "bool", "bytes", "dict", "divmod", "enumerate", "float", "frozenset", "hash",
        "int", "isinstance", "len", "list", "max", "min", "open", "range", "repr", "reversed", "round", "set",
        "slice", "sorted", "str", "sum", "super", "tuple", "zip",
    }
)  # fmt: skip
_CHANGE = (
    CHANGING
    | CHANGING_FUNCTIONS
    | CHANGE_ARGUMENT
    | {
        "fill_diagonal",
        "paste",
        "put_along_axis",
        "putalpha",
        "putdata",
        "putpalette",
        "putpixel",
        "thumbnail",
    }
)
_OF_VALUES = (str, bytes, int, float, tuple, frozenset, *GENERATORS, np.ndarray, torch.Tensor, Image)
# What a memo is asked by, and files that are opened once.
_OF_MEMOS = {"get", "items", "keys", "values", "setdefault", "seek", "read"}
_MAKE_LONGER = frozenset({"add", "append", "extend", "insert", "update"})
_Names = frozenset[str]
_module_of = type.__dict__["__module__"].__get__  # without asking the class or its metaclass


def _public(kind: object) -> set[str]:
    return {name for name in dir(kind) if not name.endswith("_") and not name.startswith("_")}


_METHODS = frozenset(set().union(*map(_public, _OF_VALUES)) - _CHANGE | _OF_MEMOS | _OF_LOGS | {"shuffle"})
_OF_CLASSES = {"__class__", "__getitem__", "__init__", "__len__", "__name__", "__qualname__"}
_HARMLESS = _METHODS | _BUILTINS | _OF_CLASSES


def is_repeatable(dataset: object) -> bool:
    """Whether a sample that is asked for again is the same, and changes no other; false if not proven."""
    try:
        near = [value for _, value in near_objects(dataset)]
        if len(near) >= MOST_OBJECTS or may_read_on(dataset):
            return False
        functions = [*functions_among(near)]
        names = _HARMLESS.union(*map(_names_in, near), *map(_names_of_modules, functions))
        if any(type(value) is deque for value in near):
            names -= _public(deque) - {"copy", "count", "index"}  # PIL's images have a `rotate` as well.
        codes = [code for one in functions for code in with_inner(one.__code__)]
        read = set[str]().union(*map(_loaded, codes))
        return all(map(_stays, near)) and all(_is_known(code, names, read) for code in codes)
    except Exception as error:  # An object like none before: nothing is proven.
        if is_interrupt(error):
            raise
        return False


def _stays(value: object) -> bool:
    """Whether an object changes only by code that is looked at."""
    kind = type(value)
    known = kind in _CONTAINERS or kind in _CODE or kind in _LOCKS_AND_LOGS
    if known or issubclass(kind, (*GENERATORS, ModuleType)):
        module = value.__module__ if kind is FunctionType else None
        return not is_library(module) or _is_of(module) or module == "functools"
    if issubclass(kind, type) or (_module_of(kind) == "functools" and kind.__name__ in _MEMORY):
        return True
    if kind in (BuiltinFunctionType, MethodWrapperType):
        return value.__name__ in _HARMLESS and value.__name__ not in _CHANGE  # type: ignore[attr-defined]
    return all(
        base is object
        or not is_library(vars_of(base).get("__module__"))
        or _is_of(vars_of(base)["__module__"])
        for base in mro_of(kind)
    )


def _is_of(module: object) -> bool:
    return type(module) is str and module.partition(".")[0] in _LIBRARIES


def _names_in(value: object) -> Iterable[str]:
    """The names of what an object or a class of a script has."""
    kind = type(value)
    if issubclass(kind, type):
        return () if is_library(_module_of(value)) else vars_of(value).keys()  # type: ignore[arg-type]
    if kind in _CODE or kind in _CONTAINERS or is_library(_module_of(kind)):
        return ()
    return [name for name, _ in attributes_of(value, kind) or ()]


def _names_of_modules(function: FunctionType) -> set[str]:
    """The names that a function may read of modules whose functions leave all as it is, and theirs."""
    found: set[str] = set()
    modules = {name: sys.modules.get(name) for name in imported_names(function.__code__)}
    # Those of the script are looked at by what is read of them.
    own = {id(module): read for module, read in read_of_modules(function) if not is_installed(module)}
    values = [
        (name, function.__globals__.get(name, modules.get(name, vars(builtins).get(name))))
        for name in all_names(function.__code__)
    ]
    for name, value in chain(values, *own.values()):
        kind = type(value)
        if id(value) in own:
            found.add(name)
        elif value is not None and kind is ModuleType and value.__name__ in _MODULES:  # type: ignore[attr-defined]
            found |= {name} | _public(value) - _CHANGE
        elif kind in _LOCKS_AND_LOGS:
            found.add(name)
        elif kind in (FunctionType, _lru_cache_wrapper) or issubclass(kind, type):
            if not is_library(value.__module__):  # Others are known by their names, or not at all.
                found.add(name)
        elif kind in (int, float, str, bool) or (value is None and name in function.__globals__):
            found.add(name)
    return found


def _loaded(code: CodeType) -> set[str]:
    """The attributes that code reads, other than to see whether they are None."""
    return {
        str(step.argval)
        for step, after in pairwise(steps_of(code))
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and not after.opname.endswith("NONE")
    }


def _is_known(code: CodeType, names: _Names, read: set[str]) -> bool:
    steps = steps_of(code)
    new = {
        str(b.argval)
        for a, b in pairwise(steps)
        if a.opname.startswith("BUILD_") and b.opname == "STORE_FAST"
    }
    used = {step.argval for step in steps if step.opname == "STORE_ATTR"}
    for before, step in pairwise(steps):
        if step.argval in _MAKE_LONGER and before.opname.startswith("LOAD_FAST") and before.argval in new:
            used.add(step.argval)
    if not names.issuperset(name for name in code.co_names if name not in used):
        return False
    own = {"self"} & {*code.co_varnames[:1]}
    parameters = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    held = parameters | {
        str(b.argval) for a, b in pairwise(steps) if _is_taken(a) and b.opname == "STORE_FAST"
    }
    asked = {
        str(a.argval) for a, b in pairwise(steps) if a.opname == "LOAD_ATTR" and b.opname.endswith("NONE")
    }
    asks = any(step.opname == "CONTAINS_OP" for step in steps) or "get" in code.co_names
    for number, step in enumerate(steps):
        if step.opname == "STORE_ATTR":
            target = steps[number - 1]
            is_own = target.opname.startswith("LOAD_FAST") and target.argval in own
            if not (is_own and (step.argval in asked or step.argval not in read)):
                return False
        elif step.opname in STORES_ITEM and not (asks and steps[number - 1].argval in parameters):
            if any(one.opname == "LOAD_ATTR" or one.argval in held for one in on_line_of(step, steps)):
                return False
        elif step.opname == "BINARY_OP" and step.argrepr.endswith("="):
            after = steps[number + 1]
            if after.opname != "STORE_FAST" or after.argval in held:
                return False
        elif step.opname.startswith("CALL") and step.arg is not None and step.arg > 2 and _has_ufunc(code):
            return False  # The third argument may be where the result goes.
        elif step.opname in ("STORE_GLOBAL", "STORE_DEREF", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR"):
            return False
    return True


def _is_taken(step: Instruction) -> bool:
    """Whether a variable is next given what is not the function's own."""
    return step.opname in ("LOAD_ATTR", "FOR_ITER", "LOAD_GLOBAL", "LOAD_DEREF") or is_of_items(step)


def _has_ufunc(code: CodeType) -> bool:
    return any(isinstance(vars(np).get(name), np.ufunc) for name in code.co_names)
