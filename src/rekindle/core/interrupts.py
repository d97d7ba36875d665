"""Tells what a signal handler raised from what a dataset did: only the latter is an error of its batch.

Ctrl-C raises KeyboardInterrupt, which is no Exception. A script's own handler, for a time limit say, may
raise anything, wherever Python happens to be.

A dataset may limit its own time with a timer: that is an error of its sample. Whose a timer is shows in when
it was started: the script's runs when the dataset is called, the dataset's own is started within the call.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any

_TIMERS = {
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}


class DatasetCall(threading.local):
    """Whether a dataset is being called in this thread, and the handlers of timers that ran before.

    Whoever calls one sets `script_timers` to `running_timers()`, and then back to what it was: an assignment,
    in which no signal is handled.
    """

    script_timers: dict[int, object] | None = None  # by signal; None if no dataset is being called


dataset_call = DatasetCall()


def running_timers() -> dict[int, object]:
    """The handlers, by signal, of the timers that run."""
    return {
        number: signal.getsignal(number) for number, timer in _TIMERS.items() if signal.getitimer(timer)[0]
    }


def is_interrupt(error: BaseException) -> bool:
    """Whether the exception, or its cause, came from a signal handler of the script that is installed now.

    Ask before an error is put aside, whatever its class: many handlers raise a TimeoutError, an OSError.
    """
    if error.__cause__ is None and (error.__traceback__ is None or error.__traceback__.tb_next is None):
        return False  # Raised where it was caught: a handler would have a frame of its own.
    handlers = set(_handler_codes())
    cause: BaseException | None = error
    seen: list[BaseException] = []  # Nothing keeps a cause from being its own.
    while cause is not None and not any(cause is one for one in seen):
        seen.append(cause)
        traceback = cause.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code in handlers:
                return True
            traceback = traceback.tb_next
        # Not `__context__`: a script that handles an interrupt may go on with the loop while it does.
        cause = cause.__cause__
    return False


def _handler_codes() -> Iterator[CodeType]:
    timers = dataset_call.script_timers
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if timers is not None and number in _TIMERS:
            handler = timers.get(number)
        while isinstance(handler, partial):
            handler = handler.func
        if callable(handler):
            handler = getattr(handler, "__func__", handler)  # of a method
            code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
            if isinstance(code, CodeType):
                yield code
