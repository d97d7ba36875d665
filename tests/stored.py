"""Samples put in a store, and how many of them are found."""

import multiprocessing
import os
import signal
import time

import numpy as np

from rekindle.reuse import Store
from rekindle.reuse.cache import disk_tier

SIZE = 60


def stores_on_disk(folder, monkeypatch):
    """Makes stores on disk only, with small segments."""
    monkeypatch.setattr(disk_tier, "_SEGMENT_BYTES", 20_000)

    def make(memory=0, **arguments):
        return Store(SIZE, memory=memory, disk=folder, **arguments)

    return make


def value_of(index, generation, nbytes=None):
    """The one right value of (sample, generation): drawn with these as the key."""
    nbytes = 500 + (index * 7919 + generation * 104729) % 3000 if nbytes is None else nbytes
    return np.random.Philox(key=[index, generation]).random_raw(nbytes // 8).view(np.uint8)


def is_right(value, index, generation):
    return np.array_equal(value, value_of(index, generation))


def fill(store, generation=0, ids=range(SIZE)):
    return [index for index in ids if store.put(index, generation, value_of(index, generation))]


def check(store, generation=0):
    """How many samples are found; every one that is found is right."""
    found = 0
    for index in range(SIZE):
        value = store.get(index, generation)
        if value is not None:
            assert is_right(value, index, generation)
            found += 1
    return found


def kill_writers(write, arguments, seconds):
    """Two processes that write at once, each with its arguments, killed after some time."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=own) for own in arguments]
    for writer in writers:
        writer.start()
    time.sleep(seconds)
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()


def files(tmp_path):
    return sorted(tmp_path.glob("*/*.segment"))
