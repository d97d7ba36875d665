"""Datasets that kill their workers or block them, and ways to end a process."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

MAIN = os.getpid()
FOREVER = 3600  # seconds: longer than any test may take


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
    """Some samples end their worker when they are loaded for the first time ever.

    `loaded_by(pid)` tells how many samples a worker has loaded: each leaves a byte in a file.
    """

    def __init__(self, folder, size=400, every=40):
        super().__init__(size)
        self.folder, self.every = str(folder), every

    def __getitem__(self, index):
        if index % self.every == 0 and in_worker():
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{self.folder}/{index}", os.O_CREAT | os.O_EXCL))
                os._exit(3)
        sample = super().__getitem__(index)
        if in_worker():
            with open(f"{self.folder}/loaded by {os.getpid()}", "ab") as file:
                file.write(b".")
        return sample

    def loaded_by(self, pid):
        file = Path(self.folder, f"loaded by {pid}")
        return file.stat().st_size if file.exists() else 0


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
    """From the ninth on, no sample is ever ready: whoever waits for one hangs."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index >= 8:
            time.sleep(FOREVER)
        return torch.tensor([index])


class SleepsFreely(Sleeps):
    """The same, for threads."""

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
    """A batch that cannot be written row by row."""
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
