"""What an object consists of, found without running any code of its class.

Properties, `__getattr__`, `__class__`, `__eq__` and the like are all the user's code, so nothing here looks
an attribute up on the object: only in the dictionaries of its class and its own.
"""

from __future__ import annotations

import os
import random
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from rekindle.core.interrupts import is_interrupt

Getter: TypeAlias = Callable[[object], Any]  # of an attribute, from an object that has it
_POINTER = 8  # bytes
# The class and its bases, in the order in which attributes are looked up; and what a class itself defines.
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
vars_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_base_of: Callable[[type], type] = type.__dict__["__base__"].__get__
_OWN = type.__getattribute__  # that of a metaclass may be the user's
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE

# Packages whose own modules and classes are taken not to change between two epochs.
LIBRARIES = frozenset(sys.stdlib_module_names) - {"__main__"} | {
    "PIL", "albumentations", "cv2", "datasets", "kornia", "lightning", "numba", "numpy", "pandas", "pyarrow",
    "pytest", "pytorch_lightning", "rekindle", "scipy", "skimage", "timm", "tokenizers", "torch",
    "torchaudio", "torchvision", "tqdm", "transformers", "xxhash",
}  # fmt: skip

WITHOUT_PARTS = (
    str, bytes, bytearray, int, float, complex, bool, type(None), np.ndarray, np.generic, np.dtype, range,
    torch.Tensor, torch.dtype, torch.device, types.ModuleType,
)  # fmt: skip
GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand, torch.default_generator)
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)


class NotProvenError(Exception):
    """Something that cannot be looked at, or not within the budget."""


def storage_class(kind: type) -> type:
    """The nearest base that keeps state where Python cannot see it: `object` if none does, `list` for lists.

    Attributes and slots of classes written in Python account for all of their size beyond that of the base.
    """
    while kind is not object:
        base = _base_of(kind)
        slots = sum(type(value) is MemberDescriptorType for value in vars_of(kind).values())
        explained = slots * _POINTER
        for name in ("__dictoffset__", "__weakrefoffset__"):
            explained += _POINTER * (_OWN(kind, name) > 0 and _OWN(kind, name) != _OWN(base, name))
        size = _OWN(kind, "__basicsize__") - _OWN(base, "__basicsize__")
        if size > explained or not is_heap_type(kind):
            return kind
        kind = base
    return object


def is_heap_type(kind: type) -> bool:
    """Whether a class was made while Python ran, as those written in Python are."""
    return bool(_OWN(kind, "__flags__") & HEAP_TYPE)


def is_of_script(kind: type) -> bool:
    """Whether a class is written in Python, and not in a library's."""
    return is_heap_type(kind) and not is_library(vars_of(kind).get("__module__"))


def contents_of(cell: types.CellType) -> tuple[object, ...]:
    """What a variable of a closure has; nothing if it has no value yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


class ClassState(NamedTuple):
    """Where the objects of a class keep their state."""

    kind: type
    storage: type  # that of `storage_class`
    attributes: tuple[tuple[str, Getter], ...] | None  # None if a class hides its dictionary
    immutable: frozenset[str]  # attributes that are declared to change by assignment only


KNOWN_STATES: dict[int, ClassState] = {}  # of classes that live as long as the process, by id


def state_of(kind: type) -> ClassState:
    """Where the objects of a class keep their state, which does not change as long as the class is the same.

    `attributes` are slots by name, and how to get them from an object; with `__dict__`, a dictionary of them.
    """
    known = KNOWN_STATES.get(id(kind))
    if known is None:
        declared = [vars_of(base).get("immutable_attributes") for base in mro_of(kind)]
        named = (name for names in declared if type(names) is tuple for name in names)
        immutable = frozenset(name for name in named if type(name) is str)
        known = ClassState(kind, storage_class(kind), _attributes_of_class(kind), immutable)
        if not is_heap_type(kind) or is_library(vars_of(kind).get("__module__")):  # Others may be freed.
            KNOWN_STATES[id(kind)] = known
    return known


def _attributes_of_class(kind: type) -> tuple[tuple[str, Getter], ...] | None:
    found: list[tuple[str, Getter]] = []
    has_dict = False
    for base in mro_of(kind):
        for name, member in vars_of(base).items():
            if name == "__dict__":
                if type(member) not in (GetSetDescriptorType, MemberDescriptorType):
                    return None
                if not has_dict:
                    has_dict = True
                    found.append((name, member.__get__))
            elif type(member) is MemberDescriptorType and is_heap_type(base):
                found.append((name, member.__get__))
    return tuple(found)


def attributes_of(value: object, kind: type) -> list[tuple[str, object]] | None:
    """The names and values in an object's dictionary and slots; None if a class hides the dictionary."""
    attributes = state_of(kind).attributes
    if attributes is None:
        return None
    found: list[tuple[str, object]] = []
    for name, get in attributes:
        if name == "__dict__":
            found += dict.items(get(value))
        else:
            found.append((name, slot(get, value)))
    return found


def slot(get: Getter, value: object) -> object:
    """What is in a slot of an object; None if nothing is."""
    try:
        return get(value)
    except AttributeError:
        return None


class _Libraries(dict[str, bool]):
    """Whether a module of this name belongs to Python or to one of the `LIBRARIES`, as installed.

    A project's own package may have the name of one (`datasets`): it is none.
    """

    def __missing__(self, module: str) -> bool:
        name = module.partition(".")[0]
        if name not in LIBRARIES:
            return False
        loaded = sys.modules.get(name)
        if loaded is None:
            return False
        file = vars(loaded).get("__file__")
        if type(file) is str:
            known = name == "rekindle" or os.path.realpath(file).startswith(_FOLDERS)
        else:  # Built into Python; a package without a file of its own may be anywhere.
            known = name in sys.stdlib_module_names
        self[module] = known
        return known


IN_LIBRARY = _Libraries()


def is_library(module: object) -> bool:
    """Whether this is the name of a module of Python or of one of the `LIBRARIES`, as installed."""
    return type(module) is str and IN_LIBRARY[module]


def is_installed(module: ModuleType) -> bool:
    """Whether a module is Python's or that of any installed package, and not of a script's own files."""
    file = vars(module).get("__file__")
    return type(file) is not str or _is_installed_file(file)


@cache
def _is_installed_file(file: str) -> bool:
    return os.path.realpath(file).startswith(_FOLDERS)


@cache
def is_installed_name(name: str) -> bool:
    """Whether a module that is not loaded yet would be that of an installed package."""
    if is_library(name):
        return True
    try:
        spec = find_spec(name.partition(".")[0])
    except Exception as error:  # Whatever a finder of the script's own does.
        if is_interrupt(error):
            raise
        return False
    origin = None if spec is None else spec.origin
    return origin in ("built-in", "frozen") or (
        origin is not None and os.path.realpath(origin).startswith(_FOLDERS)
    )


def _installed_folders() -> tuple[str, ...]:
    folders = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders if folder)


_FOLDERS = _installed_folders()
