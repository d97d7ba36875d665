"""Processes of several workers that die cost no sample, and never a neighbour's name."""

import os
import signal
import sys
import threading

import pytest
import torch

import rekindle as rk
from covering import each_value
from declared import Declared
from mortal import in_worker, kill, ready_workers

pytestmark = pytest.mark.timeout(120)


class Deadly(Declared):
    """One sample kills whoever loads it, while others are being loaded beside it."""

    def __init__(self, deadly, how):
        super().__init__(400)  # The next epoch's are not loaded beside this one's.
        self.deadly, self.how = deadly, how

    def __getitem__(self, index):
        if index == self.deadly and in_worker():
            threading.Event().wait(0.02)  # Time for others to begin.
            if self.how is None:
                sys.exit(3)
            os.kill(os.getpid(), self.how)
            threading.Event().wait()  # Another thread may be the one that gets the signal.
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("sample", "how"),
    each_value([(0, 4), (29, 4), (29, 8)], [signal.SIGKILL, signal.SIGSEGV, None]),
    ids=str,
)
def test_a_sample_that_kills_three_processes_is_named(sample, how):
    deadly, workers = sample
    loader = rk.DataLoader(Deadly(deadly, how), 16, num_workers=workers, seed=1)
    seen = []

    def train():
        for _, index in loader:
            seen.extend(index.tolist())

    with pytest.raises(rk.WorkerError, match=rf"sample {deadly}\b.*killed 3 workers"):
        train()
    assert seen == list(range(deadly // 16 * 16))
    assert loader.report().replaced_workers == 3


class DiesOnce(Declared):
    """Some samples end their process when they are loaded for the first time ever."""

    def __init__(self, folder):
        super().__init__(200)
        self.folder = folder

    def __getitem__(self, index):
        mark = self.folder / str(index)
        if index % 20 == 0 and in_worker() and not mark.exists():
            mark.touch()
            os._exit(3)
        return super().__getitem__(index)


def test_neighbours_of_what_kills_are_never_blamed(tmp_path):
    """Of ten deaths, many samples have been beside one; none is an error, and none is lost."""
    loader = rk.DataLoader(DiesOnce(tmp_path), 20, num_workers=4, seed=1)
    assert torch.cat([index for _, index in loader]).tolist() == list(range(200))
    assert 1 <= loader.report().replaced_workers <= 10
    assert len(list(tmp_path.iterdir())) == 10


@pytest.mark.parametrize(
    ("how", "in_order"),
    [
        (signal.SIGKILL, True),
        (signal.SIGKILL, False),
        pytest.param(signal.SIGSTOP, True, marks=pytest.mark.slow),
    ],
)
def test_all_processes_killed_at_once_cost_no_sample(how, in_order):
    loader = rk.DataLoader(Declared(400), 8, num_workers=6, in_order=in_order, prefetch_factor=1)
    iterator = iter(loader)
    found = [next(iterator)]
    for pid in ready_workers(iterator):
        kill(pid, how)
    found += list(iterator)
    indices = torch.cat([index for _, index in found]).tolist()
    assert (indices if in_order else sorted(indices)) == list(range(400))
    assert all(bool((x == y[:, None]).all()) for x, y in found)
    assert loader.report().replaced_workers == 2


class DiesAtStart(Declared):
    def __setstate__(self, state):
        os._exit(7)


@pytest.mark.slow
def test_a_process_that_dies_at_its_start_three_times_is_an_error():
    loader = rk.DataLoader(DiesAtStart(), 8, num_workers=4, multiprocessing_context="spawn")
    with pytest.raises(rk.WorkerError, match="before it could load anything"):
        list(loader)
