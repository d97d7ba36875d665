"""Compiled kernels: made when they are first needed, kept on disk, loaded from where nobody else can write.

Numba takes about half a second to compile a kernel for one set of types, and loads it in milliseconds from
then on. So each is compiled for the types that a pipeline has, when it has them, and for no others.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rekindle.core.ownership import is_trusted
from rekindle.core.patience import PATIENCE
from rekindle.errors import ArgumentError

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

Function = TypeVar("Function", bound=Callable[..., object])

_PACKAGE: Final = __name__.partition(".")[0]

# An option for functions that slice arrays in their loops. Numba counts references to each slice, by atomic
# additions that take as long as the work on a short row. With this it does not, and nothing can be allocated.
NO_ALLOCATION: Final[dict[str, bool]] = {"_nrt": False}


def check_compiled_code() -> None:
    """ArgumentError if NUMBA_CACHE_DIR is a folder that somebody else can write to.

    Without that variable, numba uses `__pycache__` beside the source, if the user can write there, who could
    then change the source as well, or else the user's own cache folder.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR")
    try:
        state = os.stat(folder) if folder else None
    except OSError:  # numba makes it.
        return
    if state is not None and not is_trusted(state):
        raise ArgumentError(
            f"NUMBA_CACHE_DIR is {folder!r}, which belongs to the user {state.st_uid} (mode "
            f"{stat.S_IMODE(state.st_mode):04o}): compiled code would be loaded from there, and others can "
            "change it. Set it to a folder of your own that nobody else can write to, or unset it."
        )


def kernel(
    signature: Callable[..., Signature], **options: object
) -> Callable[[Function], Callable[..., Function]]:
    """A decorator of functions that numba compiles, which run without the GIL and check no index.

    What it returns is called with the arguments of `signature`, which choose the types, and gives the
    function compiled for them: on the first call compiled, or loaded from disk.
    """

    def decorate(function: Function) -> Callable[..., Function]:
        made: dict[tuple[object, ...], Function] = {}

        @wraps(function)
        def compiled(*variant: object) -> Function:
            found = made.get(variant)
            if found is None:
                with _compiling:
                    found = made.get(variant)
                    if found is None:
                        found = made[variant] = _compile(function, lambda: signature(*variant), options)
            return found

        return compiled

    return decorate


class NotCompiledError(Exception):
    """A kernel that would have to be compiled, where that is not wanted."""


class _Loading(threading.local):
    only = False  # Nothing is to be compiled.


class _Kept:
    compiled = True  # There is a folder for what is compiled.


@contextmanager
def only_loading() -> Iterator[None]:
    """Kernels that this thread asks for are loaded from disk; NotCompiledError if one is not there yet."""
    before, _loading.only = _loading.only, True
    try:
        yield
    finally:
        _loading.only = before


def _compile(function: Function, signature: Callable[[], Signature], options: dict[str, object]) -> Function:
    check_compiled_code()
    _name_by_sources(function)
    if _loading.only and not _may_be_on_disk(Path(function.__code__.co_filename), function.__qualname__):
        raise NotCompiledError
    from rekindle.core.compiler import event, numba

    settings: dict[str, Any] = {"nogil": True, **options}
    # The listener is not told of what is loaded from disk.
    with event.install_listener("numba:compile", _listener()), PATIENCE.during("loading compiled kernels"):
        try:
            compiled: Any = numba.njit(signature(), cache=True, **settings)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            _kept.compiled = False  # Neither the folder of the package nor the user's can be written to.
            if _loading.only:
                raise NotCompiledError from error
            compiled = numba.njit(signature(), **settings)(function)
    made: Function = compiled
    return made


def keeps_compiled_code() -> bool:
    """Whether what is compiled is found by other processes, as far as is known."""
    return _kept.compiled


def check_on_disk(module: str) -> None:
    """NotCompiledError if nothing is to be compiled, and no kernel of this module is on disk.

    For a module that needs numba: without importing it.
    """
    found = find_spec(module) if _loading.only and module not in sys.modules else None
    if found is not None and found.origin is not None and not _may_be_on_disk(Path(found.origin), "*"):
        raise NotCompiledError


def _may_be_on_disk(source: Path, name: str) -> bool:
    """Whether to ask numba, which takes most of a second to load: not if there is no file of this name."""
    if "numba" in sys.modules or Path(".numba_config.yaml").exists():
        return True
    given = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(given) if given else source.parent / "__pycache__"
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        return True  # It may be kept elsewhere.
    pattern = f"{source.stem}.{name}-*.nbi"
    return any(folder.glob(f"*/{pattern}" if given else pattern))


def _name_by_sources(function: Any) -> None:
    """Add a hash to a function's name, by which numba finds it on disk, if code of other files is part of it.

    Numba compiles again what is in a file that was changed, and not what calls it from another file.
    """
    others = sorted(_sources(function) - {function.__code__.co_filename})
    if others and not hasattr(function, "named_by_sources"):
        content = b"".join(Path(file).read_bytes() for file in others)
        function.__qualname__ += f"_{hashlib.sha256(content).hexdigest()[:12]}"
        function.named_by_sources = True


def _sources(function: Any) -> set[str]:
    """The files of the package that a function, and all that it calls or names, are in."""
    found, functions, left = set[str](), set[Any](), [function]
    while left:
        one = left.pop()
        if one in functions:
            continue
        functions.add(one)
        found.add(one.__code__.co_filename)
        for name in one.__code__.co_names:
            value = one.__globals__.get(name)
            value = getattr(value, "py_func", value)  # of a function that is compiled
            module = sys.modules.get(getattr(value, "__module__", None) or "")
            if module is None or module.__name__.partition(".")[0] != _PACKAGE:
                found.update(_files_that_give(name, value, one.__code__.co_filename))
                continue
            if isinstance(value, FunctionType):
                left.append(value)
            else:  # An enumeration, say.
                found.add(str(module.__file__))
    return found


def _files_that_give(name: str, value: object, file: str) -> Iterator[str]:
    """The files of the package that a file takes a constant from: it does not say itself where it is from."""
    if value is not None and not isinstance(value, ModuleType):
        for module in _imported(file):
            if getattr(module, name, None) is value:
                yield str(module.__file__)


@cache
def _imported(file: str) -> list[ModuleType]:
    """The modules of the package that a file imports names from."""
    names = re.findall(rf"^from ({_PACKAGE}[\w.]*) import", Path(file).read_text(), re.MULTILINE)
    return [sys.modules[name] for name in names if name in sys.modules]


@cache
def _listener() -> Any:
    from numba.core import event

    class Compilations(event.Listener):
        def on_start(self, event: object) -> None:
            if _loading.only:
                raise NotCompiledError
            how_often = (
                "once on this machine"
                if _kept.compiled
                else "at every start, since no folder can be written to: set NUMBA_CACHE_DIR to one"
            )
            PATIENCE.start(f"compiling kernels, {how_often}")

        def on_end(self, event: object) -> None:
            if not _loading.only:  # else it did not start
                PATIENCE.stop()

    return Compilations()


_compiling = threading.RLock()
_loading = _Loading()
_kept = _Kept()


def _forget_other_threads() -> None:
    """In a child process, the thread that was compiling does not exist."""
    global _compiling
    _compiling = threading.RLock()


os.register_at_fork(after_in_child=_forget_other_threads)
