"""Where compiled code is loaded from: numba caches it, and whoever can write to that folder can run code."""

from __future__ import annotations

import os
import stat

from rekindle.core.ownership import is_trusted
from rekindle.errors import ArgumentError


def check_compiled_code() -> None:
    """ArgumentError if NUMBA_CACHE_DIR is a folder that somebody else can write to.

    Without that variable, numba uses `__pycache__` beside the source, if the user can write there, who could
    then change the source as well, or else the user's own cache folder.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR")
    try:
        state = os.stat(folder) if folder else None
    except OSError:  # numba makes it.
        return
    if state is not None and not is_trusted(state):
        raise ArgumentError(
            f"NUMBA_CACHE_DIR is {folder!r}, which belongs to the user {state.st_uid} (mode "
            f"{stat.S_IMODE(state.st_mode):04o}): compiled code would be loaded from there, and others can "
            "change it. Set it to a folder of your own that nobody else can write to, or unset it."
        )
