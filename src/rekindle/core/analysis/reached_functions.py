"""Which functions of a script may run when objects are used: those they hold, and methods that these name."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from types import FunctionType

from rekindle.core.analysis.bytecode import all_names
from rekindle.core.analysis.near_objects import MOST_ITEMS, near_objects
from rekindle.core.analysis.object_state import IN_LIBRARY, mro_of, vars_of

# All methods with two underscores are called without being named, but those by which Python makes an object,
# copies it, ends it, or stores something in it.
_NOT_OPERATORS = frozenset(
    {
        "__class_getitem__", "__copy__", "__deepcopy__", "__del__", "__delattr__", "__delete__",
        "__delitem__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__init__",
        "__init_subclass__", "__new__", "__post_init__", "__reduce__", "__reduce_ex__", "__set__",
        "__set_name__", "__setattr__", "__setitem__", "__setstate__",
    }
)  # fmt: skip


def reached_functions(*roots: object) -> Iterator[FunctionType]:
    """Functions of a script that these objects may run: those they hold, and methods that these name."""
    return functions_among([value for _, value in near_objects(*roots)])


# The methods that a dataclass is given, `__eq__` and `__repr__` say: they do nothing but read its fields.
_OF_DATACLASSES = ("__create_fn__.<locals>.", "_recursive_repr.", "recursive_repr.")


def functions_among(near: list[object]) -> Iterator[FunctionType]:
    """Functions of a script that may run, of the objects near some others."""
    called: list[FunctionType] = []
    methods: list[FunctionType] = []
    aliases: dict[int, set[str]] = {}  # the names of a method in its classes, by id
    held: set[int] = set()  # methods that are held: `collate_fn=dataset.collate`, `transform=Steps.scale`
    names: set[str] = set()
    for value in near:
        if type(value) is FunctionType and not _is_library(value.__module__):
            if value.__code__.co_qualname.startswith(_OF_DATACLASSES):
                continue
            (methods if _is_method(value) else called).append(value)
        elif issubclass(type(value), type):
            names |= _overridden(value)  # type: ignore[arg-type]
            for name, member in [*vars_of(value).items()]:  # type: ignore[arg-type]
                for function in _functions_of(member):
                    aliases.setdefault(id(function), set()).add(name)
        elif type(value) is not FunctionType:
            held.update(id(one) for one in _held_by(value) if type(one) is FunctionType)
    while True:
        reached = {
            id(method)
            for method in methods
            if id(method) in held
            or _is_operator(method.__name__)
            or not names.isdisjoint((method.__name__, *aliases.get(id(method), ())))
            or any(map(_is_operator, aliases.get(id(method), ())))
        }
        called += [method for method in methods if id(method) in reached]
        methods = [method for method in methods if id(method) not in reached]
        if not called:
            return
        for function in called:
            names |= all_names(function.__code__)
        yield from called
        called = []


def _is_library(module: object) -> bool:
    # Not that of `object_state`: this is asked often, and of each class.
    return type(module) is str and IN_LIBRARY[module]


def _is_operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _NOT_OPERATORS


def _overridden(kind: type) -> set[str]:
    """Methods of a script's class that a library calls, as they are its own class's: `forward`, `default`."""
    entries = [vars_of(base) for base in mro_of(kind)]
    of_libraries = [_is_library(one.get("__module__")) for one in entries]
    if of_libraries[0]:
        return set()
    bases = [one for one, of_library in zip(entries, of_libraries, strict=True) if of_library]
    return {name for name in entries[0] if name[:2] != "__" and any(name in base for base in bases)}


def _functions_of(member: object) -> tuple[object, ...]:
    """The functions of an entry of a class."""
    if type(member) is property:
        return member.fget, member.fset
    if type(member) in (staticmethod, classmethod):
        return (member.__func__,)  # type: ignore[attr-defined]
    return (member.func if type(member) is functools.cached_property else member,)


def _held_by(value: object) -> Iterator[object]:
    """What an object holds, other than in a class and in other objects."""
    kind = type(value)
    # By identity: a class of the script's may equal others, and not have their length.
    if any(kind is one for one in (list, tuple, dict)) and len(value) > MOST_ITEMS:  # type: ignore[arg-type]
        return
    for part in gc.get_referents(value):
        if type(part) is dict:  # the attributes of an object
            yield from dict.values(part)
        else:
            yield part


def _is_method(function: FunctionType) -> bool:
    parent = function.__qualname__.rpartition(".")[0]
    return bool(parent) and not parent.endswith("<locals>")
