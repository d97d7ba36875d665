"""What an object consists of, found without running any code of its class.

Properties, `__getattr__`, `__class__`, `__eq__` and the like are all the user's code, so nothing here looks
an attribute up on the object: only in the dictionaries of its class and its own.
"""

from __future__ import annotations

import dis
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from types import CodeType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

_POINTER = 8  # bytes
_MRO = type.__dict__["__mro__"]
_VARS = type.__dict__["__dict__"]
_BASE = type.__dict__["__base__"]
_OWN = type.__getattribute__  # that of a metaclass may be the user's
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE

# Packages whose own modules and classes are taken not to change between two epochs.
LIBRARIES = frozenset(sys.stdlib_module_names) - {"__main__"} | {
    "PIL", "albumentations", "cv2", "datasets", "kornia", "lightning", "numba", "numpy", "pandas", "pyarrow",
    "pytest", "pytorch_lightning", "rekindle", "scipy", "skimage", "timm", "tokenizers", "torch",
    "torchaudio", "torchvision", "tqdm", "transformers", "xxhash",
}  # fmt: skip


class NotProvenError(Exception):
    """Something that cannot be looked at, or not within the budget."""


def mro_of(kind: type) -> tuple[type, ...]:
    """The class and its bases, in the order in which attributes are looked up."""
    return cast("tuple[type, ...]", _MRO.__get__(kind))


def vars_of(kind: type) -> Mapping[str, Any]:
    """What a class itself defines."""
    return cast("Mapping[str, Any]", _VARS.__get__(kind))


def storage_class(kind: type) -> type:
    """The nearest base that keeps state where Python cannot see it: `object` if none does, `list` for lists.

    Attributes and slots of classes written in Python account for all of their size beyond that of the base.
    """
    while kind is not object:
        base = _BASE.__get__(kind)
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
    return bool(_OWN(kind, "__flags__") & _HEAP_TYPE)


def attributes_of(value: object, kind: type) -> list[tuple[str, object]] | None:
    """The names and values in an object's dictionary and slots; None if a class hides the dictionary."""
    found: list[tuple[str, object]] = []
    has_dict = False
    for base in mro_of(kind):
        for name, member in vars_of(base).items():
            if name == "__dict__":
                if type(member) not in (GetSetDescriptorType, MemberDescriptorType):
                    return None
                if not has_dict:
                    has_dict = True
                    found += dict.items(member.__get__(value))
            elif type(member) is MemberDescriptorType and is_heap_type(base):
                try:
                    found.append((name, member.__get__(value)))
                except AttributeError:  # A slot without a value.
                    found.append((name, None))
    return found


_NAMES_OF_CODE: dict[int, tuple[CodeType, frozenset[str]]] = {}
_ALL_NAMES_OF_CODE: dict[int, tuple[CodeType, frozenset[str]]] = {}
_READS_A_GLOBAL = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME", "IMPORT_FROM"}
)


def all_names(code: CodeType) -> frozenset[str]:
    """The names of globals, modules and attributes that a function uses, with functions within it."""
    known = _ALL_NAMES_OF_CODE.get(id(code))
    if known is None:
        names = set(code.co_names)
        for constant in code.co_consts:
            if type(constant) is CodeType:
                names |= all_names(constant)
        known = _ALL_NAMES_OF_CODE[id(code)] = (code, frozenset(names))
    return known[1]


def global_names(code: CodeType) -> frozenset[str]:
    """The names of globals and modules that a function reads, those of functions within it included."""
    known = _NAMES_OF_CODE.get(id(code))
    if known is None:
        names = {
            str(step.argval)
            for step in dis.get_instructions(code)
            if step.opname in _READS_A_GLOBAL and step.argval
        }
        for constant in code.co_consts:
            if type(constant) is CodeType:
                names |= global_names(constant)
        known = _NAMES_OF_CODE[id(code)] = (code, frozenset(names))
    return known[1]


_INSTALLED: dict[str, bool] = {}  # packages by name: whether they are where installed ones are


def is_library(module: object) -> bool:
    """Whether a module of this name belongs to Python or to one of the `LIBRARIES`, as installed.

    A project's own package may have the name of one (`datasets`): it is none.
    """
    if type(module) is not str:
        return False
    name = module.partition(".")[0]
    return name in LIBRARIES and _is_installed(name)


def _is_installed(name: str) -> bool:
    known = _INSTALLED.get(name)
    if known is None:
        loaded = sys.modules.get(name)
        if loaded is None:
            return False
        file = vars(loaded).get("__file__")
        if type(file) is str:
            known = name == "rekindle" or os.path.realpath(file).startswith(_FOLDERS)
        else:  # Built into Python; a package without a file of its own may be anywhere.
            known = name in sys.stdlib_module_names
        _INSTALLED[name] = known
    return known


def _installed_folders() -> tuple[str, ...]:
    folders = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders if folder)


_FOLDERS = _installed_folders()
