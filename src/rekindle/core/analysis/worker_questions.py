"""Whether code of a script asks which worker it is in, as far as its names show."""

from __future__ import annotations

from types import FunctionType

from torch.utils.data import get_worker_info

from rekindle.core.analysis.bytecode import all_names, texts_of
from rekindle.core.analysis.followed_code import Follower
from rekindle.core.analysis.followed_values import Event, Read, Spent, Value
from rekindle.core.analysis.near_objects import near_objects
from rekindle.core.analysis.reached_functions import functions_among
from rekindle.core.interrupts import is_interrupt

# The same of processes and threads, of which every worker has its own.
_OF_PROCESSES = frozenset(
    {
        "_current_process", "_parent_process", "_worker_info", "current_process", "current_thread",
        "get_ident", "get_native_id", "getpid", "getppid", "main_thread", "parent_process",
    }
)  # fmt: skip
_INFO = "get_worker_info"
_SAME_IN_ALL = frozenset({"dataset", "num_workers"})
# Whether there is a worker at all: `if info is None`.
_TESTS = ("IS_OP", "JUMP_IF_", "POP_JUMP_", "POP_TOP", "TO_BOOL", "UNARY_NOT")


def asks_which_worker(*roots: object) -> bool:
    """Whether what code does may depend on which worker it runs in, other than by that worker's dataset."""
    near = [value for _, value in near_objects(*roots)]
    functions = [*functions_among(near)]
    is_reached = any(value is get_worker_info for value in near)
    asking = []
    for one in functions:
        names, there = all_names(one.__code__), one.__globals__
        if not names.isdisjoint(_OF_PROCESSES):
            return True
        if any(text.startswith("/proc/self") for text in texts_of(one.__code__)):
            return True
        if _INFO in names:
            asking.append(one)
        elif is_reached and any(there.get(name) is get_worker_info for name in names):
            return True  # under another name
    if is_reached and not asking:
        return True  # It is held.
    return any(map(_asks, asking))


def _asks(function: FunctionType) -> bool:
    """Whether code does more with the worker's facts than to read those that are the same in all."""
    follower = Follower(function.__globals__, traced=frozenset({_INFO}))
    code = function.__code__
    try:
        follower.follow(code, {name: Value(path=name) for name in code.co_varnames[: code.co_argcount]})
    except Exception as error:  # Code like none before: it may ask.
        if is_interrupt(error):
            raise
        return True
    return any(map(_is_question, follower.events))


def _is_question(event: Event) -> bool:
    match event:
        case Read(Value(of=Value(path="get_worker_info()"), name=name)):
            return name not in _SAME_IN_ALL
        case Spent(Value(path="get_worker_info()"), step):
            return not step.startswith(_TESTS)
        case Spent(Value(name="get_worker_info")):
            return True
    return False
