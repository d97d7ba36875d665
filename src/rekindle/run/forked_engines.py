"""What a process that the script forks must leave alone: engines, whose workers answer to the main process.

The child has copies of them, and of the pipes. What it read there, the main process would wait for.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class _Engine(Protocol):
    closed: bool


_engines: weakref.WeakSet[_Engine] = weakref.WeakSet()


def close_in_children(engine: _Engine) -> None:
    """Let an engine be closed in each process that is forked from now on, and only there."""
    _engines.add(engine)


def _close_all() -> None:
    for engine in [*_engines]:
        engine.closed = True


os.register_at_fork(after_in_child=_close_all)
