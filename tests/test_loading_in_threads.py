"""Loaders without workers, each in a thread of its own: the global generators belong to one at a time."""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import rekindle as rk
from rekindle.core import global_rng
from rekindle.run import code_findings
from same import same
from waiting import HANGS, exit_code_of


class Draws(Dataset):
    """Other threads have their chance between two draws."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        first = torch.rand(2)
        time.sleep(0.0003)
        return index, torch.cat([first, torch.rand(2)]), np.random.rand(), random.random()


class Stream(IterableDataset):
    def __iter__(self):
        dataset = Draws()
        return (dataset[index] for index in range(len(dataset)))


def states():
    return [torch.get_rng_state(), np.random.get_state(), random.getstate()]


def together(*functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(function) for function in functions]
        return [one.result(HANGS) for one in running]


@pytest.mark.parametrize(
    ("make", "options"),
    [(Draws, {}), (Draws, {"num_workers": 2, "executor": "threads"}), (Stream, {})],
)
def test_loaders_of_two_threads_have_the_batches_that_each_has_alone(make, options):
    def load(seed, **more):
        return list(rk.DataLoader(make(), 10, seed=seed, **more))

    alone, before = [load(1), load(2)], states()
    assert same(together(lambda: load(1), lambda: load(2, **options)), alone)
    assert same(states(), before)


class Proven(Dataset):
    """Draws nothing, which is taken as proven here, though its samples wait for another thread."""

    def __init__(self, wait):
        self.wait = wait

    def __len__(self):
        return 30

    def __getitem__(self, index):
        if index >= 10:
            self.wait()
        return index


@pytest.fixture
def _proven(monkeypatch):
    possible = code_findings._possible

    def look(*roots, known=None):
        return () if isinstance(roots[0], Proven) else possible(*roots, known=known)

    monkeypatch.setattr(code_findings, "_possible", look)


@pytest.mark.usefixtures("_proven")
def test_a_dataset_that_draws_nothing_leaves_the_generators_to_one_that_does():
    loading, loaded = threading.Event(), threading.Event()

    def wait():
        loading.set()
        loaded.wait(HANGS)

    def draw():
        loading.wait(HANGS)
        batches = iter(rk.DataLoader(Draws(), 10, seed=1))
        drawn = [next(batches)]
        loaded.set()
        return drawn + list(batches)

    alone, before = list(rk.DataLoader(Draws(), 10, seed=1)), states()
    waited, drawn = together(lambda: list(rk.DataLoader(Proven(wait), 10, seed=2)), draw)
    assert torch.cat(waited).tolist() == list(range(30))
    assert same(drawn, alone)
    assert same(states(), before)


@pytest.mark.usefixtures("_proven")
def test_datasets_that_draw_nothing_load_at_the_same_time():
    meeting = threading.Barrier(2, timeout=HANGS)

    def load():
        return torch.cat(list(rk.DataLoader(Proven(meeting.wait), 10, seed=1))).tolist()

    assert together(load, load) == [list(range(30))] * 2


class Nested(Draws):
    """Each sample is made with a loader of its own."""

    def __init__(self, options):
        self.options = options

    def __len__(self):
        return 4

    def __getitem__(self, index):
        drawn = torch.rand(1)
        within = list(rk.DataLoader(Draws(), 30, seed=index, **self.options))
        return drawn, within[0][1], torch.rand(1)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "executor": "threads"}, {"num_workers": 1}])
def test_a_dataset_may_iterate_over_a_loader(options):
    def load(seed):
        return list(rk.DataLoader(Nested(options), 2, seed=seed))

    alone, before = [list(rk.DataLoader(Nested({}), 2, seed=seed)) for seed in (1, 2)], states()
    assert same(together(lambda: load(1), lambda: load(2)), alone)
    assert same(states(), before)


def test_a_process_forked_while_another_thread_draws_loads_as_ever():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with global_rng.generators_kept(global_rng.GENERATORS):
            inside.set()
            leave.wait(HANGS)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(HANGS)
    child = os.fork()
    if not child:
        count = len(list(rk.DataLoader(Draws(), 10, seed=1)))
        os._exit(count)
    try:
        assert exit_code_of(child) == 6
    finally:
        leave.set()
        thread.join()


def test_an_interrupted_sample_leaves_the_generators_to_others():
    class Interrupted(Draws):
        def __getitem__(self, index):
            torch.rand(1)
            raise KeyboardInterrupt

    before = states()
    with pytest.raises(KeyboardInterrupt):
        list(rk.DataLoader(Interrupted(), 10, seed=1))
    assert same(states(), before)
    assert len(together(lambda: list(rk.DataLoader(Draws(), 10, seed=1)))[0]) == 6
