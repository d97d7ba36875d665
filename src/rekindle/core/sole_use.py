"""One thread at a time uses the global generators as its own: seeds them, draws, and puts them back.

What a thread waits for in its turn must not need one: a dataset without workers that waits for another
thread, which loads without workers as well, would wait for ever. A loader that it iterates over itself may
have worker threads: these have their turns while it waits for them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Turns:
    """Whose turn it is, and how many there were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner: int | None = None
        self.count = 0


class _OwnTurns(threading.local):
    depth = 0  # of turns within turns
    count = 0


_turns = _Turns()
_own = _OwnTurns()


@contextmanager
def sole_use() -> Iterator[None]:
    """A context in which no other thread is within such a one. There may be others within it."""
    depth = _own.depth
    if depth:
        _own.depth = depth + 1
        try:
            yield
        finally:
            _own.depth = depth
        return
    turns = _turns
    with turns.lock:
        try:
            turns.owner = threading.get_ident()
            turns.count, _own.count = turns.count + 1, _own.count + 1
            _own.depth = 1
            yield
        finally:
            _own.depth, turns.owner = 0, None


def has_turn() -> bool:
    """Whether this thread is within such a context."""
    return _own.depth > 0


@contextmanager
def turn_of_waiting_thread() -> Iterator[None]:
    """A context in which this thread has the turn of another one, which has it and waits for this one."""
    _own.depth += 1
    try:
        yield
    finally:
        _own.depth -= 1


def turns_of_others() -> int | None:
    """How many turns other threads have had; None during one.

    If two such numbers are equal, no other thread had one in between.
    """
    turns = _turns
    if turns.owner not in (None, threading.get_ident()):
        return None
    return turns.count - _own.count


def _after_fork() -> None:
    """No thread that may have been in its turn is there any more, apart from this one."""
    global _turns
    _turns = _Turns()
    _own.depth = _own.count = 0


os.register_at_fork(after_in_child=_after_fork)
