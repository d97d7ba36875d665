"""Scripts in processes of their own that need not import torch: forked off a process that has done just that.

It is what takes longest in a script's life. Nothing else is there already: Rekindle, numba and all others are
imported by the script itself. What depends on how Python starts (options, PYTHONHASHSEED) is not for this.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from functools import cache
from pathlib import Path

_MOST = 1 << 20  # bytes of a request: the command, the environment, the folder
_NUMBER = 16  # bytes of a number that is sent


class Script:
    """A script that runs, as `subprocess.Popen` shows it, with texts."""

    def __init__(self, numbers, stdout, stderr):
        self._numbers, self.stdout, self._stderr = numbers, stdout, stderr
        self.pid, self.returncode = self._number(), None

    def _number(self):
        return int(os.read(self._numbers, _NUMBER))

    def wait(self):
        """The exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(self._number())
        return self.returncode

    def kill(self):
        """Kill it, if it has not ended."""
        if self.returncode is None and not select.select([self._numbers], [], [], 0)[0]:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self):
        """The rest of its output, and its errors, when whoever could write any has ended."""
        out = self.stdout.read()
        self.wait()
        self._stderr.seek(0)
        return out, self._stderr.read()

    def close(self):
        self.kill()
        self.wait()
        self.stdout.close()
        os.close(self._numbers)


@contextlib.contextmanager
def started(*command, text="", env=None, cwd=None):
    """A script that runs: a file, or `-c` and a program, or `-` for `text`; in a session of its own.

    It is killed in the end, if it has not ended.
    """
    output, theirs = os.pipe()
    numbers, status = os.pipe()
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as errors:
        given.write(text)
        given.seek(0)
        request = json.dumps([list(map(str, command)), {**(env or os.environ)}, str(cwd or os.getcwd())])
        files = [given.fileno(), theirs, errors.fileno(), status]
        socket.send_fds(_server(), [request.encode()], files)
        os.close(theirs)
        os.close(status)
        script = Script(numbers, open(output), errors)  # noqa: SIM115
        with contextlib.closing(script):
            yield script


def run(*command, **settings):
    """A script that has ended, with its exit status, output and errors."""
    with started(*command, **settings) as script:
        out, err = script.communicate()
    return subprocess.CompletedProcess(command, script.returncode, out, err)


@cache
def _server():
    """The way to the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
    atexit.register(_end, ours, process, os.getpid())
    return ours


def _end(ours, process, owner):
    if os.getpid() == owner:  # and not a fork of it
        ours.close()
        process.kill()
        process.wait()


def _next_request(requests):
    """What a script is to run, in a process of its own: this one stays until nobody can ask for any more."""
    while True:
        request, files, _, _ = socket.recv_fds(requests, _MOST, 4)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                return json.loads(request), files
            *theirs, status = files
            for file in theirs:  # Who reads them reads to the end of the script.
                os.close(file)
            os.write(status, f"{pid:{_NUMBER}}".encode())
            os.write(status, f"{os.waitpid(pid, 0)[1]:{_NUMBER}}".encode())
            os._exit(0)
        for file in files:
            os.close(file)


def _become(command, environment, folder, files):
    """Make this process one that has just started with a command; the code that it is to run."""
    os.setsid()
    os.chdir(folder)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    first, *rest = command
    sys.argv = [first, *(rest[1:] if first == "-c" else rest)]
    sys.path[0] = str(Path(first).resolve().parent) if first not in ("-c", "-") else ""
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        return main, compile(rest[0], "<string>", "exec")
    if first == "-":
        return main, compile(sys.stdin.read(), "<stdin>", "exec")
    main.__file__ = first
    return main, compile(Path(first).read_bytes(), first, "exec")


if __name__ == "__main__":
    import numpy as np
    import torch  # noqa: F401

    gc.freeze()  # Collecting what is here already would touch, and so copy, every page of it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for whoever waits for a script.
    given, files = _next_request(socket.socket(fileno=int(sys.argv[1])))
    np.random.seed()  # As if it were imported now.
    main, code = _become(*given, files)
    exec(code, vars(main))
