"""Tells what a signal handler raised from what a dataset did: only the latter is an error of its batch.

Ctrl-C raises KeyboardInterrupt, which is no Exception. A script's own handler, for a time limit say, may
raise anything, wherever Python happens to be.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any


def is_interrupt(error: BaseException) -> bool:
    """Whether the exception came from a signal handler that is installed now."""
    handlers = set(_handler_codes())
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _handler_codes() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        if callable(handler):
            handler = getattr(handler, "__func__", handler)  # of a method
            code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
            if isinstance(code, CodeType):
                yield code
