"""Dead workers cost time and nothing else."""

import os
import random
import signal
import threading
import time

import pytest
from torch.utils.data import Dataset

import rekindle as rk
from covering import each_pair, each_value
from mortal import Deadly, Draws, ExitsOnce, Stream, kill, list_collate, noisy_collate, ready_workers
from rekindle.run import process_pool
from same import digest

# Fifty dead workers. A worker that is lost, and not replaced, leaves its batch unfinished: a timeout.

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def _looks_often(monkeypatch):
    """Stopped workers are looked for ten times a second."""
    monkeypatch.setattr(process_pool, "_CHECK_EVERY", 0.1)


class Killer(threading.Thread):
    """Sends signals to workers at random moments.

    It leaves a worker alone for its first samples: one that never gets to do anything is another matter.
    """

    def __init__(self, workers, loaded_by, signals):
        super().__init__(daemon=True)
        self.workers, self.loaded_by, self.signals = workers, loaded_by, signals
        self.sent_to, self.stop = set(), threading.Event()

    def run(self):
        moments = random.Random(1)
        while self.signals and not self.stop.wait(moments.uniform(0.01, 0.15)):
            pids = [pid for pid in self.workers() if pid not in self.sent_to and self.loaded_by(pid) >= 40]
            if pids:
                pid = moments.choice(pids)
                self.sent_to.add(pid)
                kill(pid, self.signals.pop())


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize(
    ("killed", "crashed", "stopped"), [(6, 4, 1), pytest.param(24, 16, 6, marks=pytest.mark.slow)]
)
def test_many_dead_workers_cost_no_sample(tmp_path, killed, crashed, stopped):
    signals = [signal.SIGKILL] * killed + [signal.SIGSEGV] * crashed + [signal.SIGSTOP] * stopped
    sent = len(signals)
    random.Random(2).shuffle(signals)
    dataset = ExitsOnce(tmp_path)
    loader = rk.DataLoader(dataset, 16, shuffle=True, num_workers=4, seed=5)
    expected = rk.DataLoader(Draws(), 16, shuffle=True, seed=5)
    current = []
    killer = Killer(lambda: ready_workers(current[0]) if current else [], dataset.loaded_by, signals)
    killer.start()
    epochs = 0
    while signals or loader.report().replaced_workers < sent + 4:
        current[:] = [iter(loader)]
        assert digest(list(current[0])) == digest(list(expected)), f"epoch {epochs}"
        epochs += 1
        if epochs == 5:  # Samples that end their worker, once more.
            for used in range(0, len(dataset), dataset.every):
                (tmp_path / str(used)).unlink()
    killer.join()
    assert len(killer.sent_to) == sent
    assert loader.report().replaced_workers >= sent + 4


@pytest.mark.parametrize(
    ("how", "collate_fn", "in_order"),
    each_pair([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], [None, list_collate], [True, False]),
)
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


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_worker_is_replaced(workers):
    loader = rk.DataLoader(Draws(300), 8, num_workers=workers, seed=5)
    iterator = iter(loader)
    batches = [next(iterator)]
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    batches += list(iterator)
    assert loader.report().replaced_workers == 1
    assert digest(batches) == digest(list(rk.DataLoader(Draws(300), 8, seed=5)))


@pytest.mark.usefixtures("_looks_often")
def test_a_worker_stopped_between_two_epochs_is_replaced():
    loader = rk.DataLoader(Draws(40), 8, num_workers=2, seed=5)
    iterator = iter(loader)
    list(iterator)
    for pid in ready_workers(iterator):
        kill(pid, signal.SIGSTOP)
    second = digest(list(loader))
    expected = rk.DataLoader(Draws(40), 8, seed=5)
    list(expected)
    assert second == digest(list(expected))


class ManyWords(Dataset):
    """Its batches are so much text that they do not fit into a pipe."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return f"{index} " * 30_000


@pytest.mark.usefixtures("_looks_often")
def test_a_worker_stopped_in_the_middle_of_a_message_is_replaced():
    loader = rk.DataLoader(ManyWords(), 64, num_workers=1, seed=1)
    iterator = iter(loader)
    next(iterator)
    # The worker makes the second batch and cannot finish sending it, as nobody reads: that is the middle.
    time.sleep(1)
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    rest = list(iterator)
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


def test_many_indices_and_much_text_do_not_block_each_other():
    loader = rk.DataLoader(Words(200_000), num_workers=2, **MANY)
    for _ in range(2):
        for step, batch in enumerate(loader):
            assert len(batch) == 20_000
            assert batch[0].endswith(f" {step * 20_000}")
        assert step == 9


@pytest.mark.usefixtures("_looks_often")
def test_a_stopped_worker_does_not_block_a_long_message():
    loader = rk.DataLoader(Words(200_000), num_workers=2, **MANY)
    iterator = iter(loader)
    list(iterator)
    kill(ready_workers(iterator)[0], signal.SIGSTOP)
    assert sum(len(batch) for batch in loader) == 200_000


# Samples and starts that kill.


@pytest.mark.parametrize(
    ("deadly", "how", "collate_fn"),
    each_value([0, 13, 39], [signal.SIGKILL, signal.SIGSEGV, None], [None, list]),
)
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
    with pytest.raises(rk.WorkerError, match="worker_init_fn"):
        list(loader)


def raise_at_start(number):
    raise OSError("no such licence server")


def test_an_exception_at_a_workers_start_keeps_its_type():
    loader = rk.DataLoader(Draws(40), 8, num_workers=2, worker_init_fn=raise_at_start, seed=1)
    with pytest.raises(OSError, match="no such licence server"):
        list(loader)


# Streams.


@pytest.mark.usefixtures("_looks_often")
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


class Waiting(Dataset[int]):
    """Samples that are not there before a file is."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 8

    def __getitem__(self, index):
        while not self.file.exists():
            time.sleep(0.01)
        return index


def test_a_worker_that_dies_of_an_epoch_that_was_begun_again_costs_the_new_one_nothing(tmp_path):
    # Nothing has come back of the batches that nobody waits for any more.
    dataset = Waiting(tmp_path / "there")
    with rk.DataLoader(dataset, batch_size=2, num_workers=1, persistent_workers=True) as loader:
        begun = iter(loader)
        (worker,) = begun._workers
        again = iter(loader)
        os.kill(worker.pid, signal.SIGKILL)
        dataset.file.touch()
        assert [batch.tolist() for batch in again] == [[0, 1], [2, 3], [4, 5], [6, 7]]
