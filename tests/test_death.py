"""Dead workers cost time and nothing else; a dead or leaving main process leaves nothing behind."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import rekindle as rk
from same import digest

MAIN = os.getpid()
CLOSE_WITHIN = 2.0  # seconds


def in_worker():
    return os.getpid() != MAIN


class Draws(Dataset):
    """Tuples with random numbers and text, a millisecond each in a worker."""

    def __init__(self, size=400, seconds=0.001):
        self.size, self.seconds = size, seconds

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if in_worker():
            time.sleep(self.seconds)
        noise = random.random() + np.random.random_sample()
        return torch.randn(5), np.float32(noise), index, f"sample {index}"


class ExitsOnce(Draws):
    """Some samples end their worker when they are loaded for the first time ever."""

    def __init__(self, folder, size=400, every=40):
        super().__init__(size)
        self.folder, self.every = str(folder), every

    def __getitem__(self, index):
        if index % self.every == 0 and in_worker():
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{self.folder}/{index}", os.O_CREAT | os.O_EXCL))
                os._exit(3)
        return super().__getitem__(index)


class Deadly(Dataset):
    """One sample kills whoever loads it in a worker."""

    def __init__(self, deadly, how=signal.SIGKILL):
        self.deadly, self.how = deadly, how

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == self.deadly and in_worker():
            if self.how is None:
                os._exit(3)
            os.kill(os.getpid(), self.how)
        return torch.tensor([index])


class Sleeps(Dataset):
    """From the ninth on, every sample takes a minute."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index >= 8:
            time.sleep(60)
        return torch.tensor([index])


class SleepsFreely(Sleeps):
    """The same, made for threads."""

    releases_gil = draws_nothing = True


class Stream(IterableDataset):
    def __init__(self, size=300):
        self.size = size

    def __iter__(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for value in range(number, self.size, workers):
            if in_worker():
                time.sleep(0.001)
            yield value, random.random() + float(torch.rand(()))


class Tensors(Dataset):
    """Samples that are large enough for a batch to need a slot."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1000,), index)


def list_collate(samples):
    """Not a batch that can be written by rows."""
    return {"x": [x for x, *_ in samples], "texts": [text for *_, text in samples]}


def noisy_collate(samples):
    return torch.tensor([value for value, _ in samples]), torch.rand(2)


def ready_workers(iterator):
    return [process.pid for process in iterator._workers]


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def kill(pid, how=signal.SIGKILL):
    """Send a signal to a child of ours, and to nobody else."""
    if parent_of(pid) == os.getpid():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


# Fifty dead workers.


class Killer(threading.Thread):
    """Sends signals to workers at random moments.

    It leaves a worker alone for its first moments: one that never gets to do anything is another matter.
    """

    def __init__(self, workers, signals):
        super().__init__(daemon=True)
        self.workers, self.signals = workers, signals
        self.first_seen, self.sent, self.stop = {}, 0, threading.Event()

    def run(self):
        moments = random.Random(1)
        while self.signals and not self.stop.wait(moments.uniform(0.01, 0.15)):
            now = time.monotonic()
            pids = self.workers()
            for pid in pids:
                self.first_seen.setdefault(pid, now)
            old = [pid for pid in pids if now - self.first_seen[pid] > 0.3]
            if old:
                pid = moments.choice(old)
                self.first_seen[pid] = now + 1e6  # It had its signal.
                kill(pid, self.signals.pop())
                self.sent += 1


def test_fifty_dead_workers_cost_no_sample(tmp_path):
    signals = [signal.SIGKILL] * 24 + [signal.SIGSEGV] * 16 + [signal.SIGSTOP] * 6
    random.Random(2).shuffle(signals)
    dataset = ExitsOnce(tmp_path)
    loader = rk.DataLoader(dataset, 16, shuffle=True, num_workers=4, seed=5)
    expected = rk.DataLoader(Draws(), 16, shuffle=True, seed=5)
    current = []
    killer = Killer(lambda: ready_workers(current[0]) if current else [], signals)
    killer.start()
    started = time.monotonic()
    epochs = 0
    while signals or loader.report().replaced_workers < 50:
        current[:] = [iter(loader)]
        assert digest(list(current[0])) == digest(list(expected)), f"epoch {epochs}"
        epochs += 1
        if epochs == 5:  # Samples that end their worker, once more.
            for used in tmp_path.iterdir():
                used.unlink()
        assert time.monotonic() - started < 60
    killer.join()
    assert killer.sent == 46
    assert loader.report().replaced_workers >= 50


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
@pytest.mark.parametrize("collate_fn", [None, list_collate])
@pytest.mark.parametrize("in_order", [True, False])
def test_all_workers_killed_at_once_cost_no_sample(how, collate_fn, in_order):
    def make(**options):
        return rk.DataLoader(Draws(64), 8, collate_fn=collate_fn, seed=5, **options)

    loader = make(num_workers=2, in_order=in_order)
    batches = []
    iterator = iter(loader)
    for step, batch in enumerate(iterator):
        batches.append(batch)
        if step in (0, 4):
            for pid in ready_workers(iterator):
                kill(pid, how)
    expected = list(make())
    assert loader.report().replaced_workers >= 2
    if not in_order:
        batches.sort(key=lambda batch: digest([batch]))
        expected.sort(key=lambda batch: digest([batch]))
    assert digest(batches) == digest(expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_worker_is_noticed_within_five_seconds(workers):
    loader = rk.DataLoader(Draws(300), 8, num_workers=workers, seed=5)
    iterator = iter(loader)
    batches = [next(iterator)]
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    started = time.monotonic()
    longest = 0.0
    for batch in iterator:
        longest = max(longest, time.monotonic() - started)
        batches.append(batch)
        started = time.monotonic()
    assert longest < 5
    assert loader.report().replaced_workers == 1
    assert digest(batches) == digest(list(rk.DataLoader(Draws(300), 8, seed=5)))


def test_a_worker_stopped_between_two_epochs_is_replaced():
    loader = rk.DataLoader(Draws(40), 8, num_workers=2, seed=5)
    iterator = iter(loader)
    list(iterator)
    for pid in ready_workers(iterator):
        kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    second = digest(list(loader))
    assert time.monotonic() - started < 5
    expected = rk.DataLoader(Draws(40), 8, seed=5)
    list(expected)
    assert second == digest(list(expected))


class ManyWords(Dataset):
    """Its batches are so much text that they do not fit into a pipe."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return f"{index} " * 30_000


@pytest.mark.timeout(30)
def test_a_worker_stopped_in_the_middle_of_a_message_is_replaced():
    loader = rk.DataLoader(ManyWords(), 64, num_workers=1, seed=1)
    iterator = iter(loader)
    next(iterator)
    # The worker makes the second batch and cannot finish sending it, as nobody reads: that is the middle.
    time.sleep(1)
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    started = time.monotonic()
    rest = list(iterator)
    assert time.monotonic() - started < 8
    assert [words[0] for words in rest] == [f"{n} " * 30_000 for n in (64, 128, 192)]


class Words(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return f"a sentence of some forty letters, number {index}"


# Pipes hold some hundred kilobytes. In these, both ends have more than that to say at once.
MANY = {"batch_size": 20_000, "prefetch_factor": 8, "sampler": range(200_000), "seed": 1}


@pytest.mark.timeout(20)
def test_many_indices_and_much_text_do_not_block_each_other():
    loader = rk.DataLoader(Words(200_000), num_workers=2, **MANY)
    for _ in range(2):
        for step, batch in enumerate(loader):
            assert len(batch) == 20_000
            assert batch[0].endswith(f" {step * 20_000}")
        assert step == 9


@pytest.mark.timeout(20)
def test_a_stopped_worker_does_not_hold_up_a_long_message():
    loader = rk.DataLoader(Words(200_000), num_workers=2, **MANY)
    iterator = iter(loader)
    list(iterator)
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    started = time.monotonic()
    assert sum(len(batch) for batch in loader) == 200_000
    assert time.monotonic() - started < 10


# Samples and starts that kill.


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, None])
@pytest.mark.parametrize("deadly", [0, 13, 39])
@pytest.mark.parametrize("collate_fn", [None, list])
def test_a_sample_that_kills_three_workers_is_named(deadly, how, collate_fn):
    loader = rk.DataLoader(Deadly(deadly, how), 8, num_workers=2, seed=1, collate_fn=collate_fn)
    seen = []

    def train():
        for batch in loader:
            seen.extend(int(x) for x in batch)

    with pytest.raises(rk.WorkerError, match=rf"sample {deadly}\b.*killed 3 workers"):
        train()
    # What comes before its batch was delivered, in order.
    assert seen == list(range(deadly // 8 * 8))
    assert loader.report().replaced_workers == 3


def test_after_a_worker_error_there_is_no_more_and_no_hang():
    loader = rk.DataLoader(Deadly(3), 8, num_workers=2, seed=1)
    iterator = iter(loader)
    with pytest.raises(rk.WorkerError):
        next(iterator)
    with pytest.raises(rk.WorkerError):
        next(iterator)
    with pytest.raises(rk.WorkerError, match="sample 3"):
        list(loader)


def leave(number):
    os._exit(7)


def first_leaves(number):
    if number == 0:
        os._exit(7)


@pytest.mark.parametrize("init", [leave, first_leaves])
def test_workers_that_die_when_they_start_give_an_error(init):
    loader = rk.DataLoader(Draws(40), 8, num_workers=2, worker_init_fn=init, seed=1)
    started = time.monotonic()
    with pytest.raises(rk.WorkerError, match="worker_init_fn"):
        list(loader)
    assert time.monotonic() - started < 10


def raise_at_start(number):
    raise OSError("no such licence server")


def test_an_exception_at_a_workers_start_keeps_its_type():
    loader = rk.DataLoader(Draws(40), 8, num_workers=2, worker_init_fn=raise_at_start, seed=1)
    with pytest.raises(OSError, match="no such licence server"):
        list(loader)


# Streams.


@pytest.mark.parametrize(
    ("how", "collate_fn"),
    [(signal.SIGKILL, None), (signal.SIGKILL, noisy_collate), (signal.SIGSTOP, None)],
)
def test_a_stream_survives_its_workers(how, collate_fn):
    def make():
        return rk.DataLoader(Stream(), 8, num_workers=2, collate_fn=collate_fn, seed=5)

    expected = digest(list(make()))
    loader = make()
    iterator = iter(loader)
    batches = []
    for step, batch in enumerate(iterator):
        batches.append(batch)
        if step in (3, 20):
            kill(ready_workers(iterator)[step % 2], how)
    assert loader.report().replaced_workers == 2
    assert digest(batches) == expected


# Closing.


@contextlib.contextmanager
def closes_in_time():
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert took < CLOSE_WITHIN, f"closing took {took:.1f} s"


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
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_dropped_iterator_ends_in_time(runner, leaves_no_process):
    loader = rk.DataLoader(batch_size=4, seed=1, num_workers=2, **RUNNERS[runner])
    iterator = iter(loader)
    next(iterator)
    with closes_in_time():
        del iterator
        del loader
        gc.collect()


def test_an_iterator_dropped_alone_ends_its_workers(leaves_no_process):
    loader = rk.DataLoader(Sleeps(), 4, seed=1, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    with closes_in_time():
        del iterator
    assert loader.batch.step == 0


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_break_in_the_loop_ends_in_time(runner, leaves_no_process):
    loader = rk.DataLoader(batch_size=4, seed=1, num_workers=2, **RUNNERS[runner])
    with closes_in_time():
        for _ in loader:
            break
        del loader


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_exception_in_the_loop_ends_in_time(runner, leaves_no_process):
    def train():
        for _ in rk.DataLoader(batch_size=4, seed=1, num_workers=2, **RUNNERS[runner]):
            raise ArithmeticError("loss is NaN")

    with closes_in_time(), pytest.raises(ArithmeticError):
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
    with closes_in_time():
        del loader


def test_a_stopped_worker_does_not_hold_up_closing(leaves_no_process):
    loader = rk.DataLoader(Draws(), 4, seed=1, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    with closes_in_time():
        del iterator, loader


def ignore_requests_to_leave(number):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def test_a_worker_that_ignores_sigterm_does_not_hold_up_closing(leaves_no_process):
    loader = rk.DataLoader(Sleeps(), 4, seed=1, num_workers=2, worker_init_fn=ignore_requests_to_leave)
    iterator = iter(loader)
    next(iterator)
    with closes_in_time():
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

SCRIPT = """
    import os, sys, time
    import torch
    import rekindle as rk

    class Sleeps(torch.utils.data.Dataset):
        def __len__(self):
            return 400
        def __getitem__(self, index):
            if index >= 8:
                time.sleep(60)
            return torch.full((1000,), index)

    if __name__ == "__main__":
        method, executor = sys.argv[1:]
        loader = rk.DataLoader(
            Sleeps(), 4, num_workers=2, seed=1, executor=executor, multiprocessing_context=method
        )
        iterator = iter(loader)
"""
# A script's last lines, in which the main process is told when it has come so far.
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
    """A training script of its own that has got a batch, and whose workers are busy for a minute."""
    script = tmp_path / f"train_{method}.py"
    script.write_text(textwrap.dedent(SCRIPT + then))
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, str(script), method, executor],
        env={**os.environ, "REKINDLE_TEST": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process, mark
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def marked(mark):
    """The processes that a script of ours started, itself included."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def shared_files():
    """What is in /dev/shm, but for semaphores: other programs make and remove them all the time."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def test_a_killed_main_process_leaves_nothing(tmp_path):
    """For all three start methods at once, as starting takes long."""
    shared = shared_files()
    with contextlib.ExitStack() as stack:
        mains = [
            stack.enter_context(main_process(tmp_path, method, WAIT))
            for method in ("fork", "spawn", "forkserver")
        ]
        for process, mark in mains:
            assert process.stdout.readline() == "ready\n"
            assert len(marked(mark)) >= 3
        time.sleep(0.5)
        for process, _ in mains:
            process.kill()
            process.wait()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and (
            any(marked(mark) for _, mark in mains) or shared_files() - shared
        ):
            time.sleep(0.1)
        for (_, mark), method in zip(mains, ("fork", "spawn", "forkserver"), strict=True):
            assert not marked(mark), f"a process is left, started by {method}"
    assert not shared_files() - shared


@pytest.mark.parametrize(
    ("executor", "then"),
    [
        pytest.param("processes", WAIT_FROM_THE_START, id="processes, uncaught"),
        pytest.param("threads", WAIT_AND_CATCH, id="threads, caught"),
        pytest.param("processes", WAIT_AND_CATCH, id="processes, caught", marks=pytest.mark.slow),
        pytest.param("threads", WAIT_FROM_THE_START, id="threads, uncaught", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_everything_in_time(tmp_path, executor, then):
    with main_process(tmp_path, "fork", then, executor) as (process, mark):
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        started = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=8)
        took = time.monotonic() - started
        assert not marked(mark)
        if then is WAIT_AND_CATCH:
            assert out == "interrupted\n"
            assert process.returncode == 0
            assert err == ""
        else:
            assert process.returncode == -signal.SIGINT
            assert err.count("Traceback") == 1
        assert took < CLOSE_WITHIN + 0.5  # for the interpreter's own end


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_leaving_the_interpreter_ends_everything_in_time(tmp_path, method):
    with main_process(tmp_path, method, LEAVE) as (process, mark):
        assert process.stdout.readline() == "ready\n"
        started = time.monotonic()
        _, err = process.communicate(timeout=30)
        took = time.monotonic() - started
        assert process.returncode == 0
        assert err == ""
        assert not marked(mark)
        assert took < CLOSE_WITHIN + 0.3 + 0.5  # it sleeps for a moment, and ends
