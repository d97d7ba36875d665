"""Threads as workers: really concurrent where the dataset allows it, right where it does not."""

import random
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import rekindle as rk
from waiting import HANGS, eventually


class Together(Dataset):
    """No sample is ready before as many are being loaded as there are to be at the same time."""

    releases_gil = draws_nothing = True

    def __init__(self, workers):
        self.barrier = threading.Barrier(workers, timeout=HANGS)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.barrier.wait()
        return torch.tensor([index])


class Sleepy(Dataset):
    """Says that it releases the GIL and draws nothing, as native code does."""

    releases_gil = True
    draws_nothing = True

    def __init__(self, seconds=0.05, size=16):
        self.seconds, self.size, self.threads, self.loaded = seconds, size, set(), 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.threads.add(threading.current_thread().name)
        self.loaded += 1
        time.sleep(self.seconds)
        return torch.tensor([index])


class Meeting(Sleepy):
    """No sample is finished before four of them are being loaded."""

    def __init__(self):
        super().__init__(0)
        self.barrier = threading.Barrier(4, timeout=HANGS)

    def __getitem__(self, index):
        self.barrier.wait()
        return super().__getitem__(index)


class ThirdParty(Dataset):
    """A third-party dataset: draws from all three generators, and yields to other threads in between."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        first = random.random()
        time.sleep(0.0005)
        return torch.tensor([first, random.random(), np.random.random_sample(), float(torch.rand(()))])


class Quiet(ThirdParty):
    """Draws nothing, but does not say so."""

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.tensor([index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def draw():
    return [random.random(), float(np.random.random_sample()), float(torch.rand(()))]


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_threads_run_in_this_process_if_they_are_asked_for():
    dataset = Sleepy(0)
    loader = rk.DataLoader(dataset, 4, num_workers=2, executor="threads")
    assert torch.cat(list(loader)).flatten().tolist() == list(range(16))
    assert loader.report().executor == "threads"
    # It ran in this process, in threads that are not this one.
    assert dataset.threads
    assert threading.main_thread().name not in dataset.threads


def test_auto_runs_nothing_in_this_process():
    dataset = Sleepy(0)
    before = threading.active_count()
    iterator = iter(rk.DataLoader(dataset, 4, num_workers=2))
    assert threading.active_count() == before
    assert torch.cat(list(iterator)).flatten().tolist() == list(range(16))
    assert not dataset.threads


def test_auto_takes_processes_for_any_dataset():
    loader = rk.DataLoader(Quiet(), 4, num_workers=2)
    list(loader)
    assert loader.report().executor == "processes"


def test_an_executor_that_is_asked_for_is_taken():
    dataset = Sleepy(0)
    loader = rk.DataLoader(dataset, 4, num_workers=2, executor="processes")
    list(loader)
    assert loader.report().executor == "processes"
    assert dataset.threads == set()


def test_samples_are_made_at_the_same_time():
    loader = rk.DataLoader(Together(4), 8, num_workers=4, executor="threads")
    assert torch.cat(list(loader)).flatten().tolist() == list(range(16))


def test_samples_are_made_while_the_training_loop_works():
    dataset = Sleepy(0)
    iterator = iter(rk.DataLoader(dataset, 4, num_workers=2, executor="threads"))
    for batch, ahead in zip(iterator, (8, 12, 16, 16), strict=True):
        assert len(batch) == 4
        eventually(lambda ahead=ahead: dataset.loaded >= ahead)  # And nobody asks for a batch.


@pytest.mark.parametrize(
    "dataset", [ThirdParty(), Quiet(), Sleepy(0.001, 60)], ids=lambda d: type(d).__name__
)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_main_thread_draws_what_it_would_draw_alone(dataset, workers):
    """The training loop draws all the time; workers are at work in between and beside it."""
    seed_all(3)
    alone = [draw() for _ in range(15 * 40)]
    loader = rk.DataLoader(dataset, 4, num_workers=workers, executor="threads", seed=1)
    seed_all(3)
    beside = []
    for _ in loader:
        for _ in range(40):
            beside.append(draw())
            time.sleep(0.0001)
    assert beside == alone


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_third_party_random_code_is_right_while_the_main_thread_draws(workers):
    expected = torch.cat(list(rk.DataLoader(ThirdParty(), 4, seed=1)))
    loader = rk.DataLoader(ThirdParty(), 4, num_workers=workers, executor="threads", seed=1)
    batches = []
    for batch in loader:
        batches.append(batch)
        for _ in range(40):
            draw()
            time.sleep(0.0001)
    assert torch.equal(torch.cat(batches), expected)


def test_another_thread_that_uses_a_loader_of_its_own_is_not_disturbed():
    """Training and validation in two threads: each gets its own samples, all of them."""
    found = {}

    def run(name):
        loader = rk.DataLoader(Sleepy(0.001, 60), 4, num_workers=2, executor="threads")
        found[name] = torch.cat(list(loader)).flatten().tolist()

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS)
    assert found == {"a": list(range(60)), "b": list(range(60))}


def test_threads_end_with_their_loader():
    before = threading.active_count()
    loader = rk.DataLoader(Sleepy(0.001), 4, num_workers=3, executor="threads")
    iterator = iter(loader)
    next(iterator)
    assert threading.active_count() == before + 3
    del iterator, loader
    assert threading.active_count() == before


def test_threads_end_when_third_party_code_is_dropped_halfway():
    before = threading.active_count()
    loader = rk.DataLoader(ThirdParty(), 4, num_workers=3, executor="threads")
    iterator = iter(loader)
    next(iterator)
    del iterator, loader
    assert threading.active_count() == before


class Slow(Dataset):
    draws_nothing = True

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(3600 if index >= 4 else 0)
        return index


def test_timeout_holds_for_threads():
    loader = rk.DataLoader(Slow(), 4, num_workers=2, executor="threads", timeout=0.5)
    iterator = iter(loader)
    with pytest.raises(rk.LoaderTimeout):
        next(iterator), next(iterator)


def test_threads_and_streams_are_refused():
    with pytest.raises(rk.ArgumentError, match=r"threads.*IterableDataset"):
        rk.DataLoader(Stream(), 2, num_workers=1, executor="threads")


def test_an_unknown_executor_is_refused():
    with pytest.raises(rk.ArgumentError, match=r"executor.*'fibres'"):
        rk.DataLoader(range(4), executor="fibres")
