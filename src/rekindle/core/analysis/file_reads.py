"""Whether code may read files, whose content no look proves: it does unless it is known not to.

What a script has written itself is looked at by the names that it uses. What libraries do is not looked into:
a table says which of their modules read nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from functools import cache

from rekindle.core.analysis.object_state import (
    HEAP_TYPE,
    IN_LIBRARY,
    is_installed_name,
    is_library,
    mro_of,
    vars_of,
)

# A function that calls one of these, or a method of that name, may read a file.
_READING = frozenset(
    {
        "open", "fdopen", "memmap", "load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "DataSource",
        "open_memmap", "read", "readline", "readlines", "readinto", "imread", "imreadmulti", "decode_image",
        "File", "FileIO", "FileStorage", "VideoCapture", "VideoReader", "HDFStore", "ExcelFile", "cursor",
        "execute", "from_file", "truetype", "iterdir", "glob", "rglob", "exists", "is_file", "is_dir", "stat",
        "extract", "extractfile", "recv",
    }
)  # fmt: skip
# Modules with all that is in them: whether they read files. The longest name counts, what is not here does.
_MODULES = {
    **dict.fromkeys(
        (
            "__future__", "_abc", "_bisect", "_collections", "_functools", "_heapq", "_operator", "_random",
            "_struct", "_thread", "_weakref", "abc", "array", "base64", "binascii", "bisect", "builtins",
            "collections", "colorsys", "contextlib", "contextvars", "copy", "copyreg", "dataclasses",
            "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json",
            "keyword", "logging", "math", "cmath", "numbers", "operator", "pathlib", "_pickle", "pickle",
            "posixpath", "ntpath", "queue", "random", "re", "reprlib", "statistics", "string", "struct",
            "textwrap", "threading", "time", "types", "typing", "typing_extensions", "unicodedata", "uuid",
            "warnings", "weakref", "zlib", "PIL.Image", "PIL.ImageChops", "PIL.ImageColor", "PIL.ImageDraw",
            "PIL.ImageEnhance", "PIL.ImageFilter", "PIL.ImageOps", "PIL.ImageStat", "albumentations", "cv2",
            "numpy", "pandas", "rekindle", "scipy.fft", "scipy.interpolate",
            "scipy.linalg", "scipy.ndimage", "scipy.signal", "scipy.sparse", "scipy.spatial", "scipy.special",
            "scipy.stats", "skimage.color", "skimage.exposure", "skimage.filters", "skimage.morphology",
            "skimage.transform", "skimage.util", "torch", "torchvision", "torchvision.datasets.cifar",
            "torchvision.datasets.fakedata", "torchvision.datasets.mnist", "torchvision.datasets.svhn",
            "torchvision.datasets.usps", "torchvision.datasets.vision", "xxhash",
        ),
        False,
    ),
    **dict.fromkeys(
        (
            "numpy.ctypeslib", "numpy.lib.npyio", "pandas.io", "torch.distributed",
            "torch.hub", "torch.jit", "torch.multiprocessing", "torch.package", "torch.serialization",
            "torch.utils.data.datapipes", "torchvision.datasets", "torchvision.io",
        ),
        True,
    ),
}  # fmt: skip
# Of these modules only the names that are here read nothing.
_HARMLESS = {
    "os": frozenset({"environ", "fspath", "getenv", "getpid", "path", "sep", "cpu_count"}),
    "posixpath": frozenset({"basename", "dirname", "join", "split", "splitext", "sep"}),
    "io": frozenset({"BytesIO", "StringIO", "_IOBase", "_BufferedIOBase", "_TextIOBase"}),
    "sys": frozenset({"argv", "maxsize", "platform", "version_info", "byteorder"}),
}
_module_of: Callable[[type], object] = type.__dict__["__module__"].__get__
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__
_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__


@cache
def _module_reads(module: str) -> bool:
    while module:
        if module in _MODULES:
            return _MODULES[module]
        module = module.rpartition(".")[0]
    return True


def _name_reads(name: str) -> bool:
    return name in _READING or name.startswith("read_")


def library_reads_files(module: object, name: str) -> bool:
    """Whether a function or class of a library's module may read files."""
    if type(module) is not str:
        return True
    harmless = _HARMLESS.get({"_io": "io", "posix": "os"}.get(module, module))
    return name not in harmless if harmless is not None else _name_reads(name) or _module_reads(module)


def class_reads_files(kind: type, is_looked_into: bool = True) -> bool:
    """Whether methods of a class may read files: those that no look sees, as a library's or C code's.

    A class of ours, or a script's, may say so itself, by `reads_files = True`.
    """
    return any(_base_reads_files(base, is_looked_into) for base in mro_of(kind))


def _base_reads_files(base: type, is_looked_into: bool) -> bool:
    if vars_of(base).get("reads_files") is True:
        return True
    module = _module_of(base)
    if _flags_of(base) & HEAP_TYPE and not (type(module) is str and IN_LIBRARY[module]):
        return not is_looked_into
    return library_reads_files(module, _name_of(base))


def code_reads_files(names: frozenset[str], imported: Iterable[str], reached: Iterable[object]) -> bool:
    """Whether a script's function may read files, by the names in it, and what it has imported or reaches."""
    return (
        any(map(_name_reads, names))
        or any(name not in _HARMLESS and is_installed_name(name) and _module_reads(name) for name in imported)
        or any(_used_reads_files(value, names, set()) for value in reached if type(value) is types.ModuleType)
    )


def _used_reads_files(module: types.ModuleType, names: frozenset[str], known: set[int]) -> bool:
    """Whether anything in a library's module that has one of these names may read files."""
    entries = types.ModuleType.__getattribute__(module, "__dict__")
    own = str(dict.get(entries, "__name__"))
    if not is_library(own) or id(module) in known:  # A script's own are looked into.
        return False
    known.add(id(module))
    harmless = _HARMLESS.get(own)
    if harmless is None and _module_reads(own):
        return True
    for name in names:
        if name not in entries:
            continue
        value = entries[name]
        if harmless is not None and name not in harmless:
            return True
        if type(value) is types.ModuleType:
            if _used_reads_files(value, names, known):
                return True
        elif isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            if library_reads_files(value.__module__ or own, value.__name__):
                return True
        elif isinstance(value, type) and class_reads_files(value):
            return True
    return False
