"""Interrupts at a chosen place within `next(loader)`: where Python looks for signals, at calls."""

import sys
from collections.abc import Iterator
from typing import Any

NEVER = 1 << 60  # a place that no call comes to
# Where an exception is not raised but printed: Python calls these when an object goes, and hypothesis's
# `gc_callback` when the garbage collector runs.
FINALIZERS = ("_end_lease", "_abandon", "__del__", "gc_callback")


class InterruptAt:
    """A profile function that raises KeyboardInterrupt at the n-th place where a signal could be handled."""

    def __init__(self, place: int) -> None:
        self.left = place

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or _in_a_finalizer(frame):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt


def _in_a_finalizer(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_name in FINALIZERS or frame.f_code.co_filename.endswith("weakref.py"):
            return True
        frame = frame.f_back
    return False


def ask(iterator: Iterator[Any], place: int) -> list[Any] | None:
    """The next batch in a list, an empty one at the end; None if it was interrupted at that place.

    A loop and not `next`, which is one more call: an interrupt behind it comes after the batch was given.
    """
    if place < NEVER:
        sys.setprofile(InterruptAt(place))
    try:
        for batch in iterator:
            return [batch]
        return []
    except KeyboardInterrupt:
        return None
    finally:
        sys.setprofile(None)
