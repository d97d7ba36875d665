"""Kernels that can wait are compiled by a process beside the training, for this run and all later ones.

What a first batch needs is compiled before it. Of what only makes batches cheaper, that would be the longest
part of a first start. So loading begins without, by NumPy and OpenCV, with the same results; if it goes on, a
process compiles the rest, at the lowest priority if that makes little difference, and whoever waits for it
finds it on disk. It ends with this process.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias, TypeVar, cast

from rekindle.core.compiled_code import NotCompiledError, keeps_compiled_code, only_loading

Function = TypeVar("Function", bound=Callable[..., object])
_Variant: TypeAlias = tuple[bool | str, ...]
_Kernel: TypeAlias = tuple[Callable[..., Callable[..., object]], _Variant]
_Call: TypeAlias = tuple[str, str, _Variant]  # module, function, arguments

_START_AFTER = 5.0  # seconds that loading has gone on: shorter scripts gain nothing
_START_SOON_AFTER = 0.5  # if batches take much longer without
_LOOK_EVERY = 5.0  # whether the process has ended
_RETRY_AFTER = 2.0  # seconds until a kernel is looked for on disk again
_PROGRAM = """
import os, sys
sys.path[:] = {path!r}
from importlib import import_module
from rekindle.core.process_state import end_with_parent
end_with_parent()
if os.getppid() == {parent}:
    for module, function, arguments in {soon!r}:
        getattr(import_module(module), function)(*arguments)
    os.nice(19)
    for module, function, arguments in {later!r}:
        getattr(import_module(module), function)(*arguments)
"""

_log = logging.getLogger("rekindle")
_wanted: dict[_Call, bool] = {}  # whether soon; not asked for so far
_asked: set[_Call] = set()
_running: list[_Call] = []  # what the process has been asked for
_loaded: dict[_Kernel, Callable[..., object]] = {}
_retry_at: dict[_Kernel, float] = {}  # for those that were not on disk
_processes: list[subprocess.Popen[bytes]] = []
_began: list[float] = []  # when the first epoch did that goes without kernels; else empty


def compiled_or_later(
    kernel: Callable[..., Function], *variant: bool | str, soon: bool = False
) -> Function | None:
    """The kernel if it has been compiled on this machine; else None, and it is compiled if loading goes on.

    `soon` is for one without which batches take much longer.
    """
    key = kernel, variant
    found = _loaded.get(key)
    if found is None:
        now = time.monotonic()
        if now < _retry_at.get(key, 0.0):
            return None
        try:
            with only_loading():
                found = _loaded[key] = kernel(*variant)
            _retry_at.pop(key, None)
        except NotCompiledError:
            if not soon or can_be_left_to_another():
                _retry_at[key] = now + _RETRY_AFTER
                compile_later(kernel.__module__, kernel.__name__, *variant, soon=soon)
                return None
            found = _loaded[key] = kernel(*variant)  # No other process can do it for this one.
    return cast(Function, found)


def compile_later(module: str, function: str, *arguments: bool | str, soon: bool = False) -> None:
    """Have another process call a function that compiles kernels: once, if loading goes on."""
    call = module, function, arguments
    if call not in _asked:
        _wanted[call] = soon or _wanted.get(call, False)


def load_compiled() -> None:
    """Load what has been compiled meanwhile: before there are workers, which would each do it."""
    for kernel, variant in [*_retry_at]:
        compiled_or_later(kernel, *variant)


def compile_now() -> None:
    """Compile all that was asked for and not begun, in this process."""
    for module, function, arguments in [*_wanted]:
        getattr(import_module(module), function)(*arguments)
        _wanted.pop((module, function, arguments), None)
    _retry_at.clear()


def first_look(now: float) -> float:
    """When `look_after` is to be called first by an epoch that begins now."""
    if not _wanted and not _processes:
        return math.inf
    _began.append(now)
    del _began[1:]  # Epochs may be short: it counts from the first one on.
    return max(now, _began[0] + (_START_SOON_AFTER if any(_wanted.values()) else _START_AFTER))


def look_after(now: float) -> float:
    """Start the process, or see whether it has ended; returns when to call this again."""
    if _processes and _processes[0].poll() is not None:
        ended = _processes.pop()
        if ended.returncode < 0:  # Killed, with the thread that started it, say.
            _asked.difference_update(_running)
        elif ended.returncode:
            _log.warning("kernels could not be compiled in the background: exit code %d", ended.returncode)
    if _wanted and not _processes and can_be_left_to_another():
        _asked.update(_wanted)
        _running[:] = _wanted
        soon = [call for call, is_soon in _wanted.items() if is_soon]
        later = [call for call, is_soon in _wanted.items() if not is_soon]
        _wanted.clear()
        _start(_PROGRAM.format(path=[*map(str, sys.path)], parent=os.getpid(), soon=soon, later=later))
    return now + _LOOK_EVERY if _processes else math.inf


def can_be_left_to_another() -> bool:
    """Whether there is a Python to start, and a folder where this one finds what it has compiled."""
    return bool(sys.executable) and not getattr(sys, "frozen", False) and keeps_compiled_code()


def _start(program: str) -> None:
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the script.
        )
    except OSError as error:  # Batches cost more without: nothing else.
        _log.info("kernels could not be compiled in the background: %s", error)
    else:
        _processes.append(process)


def _forget() -> None:
    """In a forked process: what was asked for is the other's business."""
    _asked.update(_wanted)
    _wanted.clear()
    _began.clear()
    for process in _processes:
        process.returncode = 0  # so that no warning says it is still running: it is not this process's child
    _processes.clear()


def _end() -> None:
    """At the end of this process: whoever loads next begins again."""
    for process in _processes:
        process.kill()
        process.wait()


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)
