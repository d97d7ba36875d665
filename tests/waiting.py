"""Waiting for what must come: a busy machine makes it late, and only what never comes is a failure."""

import os
import time

HANGS = 100.0  # seconds after which something that has not come never will


def eventually(condition):
    """Wait until a condition holds; a failure if it never does."""
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def exit_code_of(child):
    """The exit code of a forked process, once it has ended."""
    found = []

    def ended():
        pid, status = os.waitpid(child, os.WNOHANG)
        found.append(os.waitstatus_to_exitcode(status))
        return pid

    eventually(ended)
    return found[-1]
