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


def kill_writers(writers, draw):
    """Processes that write, each killed at any moment; a writer is an iterator, which goes on by a record.

    The moment is some records from the start, and a little later, on a busy machine too. At times there is
    no record yet: the writer begins.
    """
    context = multiprocessing.get_context("fork")
    begun = []
    for writer in writers:
        records, written = os.pipe()
        process = context.Process(target=_write, args=(writer, written))
        process.start()
        os.close(written)
        begun.append((process, records))
    for process, records in begun:
        for _ in range(draw.choice([0, *range(60)])):
            assert os.read(records, 1), "a writer has ended"
        time.sleep(draw.random() * 0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        os.close(records)


def _write(writer, written):
    for _ in writer:
        os.write(written, b".")


def files(tmp_path):
    return sorted(tmp_path.glob("*/*.segment"))
