"""How to look at values: what containers, arrays and tensors hold, without running code of a subclass."""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import operator
import pathlib
import re
import threading
import types
import typing
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from rekindle.core.analysis.look_findings import Reader
from rekindle.core.analysis.object_state import NotProvenError, mro_of, vars_of
from rekindle.core.forked_memory import ForkedMemory

if TYPE_CHECKING:
    from rekindle.core.analysis.look import Look

    _Numbers = ctypes.Array[ctypes.c_char]  # or one of them

BYTE, ITEM = 0.08e-9, 80e-9  # seconds, about, to look at a byte of an array and at an item among many
Place = tuple[int, int, tuple[object, ...]]  # an array's address, its size in bytes, and what it is there
Handler = Callable[["Look", Any], None]  # of an object: each for the class that it stands under
_C_POINTERS = frozenset("OPXzZ")  # how `ctypes` writes them
_PATHS = (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath)
PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})
CONSTANT = PLAIN | set(_PATHS)  # of which an object never changes
# Objects that never change, or that no sample depends on.
BY_IDENTITY: frozenset[type] = frozenset(
    {
        types.CodeType, types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
        types.MethodDescriptorType, types.ClassMethodDescriptorType, type(Ellipsis), type(NotImplemented),
        range, slice, re.Pattern, torch.dtype, torch.device, torch.layout, torch.memory_format, np.ufunc,
        datetime.date, datetime.datetime, datetime.timedelta, datetime.time, operator.itemgetter,
        operator.attrgetter, type(threading.Lock()), type(threading.RLock()), types.GenericAlias,
        types.UnionType, typing.TypeVar, typing.ParamSpec,
    }
)  # fmt: skip


def _holding(*reads: Reader) -> Handler:
    """A look at all that each of these reads of an object, which may be exchanged for something else."""

    def look_at(look: Look, value: object) -> None:
        for read in reads:
            look.many(look.holding(read, value))

    return look_at


def _items_of(iterate: Callable[[Any], Iterable[object]]) -> Handler:
    """A look at the items of a container that never changes."""
    return lambda look, value: look.many([*iterate(value)])


def _noting(content: Callable[[Any], object]) -> Handler:
    """A note of what an object is that never changes."""
    return lambda look, value: look.note(content(value))


def _ordered_dict(look: Look, value: OrderedDict[object, object]) -> None:
    look.many(look.holding(dict.keys, value))
    if dict.__len__(value):  # A module of torch has eight that are empty.
        look.many(look.holding(OrderedDict.keys, value))
        look.many(look.holding(dict.values, value))


def _default_factory(value: defaultdict[object, object]) -> tuple[object]:
    return (vars_of(defaultdict)["default_factory"].__get__(value),)


def _bytearray(look: Look, value: bytearray) -> None:
    look.spend(BYTE * len(value), BYTE * len(value))
    look.finding(_digest_of_bytes, value)


def _digest_of_bytes(value: bytearray) -> tuple[int, bytes]:
    return len(value), xxhash.xxh3_128_digest(value)


def look_at_scalar(look: Look, value: Any) -> None:
    """Look at a scalar of NumPy."""
    dtype = np.generic.dtype.__get__(value)
    if dtype.hasobject:
        raise NotProvenError("a NumPy scalar that holds objects")
    look.note((repr(dtype), np.generic.tobytes(value)))


def _array(look: Look, value: NDArray[np.generic]) -> None:
    array: NDArray[np.generic] = np.ndarray.view(value, np.ndarray)
    if array.size:
        look.addresses.append(array.__array_interface__["data"][0])
    if array.dtype.hasobject:
        if array.dtype != object:
            raise NotProvenError("a structured array that holds objects")
        look.finding(_form, value)
        look.spend(ITEM * array.size)
        look.many(look.holding(_items, value))
    elif array.flags.c_contiguous and _is_forked(look, value, _array_place):
        pass
    elif _is_read_only(array):
        look.finding(_form, value)
        look.by_identity(value)
    else:
        cost = BYTE * array.nbytes * (1 if array.flags.c_contiguous else 10)
        look.spend(cost, cost)
        look.finding(_array_contents, value)


def _form(value: NDArray[np.generic]) -> tuple[object, ...]:
    array: NDArray[np.generic] = np.ndarray.view(value, np.ndarray)
    return array.dtype.str, repr(array.dtype), array.shape, _is_read_only(array)


def _array_place(value: NDArray[np.generic]) -> Place:
    array: NDArray[np.generic] = np.ndarray.view(value, np.ndarray)
    return array.__array_interface__["data"][0], array.nbytes, _form(value)


def _is_forked(look: Look, value: Any, place_of: Callable[[Any], Place]) -> bool:
    """Whether it can be told later if an array was written to since the fork; if so, note that it was not."""
    place = place_of(value)
    memory = None if look.forked is None else look.forked.at(*place[:2])
    if memory is None:
        return False
    look.note(place)
    look.note(memory)
    look.keep(value)
    look.expecting(functools.partial(_place_if_unwritten, memory, place_of), value, place)
    return True


def _place_if_unwritten(memory: ForkedMemory, place_of: Callable[[Any], Place], value: Any) -> Place | None:
    return place_of(value) if memory.is_unwritten() else None


def _items(value: NDArray[np.generic]) -> list[object]:
    return [*np.ndarray.view(value, np.ndarray).flat]


def _array_contents(value: NDArray[np.generic]) -> tuple[object, ...]:
    array: NDArray[np.generic] = np.ndarray.view(value, np.ndarray)
    return repr(array.dtype), array.shape, _digest(array)


def _digest(array: NDArray[np.generic]) -> bytes:
    contiguous = np.ascontiguousarray(array).reshape(-1)
    return xxhash.xxh3_128_digest(contiguous.view(np.uint8).data) if contiguous.size else b""


def _tensor(look: Look, value: torch.Tensor) -> None:
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise NotProvenError(f"{type(value).__qualname__} is a tensor of its own kind")
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise NotProvenError("a tensor that is not in plain memory")
    if value.numel():
        look.addresses.append(value.data_ptr())
    if value.is_contiguous() and _is_forked(look, value, _tensor_place):
        return
    cost = BYTE * value.nbytes * (1 if value.is_contiguous() else 10)
    look.spend(cost, cost)
    look.finding(_tensor_contents, value)


def _tensor_contents(value: torch.Tensor) -> tuple[object, ...]:
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        return ()
    form = _tensor_form(value)
    plain = value.detach().resolve_conj().resolve_neg()
    if not plain.numel():
        return form
    return *form, _digest(plain.contiguous().view(-1).view(torch.uint8).numpy())


def _tensor_form(value: torch.Tensor) -> tuple[object, ...]:
    return repr(value.dtype), tuple(value.shape), value.requires_grad


def _tensor_place(value: torch.Tensor) -> Place:
    views = value.is_conj(), value.is_neg(), value.stride()
    return value.data_ptr(), value.nbytes, (_tensor_form(value), views)


def _c_data(look: Look, value: _Numbers) -> None:
    """A number or an array of numbers of `ctypes`: what `multiprocessing.Value` and `Array` hold."""
    form = _c_form(type(value))
    if isinstance(form, type):
        form = _c_form(form)
    if type(form) is not str or form in _C_POINTERS:
        look.leave_out(f"{type(value).__qualname__} cannot be looked into")
        return
    size = ctypes.sizeof(value)
    look.addresses.append(ctypes.addressof(value))
    look.spend(BYTE * size, BYTE * size)
    if look.looks_at_numbers:
        look.finding(_c_bytes, value)
    else:
        look.by_identity(value)


def _c_form(kind: type) -> object:
    """What a class of `ctypes` says that it holds."""
    return next((vars_of(base)["_type_"] for base in mro_of(kind) if "_type_" in vars_of(base)), None)


def _c_bytes(value: _Numbers) -> bytes:
    return ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))


def _parts_of_partial(value: functools.partial[object]) -> list[object]:
    return [vars_of(functools.partial)[name].__get__(value) for name in ("func", "args", "keywords")]


def _referent(value: weakref.ReferenceType[object]) -> tuple[object]:
    return (value(),)


def _context_variable(look: Look, value: ContextVar[object]) -> None:
    look.by_identity(value)
    look.many(look.holding(_in_this_context, value))


def _in_this_context(value: ContextVar[object]) -> tuple[object]:
    return (value.get(None),)


def _memo(look: Look, value: Any) -> None:
    """What `functools.cache` keeps is a result of the code's own, but for a function without arguments.

    That gives one object to all, which a script changes: `get_config().size = 96`.
    """
    look.by_identity(value)
    look.leave_out("a memo of functools cannot be looked into")
    if _is_without_arguments(vars(value).get("__wrapped__")):
        look.many(look.holding(_results, value))


def _is_without_arguments(function: object) -> bool:
    if type(function) is not types.FunctionType:
        return False
    code = function.__code__
    own = code.co_argcount - (code.co_varnames[:1] in (("self",), ("cls",)))
    return own + code.co_kwonlyargcount == 0 and not code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)


def _results(memo: Any) -> list[object]:
    others = (vars(memo), vars(memo).get("__wrapped__"))
    found = [one for one in gc.get_referents(memo) if not issubclass(type(one), type)]
    return [one for one in found if not any(one is other for other in others)]


def _is_read_only(array: NDArray[np.generic]) -> bool:
    """Whether nobody can ever write to an array's memory, which is that of a `bytes` object.

    Who owns its memory can make it writeable, change it, and make it read-only again.
    """
    base: object = array
    while type(base) is np.ndarray:
        base = base.base
    return type(base) is bytes and not array.flags.writeable


# What is found of the bytes of arrays, tensors and numbers.
CONTENTS: frozenset[Callable[[Any], object]] = frozenset({_array_contents, _tensor_contents, _c_bytes})
# How to look at objects of exactly these classes.
VALUES: dict[type, Handler] = {
    set: _holding(set.__iter__),
    frozenset: _items_of(frozenset.__iter__),
    bytearray: _bytearray,
    weakref.ReferenceType: _holding(_referent),
    types.MappingProxyType: _holding(gc.get_referents),
    ContextVar: _context_variable,
    functools._lru_cache_wrapper: _memo,
    **dict.fromkeys(_PATHS, _noting(lambda value: (type(value).__name__, str(value)))),
}
# How to look at what these classes store, in objects of them and of classes derived from them.
STORED: dict[type, Handler] = {
    list: _holding(list.copy),
    tuple: _items_of(tuple.__iter__),
    torch.Size: _items_of(tuple.__iter__),
    dict: _holding(dict.keys, dict.values),
    OrderedDict: _ordered_dict,
    defaultdict: _holding(_default_factory, dict.keys, dict.values),
    set: _holding(set.__iter__),
    frozenset: _items_of(frozenset.__iter__),
    deque: _holding(deque.__iter__),
    bytes: _noting(lambda value: bytes.__getitem__(value, slice(None))),
    int: _noting(int.__int__),
    float: _noting(float.__repr__),
    np.ndarray: _array,
    functools.partial: _holding(_parts_of_partial),
    torch._C.TensorBase: _tensor,
    ctypes._SimpleCData: _c_data,
    ctypes.Array: _c_data,
    types.SimpleNamespace: lambda look, value: None,
}
