"""Waiting for what must come: a busy machine makes it late, and only what never comes is a failure."""

import time

HANGS = 100.0  # seconds after which something that has not come never will


def eventually(condition):
    """Wait until a condition holds; a failure if it never does."""
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
