"""Which of the three global generators code of a script may draw from, as far as can be proven.

A dataset is asked for each sample once: who reads on (a cursor, a socket, a counter of C code) would lose
one. So what it draws from must be seeded before it is asked, and to seed all three costs 5 µs a sample. Here
it is found, without running any code, which ones a dataset cannot reach: all that it holds is data, or of
libraries whose functions draw from others only, and so are the names in the code of the script. Whatever is
not known may draw from all three.
"""

from __future__ import annotations

import builtins
import functools
import gc
import random
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from itertools import chain, repeat
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from rekindle.core.analysis.bytecode import (
    NAMED_BY_TEXT,
    REACHES_ANYTHING,
    all_names,
    global_names,
    imported_names,
)
from rekindle.core.analysis.near_objects import MOST_ITEMS, MOST_OBJECTS, PYTHONS_MEMBERS, near_objects
from rekindle.core.analysis.object_state import (
    GENERATORS,
    GLOBAL_GENERATORS,
    WITHOUT_PARTS,
    attributes_of,
    contents_of,
    is_library,
    mro_of,
    vars_of,
)
from rekindle.core.interrupts import is_interrupt

_Names = frozenset[str]
NOTHING: _Names = frozenset()
ALL: _Names = frozenset({"python", "numpy", "torch"})
# What the functions and classes of a library draw from, by its name; of those not named here, anything.
_OF_LIBRARIES = dict.fromkeys(
    [
        "PIL", "_io", "abc", "builtins", "bz2", "collections", "copy", "csv", "cv2",
        "datetime", "enum", "functools", "glob", "gzip", "io", "itertools", "json", "lzma",
         "math", "mmap", "numbers", "numpy", "os", "pathlib", "posix", "posixpath", "re", "string",
        "struct", "tarfile", "threading", "time", "typing", "warnings", "zipfile", "zlib",
    ],
    NOTHING,
) | {
    "random": frozenset({"python"}),
    "numpy.random": frozenset({"numpy"}),
    "torch": frozenset({"torch"}),
    "torchvision": frozenset({"python", "torch"}),
}  # fmt: skip
# Classes of torch whose code draws nothing.
_DATASETS = frozenset(map(id, (Dataset, TensorDataset, Subset, ConcatDataset, StackDataset)))
# Names in torch, and of what a tensor has, that draw nothing.
_TORCH_NAMES = frozenset(
    {
        "FloatTensor", "LongTensor", "Tensor", "abs", "amax", "amin", "append", "arange", "argmax",
        "array", "as_tensor", "asarray", "ascontiguousarray", "astype", "bfloat16", "bool", "cat",
        "chunk", "clamp", "clip", "clone", "contiguous", "convert", "copy", "cpu", "data", "detach",
        "div", "double", "dtype", "empty", "exp", "expand", "eye", "flatten", "flip", "float", "float16",
        "float32", "float64", "format", "from_numpy", "frombuffer", "full", "get", "half", "index", "int",
        "int16", "int32", "int64", "int8", "is_tensor", "item", "items", "join", "keys", "linspace",
        "log", "long", "max", "mean", "min", "mul", "ndim", "no_grad", "nonzero", "numpy", "ones",
        "ones_like", "open", "permute", "pow", "read", "reshape", "roll", "shape", "size", "split",
        "sqrt", "squeeze", "stack", "stat", "std", "strip", "sub", "sum", "tensor", "to", "tolist",
        "transpose", "type", "uint8", "unsqueeze", "values", "view", "where", "zeros",
        "zeros_like",
    }
)  # fmt: skip
_READ_SEED = frozenset({"initial_seed"})
# Methods of tensors that draw.
_DRAWS_FROM_TORCH = frozenset(
    {
        "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial",
        "normal_", "random_", "uniform_",
    }
)  # fmt: skip
# Names by which any code may be reached, or an object that nobody has looked at.
_REACHES_ANYTHING = REACHES_ANYTHING | NAMED_BY_TEXT | {"__dict__", "load", "loads", "sample"}
_OF_GENERATORS = {
    id(generator): frozenset({name})
    for generator, name in zip(GLOBAL_GENERATORS, ("python", "numpy", "torch"), strict=True)
}
_MAKE_OBJECTS = frozenset({"__class__", "__new__", "type"})
# Methods that are called before samples are loaded, unless a class is called, which counts as unknown.
_BEFORE = frozenset(
    {"__init__", "__new__", "__init_subclass__", "__set_name__", "__getstate__", "__setstate__", "__reduce__"}
)
_module_of = type.__dict__["__module__"].__get__  # without asking the class or its metaclass
_KNOWN_MEMBERS = (*WITHOUT_PARTS, FunctionType, MemberDescriptorType)
_CONTAINERS = frozenset({OrderedDict, deque, dict, frozenset, list, set, tuple})
# Modules of what holds code unseen: a generator.
_WRAP_CODE = frozenset({"_thread", "builtins", "functools", "itertools"})
_HOLD_NOTHING = frozenset(
    {
        object, slice, type(threading.Lock()), type(threading.RLock()),
        # What these are views of, the walk finds: the second is what a memoryview keeps it by.
        memoryview, type(gc.get_referents(memoryview(b""))[0]),
    }
)  # fmt: skip
_MOST_CHECKED = 1_000_000  # items of a container: 20 ms
_LONG = 1_000  # items of a container: to look at more copies pages of a process that was forked


class LongContainers:
    """What the long containers near some objects draw from, found once for processes that are forked then.

    To look at an item is to write into it (its reference count). Containers with one of the ids `without` are
    left out.
    """

    def __init__(self, *roots: object, without: Collection[int] = ()) -> None:
        self._found: dict[int, tuple[object, int, _Names]] = {}
        try:
            for _, value in near_objects(*roots, with_global=True):
                kind = type(value)
                if kind in _CONTAINERS and id(value) not in without and len(value) > _LONG:  # type: ignore[arg-type]
                    self._found[id(value)] = value, len(value), frozenset(_of_container(value, kind))  # type: ignore[arg-type]
        except Exception as error:  # An object like none before.
            if is_interrupt(error):
                raise

    def __bool__(self) -> bool:
        return bool(self._found)

    def draws_of(self, value: object) -> _Names | None:
        """What was found of a container; None if it was not looked at or is of another length now."""
        known = self._found.get(id(value))
        return known[2] if known and known[0] is value and known[1] == len(value) else None  # type: ignore[arg-type]


def possible_draws(*roots: object, keeps_seed: bool = False, known: LongContainers | None = None) -> _Names:
    """The names of the global generators that these objects may draw from when they are used.

    Who reads torch's seed counts as drawing: it is to be the sample's. With `keeps_seed` it is the script's.
    Containers that are `known` are not looked at again.
    """
    found: set[str] = set()
    try:
        near = [*near_objects(*roots, with_global=True)]
        if len(near) >= MOST_OBJECTS:
            return ALL
        objects = [value for path, value in near if not _is_own_class(path, value)]
        functions = [
            value for value in objects if type(value) is FunctionType and not is_library(value.__module__)
        ]
        makes_objects = any(all_names(one.__code__) & _MAKE_OBJECTS for one in functions)
        used = [one for one in functions if makes_objects or one.__name__ not in _BEFORE]
        known_draws = map(known.draws_of, objects) if known else repeat(None)
        of_objects = (
            _of_object(value) if draws is None else draws
            for value, draws in zip(objects, known_draws, strict=False)
        )
        of_functions = (_of_function(one, _READ_SEED if keeps_seed else NOTHING) for one in used)
        for part in chain(of_objects, of_functions):
            found.update(part)
            if found == ALL:
                return ALL
    except Exception as error:  # An object like none before: nothing is proven.
        if is_interrupt(error):
            raise
        return ALL
    return frozenset(found)


def _is_own_class(path: str, value: object) -> bool:
    """Whether this is the class of an object that is held: it is looked at with the object."""
    return issubclass(type(value), type) and path == vars_of(type)["__qualname__"].__get__(value)


def _hides_code(value: object) -> bool:
    """Whether this is data only by its type: a module, an array of objects."""
    kind = type(value)
    if ModuleType in mro_of(kind):
        return True
    if issubclass(kind, np.ufunc):
        return vars(np).get(value.__name__) is not value  # type: ignore[attr-defined]
    return issubclass(kind, np.ndarray | np.generic) and (
        not kind.__module__.startswith("numpy") or bool(value.dtype.hasobject)  # type: ignore[attr-defined]
    )


def _of_object(value: object) -> Collection[str]:
    """What an object that is held draws from, apart from what it holds itself and from code of a script."""
    kind = type(value)
    if issubclass(kind, GENERATORS):
        return _OF_GENERATORS.get(id(value), NOTHING)  # of the dataset's own
    if _hides_code(value):
        return ALL
    if kind is FunctionType:
        return _of_held_function(value)
    if kind is MethodType or kind is functools.partial:
        return NOTHING
    if kind in (BuiltinFunctionType, MethodWrapperType):
        return _of_builtin(value)
    if issubclass(kind, type):  # Who holds it may make objects of it.
        module = _module_of(value)
        return _of_library(module) if is_library(module) else ALL
    if any(base in _CONTAINERS for base in mro_of(kind)):
        return _of_container(value, kind)
    attributes = attributes_of(value, kind)
    if attributes is None or any(_hides_code(one) for _, one in attributes):
        return ALL
    if _module_of(kind) in _WRAP_CODE:
        return NOTHING if kind in _HOLD_NOTHING else ALL
    return {*chain.from_iterable(map(_of_class, mro_of(kind)))}


def _of_container(value: object, kind: type) -> Collection[str]:
    if kind not in _CONTAINERS:
        return ALL
    items = _items(value)
    if kind is dict and not _is_data(value.keys(), levels=3):  # type: ignore[attr-defined]
        return ALL
    if (kind is dict or kind is list or kind is tuple) and len(items) <= MOST_ITEMS:
        # They are looked at themselves.
        return ALL if any(map(_hides_code, items)) else NOTHING
    return NOTHING if len(items) <= _MOST_CHECKED and _is_data(items, levels=3) else ALL


def _is_data(items: Collection[object], levels: int) -> bool:
    """Whether items of a container are numbers, texts, arrays and tuples or lists of them."""
    kinds = {*map(type, items)}
    nested = kinds & {dict, list, tuple}
    if not all(issubclass(kind, WITHOUT_PARTS) for kind in kinds - nested):
        return False
    arrays = any(issubclass(kind, (np.ndarray, np.generic, ModuleType)) for kind in kinds)
    if arrays and any(map(_hides_code, items)):
        return False
    if not nested:
        return True
    inner = [part for item in items if type(item) in nested for part in _items(item)]
    return levels > 0 and len(inner) <= _MOST_CHECKED and _is_data(inner, levels - 1)


def _items(container: object) -> Collection[object]:
    return container.values() if isinstance(container, dict) else container  # type: ignore[return-value]


def _of_class(kind: object) -> Collection[str]:
    """What code of a class draws from, if it is a library's; that of a script is looked at by its methods."""
    if kind is object or id(kind) in _DATASETS:
        return NOTHING
    entries, module = vars_of(kind), _module_of(kind)  # type: ignore[arg-type]
    if is_library(module) or type(module) is not str:
        return _of_library(module)
    return NOTHING if all(_is_known(name, one) for name, one in entries.items()) else ALL


def _is_known(name: str, member: object) -> bool:
    """Whether an entry of a class of a script is data, or a function that is looked at."""
    kind = type(member)
    if name in PYTHONS_MEMBERS:
        return True
    if kind is list or kind is tuple or kind is dict:
        return _is_data([member], levels=3)
    if kind in (classmethod, staticmethod):
        return type(member.__func__) is FunctionType  # type: ignore[attr-defined]
    if kind is property:
        parts = (member.fget, member.fset, member.fdel)  # type: ignore[attr-defined]
        return all(one is None or type(one) is FunctionType for one in parts)
    return issubclass(kind, _KNOWN_MEMBERS) and not _hides_code(member)


def _of_library(module: object) -> Collection[str]:
    """What the functions of a library's module draw from."""
    if type(module) is not str:
        return ALL
    package = module.partition(".")[0]
    if package == "rekindle":
        return NOTHING  # What it holds is looked at.
    if package == "numpy" and module.startswith(("numpy.random", "numpy.testing", "numpy.f2py")):
        return _OF_LIBRARIES["numpy.random"]
    return _OF_LIBRARIES.get(package, ALL)


def _of_held_function(function: object) -> Collection[str]:
    assert isinstance(function, FunctionType)
    for cell in function.__closure__ or ():
        contents = contents_of(cell)
        if not contents or any(map(_hides_code, contents)):
            return ALL
    module = function.__module__
    if not is_library(module):
        return NOTHING
    if module.startswith("torch.") and function.__name__ in _TORCH_NAMES:
        return NOTHING
    return _of_library(module)


def _of_builtin(function: object) -> Collection[str]:
    """What a function of C code draws from; the object that it is a method of is looked at as well."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if owner is random._inst:
        return _OF_LIBRARIES["random"]
    if owner is np.random.mtrand._rand:
        return _OF_LIBRARIES["numpy.random"]
    if owner is builtins:
        return ALL if name in _REACHES_ANYTHING else NOTHING
    if vars(torch).get(name) is function:
        return NOTHING if name in _TORCH_NAMES else _OF_LIBRARIES["torch"]
    if owner is None or type(owner) is ModuleType:
        return _of_library(getattr(function, "__module__", None))
    return NOTHING


def _of_function(function: FunctionType, harmless: _Names) -> Iterator[str]:
    """What the names in a function of a script stand for, but for some that draw nothing."""
    code, reads = function.__code__, function.__globals__
    names = all_names(code) - harmless
    if names & _REACHES_ANYTHING:
        yield from ALL
        return
    if names & _DRAWS_FROM_TORCH:
        yield "torch"
    for name in imported_names(code):
        yield from _of_module(sys.modules.get(name), names)
    for name in global_names(code):
        value = reads.get(name, vars(builtins).get(name, sys.modules.get(name)))
        if type(value) is ModuleType:
            yield from _of_module(value, names)
        elif _hides_code(value):
            yield from ALL
        elif issubclass(type(value), type):
            module = _module_of(value)
            yield from _of_library(module) if is_library(module) else ALL
        elif value is None and name not in reads:
            yield from ALL


def _of_module(module: ModuleType | None, names: _Names) -> Collection[str]:
    """What a function draws from that uses a module, with these names of attributes."""
    if module is None or not is_library(module.__name__):
        return ALL
    if module is np:
        return _OF_LIBRARIES["numpy.random"] if "random" in names or "testing" in names else NOTHING
    if module is torch:
        return NOTHING if _torch_names(names) <= _TORCH_NAMES else _OF_LIBRARIES["torch"]
    return _of_library(module.__name__)


def _torch_names(names: _Names) -> _Names:
    """Those that mean something in torch."""
    known = vars(torch)  # `hasattr` may import parts of it
    return frozenset(one for one in names if one != "torch" and (one in known or hasattr(torch.Tensor, one)))
