"""Training scripts in processes of their own, with workers that are busy for ever: what is left of them?"""

import contextlib
import os
import signal
import textwrap
from pathlib import Path

import warm_python
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
    path = tmp_path / f"train_{method}.py"
    path.write_text(textwrap.dedent(SCRIPT + then).replace("FOREVER", str(FOREVER)))
    with warm_python.started(path, method, executor) as script:
        try:
            yield script
        finally:
            for pid in processes_of(script):
                os.kill(pid, signal.SIGKILL)


def processes_of(script):
    """The processes that a script of ours started, itself included: its session."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and _session(entry) == script.pid:
                found.add(int(entry.name))
    return found


def _session(entry):
    _, _, fields = (entry / "stat").read_text().rpartition(")")
    state, _, _, session, *_ = fields.split()
    return None if state == "Z" else int(session)
