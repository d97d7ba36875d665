"""Closing waits for no sample; a dead or leaving main process leaves nothing behind."""

import gc
import os
import signal
import time
from pathlib import Path

import pytest

import rekindle as rk
from main_process import LEAVE, WAIT_AND_CATCH, WAIT_FROM_THE_START, main_process, processes_of
from mortal import Draws, Sleeps, SleepsFreely, Tensors, kill, parent_of, ready_workers
from rekindle.run import process_pool, thread_pool
from waiting import eventually

# Closing. Workers are busy for an hour: whoever waits for them runs into a timeout.


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch):
    """None of the workers here ends by itself: how long they could is of no account."""
    monkeypatch.setattr(process_pool, "_GRACE", 0.1)
    monkeypatch.setattr(thread_pool, "_CLOSE_WITHIN", 0.1)


def children():
    listed = (entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {int(pid) for pid in listed if parent_of(int(pid)) == os.getpid()}


@pytest.fixture
def leaves_no_process():
    before = children()
    yield
    gc.collect()
    assert children() <= before


RUNNERS = {
    "processes": {"dataset": Sleeps(), "executor": "processes"},
    "persistent": {"dataset": Sleeps(), "persistent_workers": True},
    "threads": {"dataset": SleepsFreely(), "executor": "threads"},
    "threads of a process": {"dataset": SleepsFreely()},
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_dropped_iterator_ends_whatever_its_workers_are_at(runner, leaves_no_process):
    loader = rk.DataLoader(batch_size=4, seed=1, num_workers=2, **RUNNERS[runner])
    iterator = iter(loader)
    next(iterator)
    del iterator
    del loader
    gc.collect()


def test_an_iterator_dropped_alone_ends_its_workers(leaves_no_process):
    loader = rk.DataLoader(Sleeps(), 4, seed=1, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert loader.batch.step == 0


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_break_in_the_loop_ends_whatever_the_workers_are_at(runner, leaves_no_process):
    loader = rk.DataLoader(batch_size=4, seed=1, num_workers=2, **RUNNERS[runner])
    for _ in loader:
        break
    del loader


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_exception_in_the_loop_ends_whatever_the_workers_are_at(runner, leaves_no_process):
    def train():
        for _ in rk.DataLoader(batch_size=4, seed=1, num_workers=2, **RUNNERS[runner]):
            raise ArithmeticError("loss is NaN")

    with pytest.raises(ArithmeticError):
        train()


class Raises:
    """A sampler that fails for the second epoch."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        yield from range(8)
        if self.epoch == 2:
            raise ArithmeticError("no more indices")
        yield from range(8, 16)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_exception_in_the_sampler_leaves_no_process(persistent, leaves_no_process):
    loader = rk.DataLoader(
        Draws(16), 4, sampler=Raises(), num_workers=2, persistent_workers=persistent, seed=1
    )
    assert len(list(loader)) == 4
    with pytest.raises(ArithmeticError):
        list(loader)
    del loader


def test_a_stopped_worker_does_not_block_closing(leaves_no_process):
    loader = rk.DataLoader(Draws(), 4, seed=1, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    del iterator, loader


def ignore_requests_to_leave(number):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def test_a_worker_that_ignores_sigterm_does_not_block_closing(leaves_no_process):
    loader = rk.DataLoader(Sleeps(), 4, seed=1, num_workers=2, worker_init_fn=ignore_requests_to_leave)
    iterator = iter(loader)
    next(iterator)
    del iterator, loader


def test_thirty_loaders_leave_no_process_and_no_descriptor():
    def use(how_far):
        loader = rk.DataLoader(Tensors(), 8, num_workers=2, seed=1)
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(how_far)]
        if how_far == 8:
            assert next(iterator, None) is None
        return len(batches)

    use(8), use(1)  # What is made once for all loaders is made by now.
    gc.collect()
    before, files = children(), set(os.listdir("/proc/self/fd"))
    for number in range(30):
        use((0, 1, 3, 8)[number % 4])
    gc.collect()
    assert children() <= before
    assert len(os.listdir("/proc/self/fd")) <= len(files)
    zombies = [pid for pid in children() if "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]]
    assert zombies == []


# A main process of its own.


@pytest.mark.parametrize(
    ("executor", "then"),
    [
        pytest.param("processes", WAIT_FROM_THE_START, id="processes, uncaught"),
        pytest.param("threads", WAIT_AND_CATCH, id="threads, caught"),
        pytest.param("auto", WAIT_FROM_THE_START, id="threads of a process, uncaught"),
        pytest.param("processes", WAIT_AND_CATCH, id="processes, caught", marks=pytest.mark.slow),
        pytest.param("threads", WAIT_FROM_THE_START, id="threads, uncaught", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_everything_whatever_the_workers_are_at(tmp_path, executor, then):
    with main_process(tmp_path, "fork", then, executor) as script:
        assert script.stdout.readline() == "ready\n"
        time.sleep(1)
        os.killpg(script.pid, signal.SIGINT)
        out, err = script.communicate()
        assert not processes_of(script)
        if then is WAIT_AND_CATCH:
            assert out == "interrupted\n"
            assert script.returncode == 0
            assert err == ""
        else:
            assert script.returncode == -signal.SIGINT
            assert err.count("Traceback") == 1


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_leaving_the_interpreter_ends_everything_whatever_the_workers_are_at(tmp_path, method):
    with main_process(tmp_path, method, LEAVE) as script:
        assert script.stdout.readline() == "ready\n"
        _, err = script.communicate()
        assert script.returncode == 0
        assert err == ""
        # `spawn` has a process of Python's own that sees only now that the script is gone, and ends.
        eventually(lambda: not processes_of(script))
