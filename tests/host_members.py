"""Processes that share a cache of the host."""

import multiprocessing
import os
import signal
import time

import numpy as np

from mortal import FOREVER
from rekindle.core.memfd import find_memory_files
from rekindle.reuse import Store
from rekindle.reuse.host_cache import open_for_ranks
from waiting import HANGS

FORK = multiprocessing.get_context("fork")
SIZE = 40


def value_of(index, generation):
    return np.random.Philox(key=[index, generation]).random_raw(40 + index).view(np.uint8)


def is_right(value, index, generation):
    return np.array_equal(value, value_of(index, generation))


def open_store(name, begun=None, **settings):
    """The store of a name, as a rank opens it."""
    make = lambda **given: Store(SIZE, memory=1 << 20, **settings, **given)  # noqa: E731
    return open_for_ranks(name, make, begun or (lambda store: None))


class Member:
    """A process that has opened a store, and does what it is told."""

    def __init__(self, name, **settings):
        self._pipe, pipe = FORK.Pipe()
        self.process = FORK.Process(target=self._run, args=(pipe, name, settings), daemon=True)
        self.process.start()
        pipe.close()

    @staticmethod
    def _run(pipe, name, settings):
        made = []
        with open_store(name, made.append, **settings) as store:
            pipe.send(bool(made))
            while True:
                what, *arguments = pipe.recv()
                if what == "end":
                    break
                if what == "hang in a write":
                    store._shared.arrays["control"][0] = 1  # dirty
                    store._shared.arrays["stamp"][3] |= 1  # being written
                    store._shared.lock.__enter__()
                    pipe.send(True)
                    time.sleep(FOREVER)
                result = getattr(store, what)(*arguments)
                pipe.send(list(result) if what == "order_of" else result)

    def answer(self):
        assert self._pipe.poll(HANGS), "a member of the cache hangs"
        return self._pipe.recv()

    def ask(self, *what):
        self._pipe.send(what)
        return self.answer()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def end(self):
        self._pipe.send(("end",))
        self.process.join()


def left_behind(name):
    """What other processes could still find of a cache."""
    with open("/proc/net/unix") as sockets:
        return [*find_memory_files(name)], [line for line in sockets if name in line]
