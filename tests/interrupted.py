"""Interrupts at a chosen place within `next(loader)`: where Python looks for signals, at calls."""

import signal
import sys
from collections.abc import Iterator
from typing import Any

NEVER = 1 << 60  # a place that no call comes to
# Where an exception is not raised but printed: Python calls these when an object goes, and hypothesis's
# `gc_callback` when the garbage collector runs.
FINALIZERS = ("_end_lease", "_abandon", "__del__", "gc_callback")
FILES_OF_FINALIZERS = ("weakref.py", "multiprocessing/util.py")
FILES_THAT_SWALLOW = ("multiprocessing/popen_fork.py",)  # any OSError


class TimeLimitError(TimeoutError):
    """What a script's own signal handler raises: an OSError, as what a system call fails with."""


def _exceed_time_limit(*_: object) -> None:
    raise TimeLimitError


class InterruptAt:
    """A profile function that raises at the n-th place where a signal could be handled.

    KeyboardInterrupt, as Ctrl-C does, or `TimeLimitError`, by a signal handler. `left` is 0 if it has.
    """

    def __init__(self, place: int, kind: type[BaseException]) -> None:
        self.left, self.kind = place, kind

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or _is_never_raised(frame):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            if self.kind is TimeLimitError:
                signal.signal(signal.SIGUSR1, _exceed_time_limit)
                signal.raise_signal(signal.SIGUSR1)
            raise self.kind


def _is_never_raised(frame: Any) -> bool:
    """Whether Python itself keeps what is raised here from the script."""
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_code.co_name in FINALIZERS or file.endswith((*FILES_OF_FINALIZERS, *FILES_THAT_SWALLOW)):
            return True
        frame = frame.f_back
    return False


def ask(
    iterator: Iterator[Any], place: int, kind: type[BaseException] = KeyboardInterrupt
) -> list[Any] | None:
    """The next batch in a list, an empty one at the end; None if it was interrupted at that place.

    A loop and not `next`, which is one more call: an interrupt behind it comes after the batch was given.
    An interrupt is never lost: it is raised, or Python has printed it.
    """
    interrupt, printed = InterruptAt(place, kind), list[bool]()
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: printed.append(True)
    if place < NEVER:
        sys.setprofile(interrupt)
    asked: list[Any] = []
    try:
        for batch in iterator:
            asked = [batch]
            break
    except kind:
        return None
    finally:
        sys.setprofile(None)
        sys.unraisablehook = hook
    assert interrupt.left or printed, f"the interrupt at call {place} was swallowed"
    return asked
