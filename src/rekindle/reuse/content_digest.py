"""What objects consist of, as a digest: their values, arrays and code, down to what their functions read.

Two that have the same digest compute the same, in this process or another. It is taken by pickling, as
workers get a dataset that are not forked, with arrays, functions and classes replaced by what they consist
of. A function counts with its code, its closure, the globals and the environment variables that it reads;
those of installed libraries count by name. What cannot be pickled has no digest.
"""

from __future__ import annotations

import functools
import os
import pickle
import types
from typing import Any, TypeAlias

import numpy as np
import torch
import xxhash

from rekindle.core.analysis.bytecode import all_names, global_names, with_inner
from rekindle.core.analysis.object_state import GENERATORS, contents_of, is_installed, is_library, vars_of
from rekindle.core.interrupts import is_interrupt
from rekindle.reuse.named_files import NamedFiles

# What `pickle` takes in place of an object, or NotImplemented.
_Reduced: TypeAlias = Any
_READS_ENVIRONMENT = frozenset({"environ", "expandvars", "getenv"})
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def content_digest(value: object, files: NamedFiles | None = None) -> str | None:
    """The digest of an object; None if it has none. The files that it names are added to `files`."""
    digest = xxhash.xxh3_128()
    try:
        _Digest(_Sink(digest), NamedFiles() if files is None else files).dump(value)
    except Exception as error:  # Anything may happen in a user's `__reduce__` and `__getstate__`.
        if is_interrupt(error):
            raise
        return None
    return digest.hexdigest()


class _Sink:
    """A file that only counts what is written to it."""

    def __init__(self, digest: xxhash.xxh3_128) -> None:
        self._digest = digest

    def write(self, content: bytes) -> int:
        self._digest.update(content)
        return len(content)


class _Digest(pickle.Pickler):
    """Writes what an object consists of, never to be read again."""

    def __init__(self, sink: _Sink, files: NamedFiles) -> None:
        super().__init__(sink, protocol=5)
        self._files = files
        self._seen: set[int] = set()  # functions and classes, which may refer to themselves

    def persistent_id(self, value: object) -> None:
        """Nothing: it is pickled as it is, and seen on the way."""
        self._files.see(value)

    def reducer_override(self, value: object) -> _Reduced:
        """What stands for an object, where its own way of pickling does not do."""
        if isinstance(value, np.memmap):
            name = os.fspath(value.filename) if value.filename is not None else ""
            return _noted("memmap", name, _file(name), value.offset, value.shape, value.dtype.str)
        if type(value) is np.ndarray and not value.dtype.hasobject:
            content = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).data.cast("B"))
            return _noted("array", value.shape, value.dtype.str, content)
        if isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            return _noted("tensor", tuple(value.shape), str(value.dtype), flat)
        if isinstance(value, GENERATORS):  # Seeded for each sample: their state does not matter.
            return _noted("generator", type(value).__name__)
        if value is os.environ:  # A function counts with those variables that it names.
            return _noted("environment")
        if isinstance(value, types.ModuleType):  # What a function reads of it is noted with the function.
            return _noted("module", value.__name__)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools._lru_cache_wrapper) and not is_library(value.__module__):
            return _noted("function with a memory", value.__wrapped__)
        if isinstance(value, type):
            return self._class(value)
        return NotImplemented

    def _function(self, function: types.FunctionType) -> _Reduced:
        in_library, name = is_library(function.__module__), function.__qualname__
        if in_library and "<" not in name:
            return NotImplemented
        if self._was_seen(function):
            return _noted("function again", name)
        code, reads = function.__code__, {} if in_library else function.__globals__
        used = [(one, reads[one]) for one in sorted(global_names(code)) if one in reads]
        modules = [_read_of_module(value, sorted(all_names(code)), ()) for _, value in used]
        cells = [contents_of(cell) for cell in function.__closure__ or ()]
        settings = function.__defaults__, function.__kwdefaults__, function.__dict__
        variables = _environment(code, [one for _, one in used])
        return _noted("function", name, _code(code), settings, cells, used, modules, variables)

    def _class(self, kind: type) -> _Reduced:
        if is_library(kind.__module__):
            return NotImplemented
        if self._was_seen(kind):
            return _noted("class again", kind.__qualname__)
        entries = []
        for name, entry in sorted(vars_of(kind).items()):
            unwrapped = getattr(entry, "__func__", entry)  # of static and class methods
            if isinstance(entry, property):
                unwrapped = entry.fget
            is_code = isinstance(unwrapped, types.FunctionType)
            is_pythons = name.startswith("__") or name == "_abc_impl" or isinstance(entry, _DESCRIPTORS)
            if is_code or not is_pythons:
                entries.append((name, unwrapped))
        return _noted("class", kind.__qualname__, kind.__bases__, entries)

    def _was_seen(self, value: object) -> bool:
        seen = id(value) in self._seen
        self._seen.add(id(value))
        return seen


def _noted(*parts: object) -> tuple[object, tuple[object, ...]]:
    return _noted, parts


def _read_of_module(value: object, names: list[str], within: tuple[object, ...]) -> list[object]:
    """What code with these names may read of a module of the script's own, and of modules within it."""
    if not isinstance(value, types.ModuleType) or value in within:
        return []
    if is_library(value.__name__) or is_installed(value):
        return []
    entries = vars(value)
    found = [(name, entries[name]) for name in names if name in entries and not name.startswith("__")]
    return [*found, *(_read_of_module(one, names, (*within, value)) for _, one in found)]


def _environment(code: types.CodeType, used: list[object]) -> list[tuple[str, str]]:
    """The environment variables that code reads, whose names are texts in it, or globals that it uses."""
    if _READS_ENVIRONMENT.isdisjoint(all_names(code)):
        return []
    values = [*used, *(constant for one in with_inner(code) for constant in one.co_consts)]
    for several in [one for one in values if isinstance(one, list | tuple | frozenset)]:
        values += several
    names = {text for text in values if type(text) is str and text in os.environ}
    return [(name, os.environ[name]) for name in sorted(names)]


def _code(code: types.CodeType) -> tuple[object, ...]:
    """What a function does, without where it is written."""
    constants = [
        _code(one) if isinstance(one, types.CodeType) else (type(one).__name__, repr(one))
        for one in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, tuple(constants)


def _file(path: str) -> tuple[int, int, int]:
    state = os.stat(path)
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns
