"""A killed main process leaves nothing behind: no process, and nothing in memory that all processes share."""

import contextlib
import os
import time

from main_process import WAIT, main_process, processes_of
from waiting import eventually


def shared_files():
    """What is in /dev/shm, but for semaphores: other programs make and remove them all the time."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def test_a_killed_main_process_leaves_nothing(tmp_path):
    """For all three start methods at once, as starting takes long."""
    shared = shared_files()
    with contextlib.ExitStack() as stack:
        mains = [
            stack.enter_context(main_process(tmp_path, method, WAIT, executor))
            for method, executor in (
                ("fork", "processes"),
                ("fork", "auto"),
                ("spawn", "processes"),
                ("forkserver", "processes"),
            )
        ]
        for script in mains:
            assert script.stdout.readline() == "ready\n"
            assert len(processes_of(script)) >= 2
        time.sleep(0.5)
        for script in mains:
            script.kill()
            script.wait()
        for script in mains:
            eventually(lambda script=script: not processes_of(script))
    eventually(lambda: not shared_files() - shared)
