"""How to look at code: functions with all that they read, classes, modules, and settings of the process."""

from __future__ import annotations

import builtins
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from rekindle.core.look_at_values import ITEM, Handler
from rekindle.core.object_state import (
    NotProvenError,
    all_names,
    global_names,
    is_heap_type,
    is_library,
    mro_of,
    vars_of,
)

if TYPE_CHECKING:
    from rekindle.core.changes import Look

OBJECT = 2e-6  # seconds, about, to look at an object
# Entries of a class that say nothing about what its code does.
_NOT_OF_INTEREST = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__",
        "_abc_impl", "__orig_bases__", "__slotnames__", "__parameters__", "__qualname__",
        "__static_attributes__", "__firstlineno__", "__annotate__", "__annotate_func__",
        "__annotations_cache__",
    }
)  # fmt: skip
# A function that calls one of these may read any global.
_READS_ANYTHING = frozenset(
    {
        "globals", "eval", "exec", "__import__", "import_module", "modules", "vars", "locals", "getline",
        "getlines",
    }
)  # fmt: skip
# One that calls one of these, or a method of that name, may read a file, which is not looked at.
_READS_FILES = frozenset(
    {
        "open", "fdopen", "memmap", "load", "loadtxt", "genfromtxt", "fromfile", "open_memmap", "read_text",
        "read_bytes", "imread", "read_image", "read_file", "read_csv", "read_parquet", "decode_image", "File",
        "cursor", "execute",
    }
)  # fmt: skip


def _property(look: Look, value: Any) -> None:
    for name in ("fget", "fset", "fdel"):
        look.one(vars_of(property)[name].__get__(value))


def _wrapped(look: Look, value: Any) -> None:
    look.one(value.__func__)


def _cell(look: Look, value: types.CellType) -> None:
    try:
        contents = value.cell_contents
    except ValueError:  # A variable that has no value yet.
        return
    look.one(contents)


def _method(look: Look, value: types.MethodType) -> None:
    look.one(value.__func__)
    look.one(value.__self__)


def _builtin(look: Look, value: types.BuiltinFunctionType) -> None:
    owner = value.__self__
    if owner is None or type(owner) is types.ModuleType or type(owner) is type:
        look.by_identity(value)
    else:
        look.note(value.__name__)
        look.one(owner)


def _function(look: Look, value: types.FunctionType) -> None:
    code = value.__code__
    look.by_identity(code)
    if not look.follows_code:
        return
    look.many(value.__closure__ or ())
    look.one(value.__defaults__)
    look.one(value.__kwdefaults__)
    look.one(value.__dict__)
    reached = value.__globals__
    if is_library(dict.get(reached, "__name__")):
        return
    names, every = global_names(code), all_names(code)
    look.reads_files = look.reads_files or bool(every & _READS_FILES)
    if every & _READS_ANYTHING:
        look.leave_out(f"{value.__qualname__} may read any global")
    package = dict.get(reached, "__package__")
    for name in sorted(names):
        if name in reached:
            found = reached[name]
            look.one(found)
            continue
        if name in vars(builtins):
            continue
        for module in (name, f"{package}.{name}"):
            if module in sys.modules:
                look.one(sys.modules[module])


def look_at_class(look: Look, kind: type) -> None:
    """A class and its bases: of libraries which entries there are, of others what these do."""
    if look.was_seen(-id(kind)):  # `id(kind)` is for what it defines itself, without its bases.
        return
    look.by_identity(kind)
    if not look.follows_code:
        return
    for base in mro_of(kind)[:-1]:
        entries = vars_of(base)
        if is_library(entries.get("__module__")) or not is_heap_type(base):
            values = [entry for name, entry in entries.items() if name not in _NOT_OF_INTEREST]
            look.spend(ITEM * len(values))
            look.keep(values)
            look.note([*map(id, values)])
            continue
        if look.was_seen(id(base)):
            continue
        look.spend(OBJECT)
        for name, entry in [*entries.items()]:
            if name not in _NOT_OF_INTEREST:
                look.note(name)
                look.one(entry)
    if type(kind) is not type:
        look_at_class(look, type(kind))


def _module(look: Look, value: types.ModuleType) -> None:
    entries = types.ModuleType.__getattribute__(value, "__dict__")
    look.by_identity(value)
    name = dict.get(entries, "__name__")
    if is_library(name) or not look.follows_code:
        return
    if name == "__main__":
        raise NotProvenError("all globals of the script are within reach")
    for name, entry in [*dict.items(entries)]:
        if not (type(name) is str and name.startswith("__")):
            look.note(name)
            look.one(entry)


def look_at_switches(look: Look) -> None:
    """Settings of the process and of libraries that scripts do change."""
    look.note([*os.environ._data.items()])  # type: ignore[attr-defined]
    try:
        look.note(os.getcwd())
    except OSError:  # The folder is gone.
        look.note(None)
    look.note(repr(torch.get_default_dtype()))
    for module, name, default in (
        ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
        ("PIL.Image", "MAX_IMAGE_PIXELS", (1 << 30) // 12),
        ("torchvision", "_image_backend", "PIL"),
    ):
        loaded = sys.modules.get(module)
        look.note(repr(default if loaded is None else vars(loaded).get(name, default)))
    collates = torch.utils.data._utils.collate.default_collate_fn_map
    for kind, function in [*collates.items()]:
        if not (type(function) is types.FunctionType and is_library(function.__module__)):
            look.many([kind, function])


CODE: dict[type, Handler] = {
    property: _property,
    staticmethod: _wrapped,
    classmethod: _wrapped,
    types.CellType: _cell,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.FunctionType: _function,
    types.ModuleType: _module,
    type: look_at_class,
}
