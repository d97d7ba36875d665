"""Kernels that can wait are compiled by a process beside the training, for this run and all later ones.

What a first batch needs is compiled before it. Of what only makes batches cheaper, that would be the longest
part of a first start. So loading begins without; if it goes on for some seconds, a process of the lowest
priority compiles the rest, and whoever waits for it finds it on disk. It ends with this process.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys

from rekindle.core.compiled_code import keeps_compiled_code

_START_AFTER = 5.0  # seconds that an epoch has gone on: shorter scripts gain nothing
_LOOK_EVERY = 5.0  # whether the process has ended
_PROGRAM = """
import os, sys
sys.path[:] = {path!r}
os.nice(19)
from importlib import import_module
from rekindle.core.process_state import end_with_parent
end_with_parent()
if os.getppid() == {parent}:
    for module, function, arguments in {wanted!r}:
        getattr(import_module(module), function)(*arguments)
"""

_log = logging.getLogger("rekindle")
_wanted: dict[tuple[str, str, tuple[bool, ...]], None] = {}  # in order; not asked for so far
_asked: set[tuple[str, str, tuple[bool, ...]]] = set()
_processes: list[subprocess.Popen[bytes]] = []


def compile_later(module: str, function: str, *arguments: bool) -> None:
    """Have another process call a function that compiles kernels: once, if loading goes on for long."""
    call = module, function, arguments
    if call not in _asked:
        _wanted[call] = None


def first_look(now: float) -> float:
    """When `look_after` is to be called first by an epoch that begins now."""
    return now + _START_AFTER if _wanted or _processes else math.inf


def look_after(now: float) -> float:
    """Start the process, or see whether it has ended; returns when to call this again."""
    if _processes and _processes[0].poll() is not None:
        ended = _processes.pop()
        if ended.returncode:
            _log.info("kernels could not be compiled in the background: exit code %d", ended.returncode)
    if _wanted and not _processes and keeps_compiled_code():
        calls = [*_wanted]
        _asked.update(calls)
        _wanted.clear()
        _start(_PROGRAM.format(path=[*map(str, sys.path)], parent=os.getpid(), wanted=calls))
    return now + _LOOK_EVERY if _processes else math.inf


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
    for process in _processes:
        process.returncode = 0  # so that no warning says it is still running: it is not this process's child
    _processes.clear()


os.register_at_fork(after_in_child=_forget)
