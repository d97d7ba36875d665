"""How to look at code: functions with all that they read, modules, and settings of the process."""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

import torch

from rekindle.core.analysis.bytecode import (
    REACHES_ANYTHING,
    all_names,
    global_names,
    imported_names,
    may_reach_anything,
)
from rekindle.core.analysis.file_reads import code_reads_files, library_reads_files
from rekindle.core.analysis.held_changes import NAMES_OF_C_CODE
from rekindle.core.analysis.look_at_values import Handler
from rekindle.core.analysis.object_state import (
    IN_LIBRARY,
    NotProvenError,
    contents_of,
    is_installed_name,
    is_library,
    vars_of,
)

if TYPE_CHECKING:
    from rekindle.core.analysis.look import Look

# They make objects of classes that only their bytes name.
_UNPICKLING = frozenset({"_pickle", "cloudpickle", "dill", "joblib", "pickle"})

# Entries of a class that say nothing about what its code does.
NOT_OF_INTEREST = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__",
        "_abc_impl", "__orig_bases__", "__slotnames__", "__parameters__", "__qualname__",
        "__static_attributes__", "__firstlineno__", "__annotate__", "__annotate_func__",
        "__annotations_cache__",
    }
)  # fmt: skip

_BUILT_IN = vars(builtins)
_PYTHONS_OWN = {id(value): value for value in _BUILT_IN.values() if callable(value)}  # which cannot change
# How values are collated, by class.
COLLATES: dict[type | tuple[type, ...], Callable[..., object]] = (
    torch.utils.data._utils.collate.default_collate_fn_map
)
_parts = attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__")  # of a function
_NOTHING = object()  # is what a name stands for that nobody has defined


def _property(look: Look, value: property) -> None:
    for name in ("fget", "fset", "fdel"):
        look.one(vars_of(property)[name].__get__(value))


def _wrapped(look: Look, value: staticmethod[..., object] | classmethod[object, ..., object]) -> None:
    look.one(value.__func__)


def _cell(look: Look, value: types.CellType) -> None:
    contents = look.holding(contents_of, value)
    look.note(len(contents))
    for one in contents:
        look.read(one)


def _method(look: Look, value: types.MethodType) -> None:
    look.one(value.__func__)
    look.one(value.__self__)


def _builtin(look: Look, value: types.BuiltinFunctionType) -> None:
    owner = value.__self__
    if owner is None or type(owner) is types.ModuleType:
        look.by_identity(value)
        module = value.__module__ or getattr(owner, "__name__", None)
        _leave_out_reach(look, value.__name__, module)
        look.reads_files = look.reads_files or library_reads_files(module, value.__name__)
    else:
        look.note(value.__name__)
        look.one(owner)


def _function(look: Look, value: types.FunctionType) -> None:
    code, defaults, keyword_defaults, attributes = look.holding(_parts, value)
    look.by_identity(code)
    if not look.follows_code:
        return
    if value.__closure__:
        variables = zip(value.__code__.co_freevars, value.__closure__, strict=True)
        look.many([cell for name, cell in variables if look.wants(name)])
    look.one(defaults)
    look.one(keyword_defaults)
    look.one(attributes)
    reached = value.__globals__
    module = dict.get(reached, "__name__")
    if type(module) is str and IN_LIBRARY[module]:
        _leave_out_reach(look, value.__name__, module)
        look.reads_files = look.reads_files or library_reads_files(module, value.__name__)
        return
    names, every = global_names(value.__code__), all_names(value.__code__)
    if may_reach_anything(value.__code__):
        look.leave_out(f"{value.__qualname__} may read any global")
    if not NAMES_OF_C_CODE.isdisjoint(every) and ("cv2" in every or every & NAMES_OF_C_CODE != {"randn"}):
        look.leave_out(f"{value.__qualname__} may draw from a generator of C code")
    imported = imported_names(value.__code__)
    for name in imported:
        if not _is_loaded(name, reached) and not is_installed_name(name):
            look.leave_out(f"{value.__qualname__} imports {name}, which is not loaded yet")
    everything = look.holding(_reached, (reached, sorted(filter(look.wants, names))))
    look.reads_files = look.reads_files or code_reads_files(every, imported, everything)
    pythons_own = _PYTHONS_OWN.keys() & {
        id(_BUILT_IN.get(name)) for name in names if not dict.__contains__(reached, name)
    }
    for found in everything:
        if found is not _NOTHING and id(found) not in pythons_own:
            look.read(found)


def _leave_out_reach(look: Look, name: str, module: object) -> None:
    """Note a function of a library by which any global may be read, whatever the script calls it."""
    if name in REACHES_ANYTHING:
        look.leave_out(f"{module}.{name} may read any global")
    elif module in _UNPICKLING:
        look.leave_out(f"{module}.{name} may make objects of any class")


def _is_loaded(name: str, reached: dict[str, object]) -> bool:
    package = dict.get(reached, "__package__")
    return name in sys.modules or f"{package}.{name}" in sys.modules


def _reached(names: tuple[dict[str, object], list[str]]) -> list[object]:
    """What names of globals and modules stand for."""
    reached, found = names[0], []
    for name in names[1]:
        value = dict.get(reached, name, _NOTHING)
        if value is _NOTHING:
            value = dict.get(_BUILT_IN, name, _NOTHING)  # to which a script may add names of its own
        found.append(value)
        if value is _NOTHING:
            package = dict.get(reached, "__package__")
            found += [sys.modules.get(module, _NOTHING) for module in (name, f"{package}.{name}")]
    return found


def _module(look: Look, value: types.ModuleType) -> None:
    entries = types.ModuleType.__getattribute__(value, "__dict__")
    look.by_identity(value)
    name = dict.get(entries, "__name__")
    if name in _UNPICKLING:
        look.leave_out(f"{name} may make objects of any class")
    if is_library(name) or not look.follows_code:
        return
    if name == "__main__":
        raise NotProvenError("all globals of the script are within reach")
    everything = iter(look.holding(_entries, entries))
    for key, found in zip(everything, everything, strict=True):
        if look.wants(key):
            look.one(key)
            look.read(found)


def _entries(module: dict[object, object]) -> list[object]:
    """The names in a module, apart from Python's own, each followed by what it means."""
    return [part for entry in dict.items(module) if not _is_pythons(entry[0]) for part in entry]


def _is_pythons(name: object) -> bool:
    return type(name) is str and name.startswith("__")


def switches(_: None) -> list[object]:
    """Settings of the process and of libraries that scripts do change."""
    found: list[object] = [*os.environ._data.items()]  # type: ignore[attr-defined]
    try:
        found.append(os.getcwd())
    except OSError:  # The folder is gone.
        found.append(None)
    found += [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    return found + library_settings()


def library_settings() -> list[object]:
    """Settings of libraries by which the same code gives other samples, and which scripts do change."""
    found: list[object] = [repr(torch.get_default_dtype())]
    for module, name, default in (
        ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
        ("PIL.Image", "MAX_IMAGE_PIXELS", (1 << 30) // 12),
        ("torchvision", "_image_backend", "PIL"),
    ):
        loaded = sys.modules.get(module)
        found.append(repr(default if loaded is None else vars(loaded).get(name, default)))
    return found


CODE: dict[type, Handler] = {
    property: _property,
    staticmethod: _wrapped,
    classmethod: _wrapped,
    types.CellType: _cell,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.FunctionType: _function,
    types.ModuleType: _module,
}


def scripts_collates(table: dict[object, object]) -> list[object]:
    """The classes that a script has told torch how to collate, each followed by the function that does.

    What libraries put there is left out: workers have other functions of ours there than the main process.
    """
    return [part for entry in [*dict.items(table)] if not _is_of_a_library(entry[1]) for part in entry]


def _is_of_a_library(function: object) -> bool:
    module = function.__module__ if type(function) is types.FunctionType else None
    return type(module) is str and IN_LIBRARY[module]
