"""Which line of a script a warning is about, whatever stands between it and us."""

from __future__ import annotations

import sys

# Between a script and us there may be a framework, which calls the loader for it.
_BETWEEN = frozenset(
    {
        "accelerate", "contextlib", "functools", "lightning", "pytorch_lightning", "rekindle", "torch",
        "transformers",
    }
)  # fmt: skip


def stacklevel_of_script() -> int:
    """The `stacklevel` with which the function that asks shows a warning at the script's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    return level


def _is_between(module: object) -> bool:
    return type(module) is str and module.partition(".")[0] in _BETWEEN
