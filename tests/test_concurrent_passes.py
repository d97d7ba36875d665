"""Threads that iterate over one loader at the same time: each pass has all samples of an epoch of its own."""

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
from mortal import parent_of
from same import same
from test_closing import children
from waiting import HANGS, eventually, exit_code_of

SIZE, THREADS, PASSES = 48, 3, 5


class Draws(Dataset):
    """A sample says in which epoch it was loaded, by what it draws."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        time.sleep(0.0003)
        return index, torch.rand(2)


class Free(Draws):
    releases_gil = draws_nothing = True

    def __getitem__(self, index):
        time.sleep(0.0003)
        return index


def concurrently(function, threads=THREADS):
    """What a function gives in each of several threads, which begin together."""
    barrier = threading.Barrier(threads, timeout=HANGS)

    def run():
        barrier.wait()
        return function()

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run) for _ in range(threads)]
        return [one.result(HANGS) for one in running]


RUNNERS = {
    "one worker": (Draws, {"num_workers": 1}),
    "two workers": (Draws, {"num_workers": 2}),
    "persistent": (Draws, {"num_workers": 2, "persistent_workers": True}),
    "threads of a process": (Free, {"num_workers": 2}),
    "threads": (Draws, {"num_workers": 2, "executor": "threads"}),
    "persistent threads": (Free, {"num_workers": 2, "executor": "threads", "persistent_workers": True}),
    "inline": (Draws, {}),
    "on a device": (Draws, {"num_workers": 1, "device": "cpu"}),
}


@pytest.fixture
def leaves_no_process():
    before = children()
    yield
    gc.collect()
    eventually(lambda: children() <= before)


@pytest.mark.usefixtures("leaves_no_process")
@pytest.mark.parametrize("runner", RUNNERS)
def test_each_pass_has_all_samples_of_an_epoch_of_its_own(runner):
    make, options = RUNNERS[runner]
    alone = rk.DataLoader(make(), 8, shuffle=True, seed=1)
    epochs = [list(alone) for _ in range(THREADS * PASSES + 1)]
    loader = rk.DataLoader(make(), 8, shuffle=True, seed=1, **options)
    passes = chain.from_iterable(concurrently(lambda: [list(loader) for _ in range(PASSES)]))
    found = [[number for number, epoch in enumerate(epochs) if same(epoch, one)] for one in passes]
    assert sorted(found) == [[number] for number in range(THREADS * PASSES)]
    assert same(list(loader), epochs[-1])
    loader.close()


@pytest.mark.usefixtures("leaves_no_process")
@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_has_the_number_of_its_iter(persistent):
    alone = rk.DataLoader(Draws(), 8, seed=1)
    epochs = [list(alone) for _ in range(3)]
    loader = rk.DataLoader(Draws(), 8, seed=1, num_workers=1, persistent_workers=persistent)
    first = iter(loader)
    began = [next(first)]
    with ThreadPoolExecutor(1) as other:
        assert same(other.submit(lambda: list(loader)).result(HANGS), epochs[1])
    assert same(began + list(first), epochs[0])
    assert same(list(loader), epochs[2])
    loader.close()


@pytest.mark.usefixtures("leaves_no_process")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_pass_beside_another_ends_its_workers_when_it_is_dropped(persistent):
    loader = rk.DataLoader(Draws(), 8, seed=1, num_workers=1, persistent_workers=persistent)
    first = iter(loader)
    began = [next(first)]
    with ThreadPoolExecutor(1) as other:
        other.submit(lambda: next(iter(loader))).result(HANGS)
    gc.collect()
    own = [pid for pid in children() if parent_of(pid) == os.getpid()]
    assert set(own) >= {worker.pid for worker in first._workers}
    assert len(began + list(first)) == SIZE // 8
    loader.close()


def test_new_workers_for_persistent_ones_leave_another_threads_pass_alone():
    loader = rk.DataLoader(Draws(), 8, seed=1, num_workers=1, persistent_workers=True)
    first = iter(loader)
    began = [next(first)]
    loader._iterator = None  # As frameworks ask for new workers.
    with ThreadPoolExecutor(1) as other:
        assert len(other.submit(lambda: list(loader)).result(HANGS)) == SIZE // 8
    assert len(began + list(first)) == SIZE // 8
    loader.close()


def test_workers_that_are_kept_have_what_the_script_has_changed():
    class Changing(Draws):
        def __init__(self):
            self.value = 0

        def __getitem__(self, index):
            return self.value

    dataset = Changing()
    loader = rk.DataLoader(dataset, 8, seed=1, num_workers=1)
    earlier = iter(loader)
    next(earlier)
    dataset.value = 1
    assert {value for batch in loader for value in batch.tolist()} == {1}
    later = iter(loader)
    next(later)
    list(later)
    list(earlier)
    assert {value for batch in loader for value in batch.tolist()} == {1}


def interleaved(loader, ask):
    """What it gives to ask while passes of two threads have yielded batches in turn."""
    first = iter(loader)
    next(first)
    with ThreadPoolExecutor(1) as other:
        second = other.submit(iter, loader).result(HANGS)
        other.submit(next, second).result(HANGS)
        next(first)
        ask(loader)
    del second


def test_what_is_of_one_pass_is_refused_during_several():
    loader = rk.DataLoader(Draws(), 8, seed=1)

    def ask(loader):
        with pytest.raises(AttributeError, match="several threads"):
            _ = loader.batch
        with pytest.raises(rk.StateError, match="several threads"):
            loader.state_dict()

    interleaved(loader, ask)
    list(loader)
    assert loader.batch.step == SIZE // 8 - 1
    assert loader.state_dict()["epoch"] == 3


def test_a_look_at_one_batch_in_another_thread_changes_no_state():
    loader = rk.DataLoader(Draws(), 8, seed=1)
    first = iter(loader)
    next(first)
    with ThreadPoolExecutor(1) as other:
        stopped = other.submit(iter, loader).result(HANGS)  # Alive, though nobody goes on with it.
    assert loader.state_dict()["epoch"] == 1
    del stopped


@pytest.mark.parametrize("workers", [0, 1])
def test_importance_chooses_for_one_pass_at_a_time(workers):
    loader = rk.DataLoader(Draws(), 8, seed=1, importance=rk.RandomSubset(0.5), num_workers=workers)
    first = iter(loader)
    next(first)
    with ThreadPoolExecutor(1) as other:
        assert len(other.submit(lambda: list(loader)).result(HANGS)) == SIZE // 16
    with pytest.raises(rk.WorkerError, match="another thread"):
        next(first)
    assert len(list(loader)) == SIZE // 16


def last_part(sample):
    index, drawn = sample
    return index, drawn, torch.rand(1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("reuse", [rk.Refurbish(3, memory="1MB"), rk.Echo(2)], ids=["Refurbish", "Echo"])
def test_passes_of_threads_reuse_as_one_after_the_other_do(workers, reuse):
    options = {"batch_size": 8, "shuffle": True, "seed": 1, "reuse": reuse, "final_transform": last_part}
    alone = rk.DataLoader(Draws(), **options)
    epochs = [list(alone) for _ in range(6)]
    loader = rk.DataLoader(Draws(), num_workers=workers, **options)
    passes = chain.from_iterable(concurrently(lambda: [list(loader) for _ in range(3)], 2))
    found = [[number for number, epoch in enumerate(epochs) if same(epoch, one)] for one in passes]
    assert sorted(found) == [[number] for number in range(6)]


class Sampler:
    """A sampler that does something when it is asked for an order."""

    def __init__(self, first):
        self.first = first

    def __iter__(self):
        first, self.first = self.first, None
        if first is not None:
            first()
        return iter(range(16))


def test_a_sampler_may_iterate_over_a_loader():
    loader = rk.DataLoader(Draws(), 8, seed=1, sampler=Sampler(lambda: list(loader)))
    assert len(list(loader)) == 2


def test_an_interrupt_while_a_pass_begins_leaves_the_loader_to_other_threads():
    def interrupt():
        raise KeyboardInterrupt

    loader = rk.DataLoader(Draws(), 8, seed=1, sampler=Sampler(interrupt), num_workers=1)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    with ThreadPoolExecutor(1) as other:
        assert len(other.submit(lambda: list(loader)).result(HANGS)) == 2


def test_a_process_forked_while_a_pass_begins_can_begin_one():
    inside, leave = threading.Event(), threading.Event()

    def wait():
        inside.set()
        leave.wait(HANGS)

    loader = rk.DataLoader(Draws(), 8, seed=1, sampler=Sampler(wait))
    thread = threading.Thread(target=lambda: list(loader))
    thread.start()
    inside.wait(HANGS)
    child = os.fork()
    if not child:
        os._exit(len(list(loader)))
    try:
        assert exit_code_of(child) == 2
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize(
    "options",
    [{}, {"persistent_workers": True}, {"device": "cpu"}, {"executor": "threads"}],
    ids=["processes", "persistent", "on a device", "threads"],
)
def test_a_loader_closed_by_another_thread_says_so(options):
    leave = threading.Event()

    class Waits(Free):
        def __getitem__(self, index):
            leave.wait(HANGS if index >= 8 else 0)
            return index

    loader = rk.DataLoader(Waits(), 8, seed=1, num_workers=1, **options)
    batches = iter(loader)
    next(batches)
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(next, batches)
        time.sleep(0.2)
        loader.close()
        with pytest.raises(rk.WorkerError, match="closed"):
            asked.result(HANGS)
    leave.set()
