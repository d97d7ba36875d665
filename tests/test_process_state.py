"""Processes that run are told from those that have ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from rekindle.core.process_state import is_running


def forked(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


def test_this_process_and_its_parent_are_running() -> None:
    assert is_running(os.getpid())
    assert is_running(os.getppid())


def test_a_stopped_process_is_running_and_a_killed_one_is_not_even_before_it_is_waited_for() -> None:
    pid = forked(signal.pause)
    os.kill(pid, signal.SIGSTOP)
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # It has ended, and is a zombie.
    assert not is_running(pid)
    os.waitpid(pid, 0)
    assert not is_running(pid)


def test_a_name_that_looks_like_a_state_does_not_confuse() -> None:
    script = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) Z (b'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_running(process.pid)
        process.kill()


@pytest.mark.parametrize(("error", "running"), [(PermissionError, True), (ProcessLookupError, False)])
def test_a_process_of_somebody_else_counts_as_running(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError], running: bool
) -> None:
    def kill(pid: int, number: int) -> None:
        raise error

    monkeypatch.setattr(os, "kill", kill)
    assert is_running(1) is running
