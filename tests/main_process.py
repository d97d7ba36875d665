"""Training scripts in processes of their own, with workers that are busy for ever: what is left of them?"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from functools import partial
from pathlib import Path

from mortal import FOREVER

SCRIPT = """
    import os, sys, time
    import torch
    import rekindle as rk

    class Sleeps(torch.utils.data.Dataset):
        releases_gil = draws_nothing = True  # With executor="auto", workers are threads of one process.

        def __len__(self):
            return 400
        def __getitem__(self, index):
            if index >= 8:
                time.sleep(FOREVER)
            return torch.full((1000,), index)

    if __name__ == "__main__":
        method, executor = sys.argv[1:]
        loader = rk.DataLoader(
            Sleeps(), 4, num_workers=2, seed=1, executor=executor, multiprocessing_context=method
        )
        iterator = iter(loader)
"""
# A script's last lines, which print "ready" when the script has come that far.
WAIT = """
        next(iterator)
        print("ready", flush=True)
        next(iterator), next(iterator)
"""
WAIT_FROM_THE_START = """
        print("ready", flush=True)
        next(iterator), next(iterator), next(iterator)
"""
WAIT_AND_CATCH = """
        print("ready", flush=True)
        try:
            next(iterator), next(iterator), next(iterator)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""
LEAVE = """
        next(iterator)
        print("ready", flush=True)
        time.sleep(0.3)
"""


@contextlib.contextmanager
def main_process(tmp_path, method, then, executor="processes"):
    """A training script of its own that has got a batch, and whose workers are busy for ever."""
    script = tmp_path / f"train_{method}.py"
    script.write_text(textwrap.dedent(SCRIPT + then).replace("FOREVER", str(FOREVER)))
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, str(script), method, executor],
        env={**os.environ, "REKINDLE_TEST": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # A shell's background ignores it.
    )
    try:
        yield process, mark
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def marked(mark):
    """The processes that a script of ours started, itself included."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found
