"""The memory of all processes together.

Question: Do many workers take more memory than torch's do: over a large Python dataset, and in batches?

Method, the dataset: a list of 1,000,000 strings; 4 workers, forked, read one epoch of it, shuffled. After the
last batch, while the workers are alive, the proportional set size (PSS: memory shared by n processes counts
1/n in each) of the process and all below it is added up, from `/proc/PID/smaps_rollup`: in all, and without
the pages of files, which are libraries. Each measurement runs in an interpreter of its own. Linux only.

Method, the whole dataset: a list of 1,000,000 strings, tuples or dicts and an array of 1 GB; 8 workers,
started by fork, spawn and fork server, read one epoch. What all processes have of their own (anonymous pages
and pages of libraries, by PSS) and all memory files, each once, is divided by the PSS of the one process
before it started workers. The bar is 1.15. Importing torch counts too: 150 MB for a fork server, and for
every worker that is spawned.

Method, the batches: samples of 224 × 224 × 3 floats that cost nothing to make, in batches of 64 (38.5 MB),
through 2, 4 and 16 workers without `prefetch_factor`. The loop takes 20 batches as they come, then waits half
a second between two, so that all that is loaded ahead is there; the most that a look at each of these finds
counts: what the processes have of their own (anonymous pages, by PSS), and all memory files that one of them
has open or mapped, each once (PSS does not see a batch that is on its way between two processes). Of these,
which are the batches, 16 workers are to have no more than one batch more than 2. A last comparison is the
time that a loop waits, as it takes batches at an even pace (a step as long as loading takes) and in bursts
(four steps of a quarter of that, then one of four times it), against `prefetch_factor=2`, which has as many
batches ahead as torch.

    python -m benchmarks memory

Reading: MB, less is better; the bar is torch's (≤ 1.0×). Forked workers share the list at first.
But Python writes into an object when it is used (its reference count), so each of torch's workers that
reads from all over the list ends up with a copy of the strings, about 100 MB. On a machine where other
processes use torch too, look at the number without files: they share the libraries' pages, and when
one of them starts or ends, the share that counts here changes by up to 150 MB.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare, list_values
from benchmarks.fresh_process import in_fresh_process
from benchmarks.loaders import LOADERS

ENTRIES, WORKERS, BATCH_SIZE = 1_000_000, 4, 1000
IMAGES, SIDE, BATCH_WORKERS = 64, 224, (2, 4, 16)  # a batch; pixels of a side
SMALL_BATCH, PACED_WORKERS = 32, 8
WORKERS_OF_WHOLE, MEGABYTES = 8, 1024


class ManyStrings:
    """A dataset that is a list of strings, as file names are; a sample is a string's length."""

    def __init__(self) -> None:
        self.names = [f"photographs/of/class-{i % 1000:04}/number-{i:08}.jpg" for i in range(ENTRIES)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return len(self.names[index])


def memory_after_an_epoch(loader: str) -> dict[str, float]:
    """PSS in MB of this process and all below it, after the last batch of an epoch."""
    import psutil

    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
    make = LOADERS[loader]
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS}
    batches = iter(make(ManyStrings(), multiprocessing_context="fork", **settings))
    for _ in range(ENTRIES // BATCH_SIZE):
        next(batches)
    # The epoch's end, which would let the workers go, has not been asked for.
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    if len(processes) < 1 + WORKERS:
        raise RuntimeError(f"{loader}: {len(processes) - 1} workers are alive, not {WORKERS}.")
    memory = [proportional_set_size(process.pid) for process in processes]
    in_all, of_files = sum(m["Pss"] for m in memory), sum(m["Pss_File"] for m in memory)
    return {"in all": in_all / 1e6, "without files": (in_all - of_files) / 1e6}


class WholeDataset:
    """A list of plain values and an array, of both of which a sample has an entry."""

    def __init__(self, kind: str, entries: int, megabytes: int) -> None:
        import numpy as np

        names = (f"photographs/of/class-{i % 1000:04}/number-{i:08}.jpg" for i in range(entries))
        make: dict[str, Callable[[int, str], Any]] = {
            "strings": lambda number, name: name,
            "tuples": lambda number, name: (name, number % 1000),
            "dicts": lambda number, name: {
                "file": name,
                "label": number % 1000,
                "caption": f"number {number}",
            },
        }
        self.items = [make[kind](number, name) for number, name in enumerate(names)]
        self.array = np.ones(megabytes << 18, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> float:
        return len(self.items[index]) + float(self.array[index])


def growth_with_workers(loader: str, method: str, kind: str, entries: int, megabytes: int) -> float:
    """The memory of all processes after an epoch, as a multiple of that of one process before it."""
    import psutil

    warnings.filterwarnings("ignore", "This DataLoader will create")
    dataset = WholeDataset(kind, entries, megabytes)
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS_OF_WHOLE}
    batches = LOADERS[loader](dataset, multiprocessing_context=method, **settings)
    alone = proportional_set_size(os.getpid())["Pss"]  # with all that the loader imports
    batches = iter(batches)
    for _ in range(entries // BATCH_SIZE):
        next(batches)
    processes = [os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))]
    sizes = [proportional_set_size(pid) for pid in processes]
    own = sum(size["Pss"] - size["Pss_Shmem"] for size in sizes)
    return (own + shared_bytes(processes)) / alone


class Floats:
    """Large samples that cost next to nothing, or a given sleep."""

    releases_gil = draws_nothing = True

    def __init__(self, seconds: float = 0.0, size: int = 1 << 16) -> None:
        self.seconds, self.size = seconds, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        import torch

        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((3, SIDE, SIDE), float(index % 7))


def memory_of_batches(loader: str, workers: int) -> dict[str, float]:
    """The most MB that this process and its workers had at any batch, without files; those of batches."""
    import psutil

    warnings.filterwarnings("ignore", "This DataLoader will create")
    settings = {"batch_size": IMAGES, "num_workers": workers, "multiprocessing_context": "fork"}
    most = {"all": 0.0, "batches": 0.0}
    batches = iter(LOADERS[loader](Floats(), **settings))
    for number in range(25):
        batch = next(batches)
        batch.sum()  # It is used, so that its pages count in this process.
        if number >= 20:
            time.sleep(0.5)
            processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
            own = sum(proportional_set_size(process.pid)["Pss_Anon"] for process in processes)
            shared = shared_bytes([process.pid for process in processes])
            most = {
                "all": max(most["all"], (own + shared) / 1e6),
                "batches": max(most["batches"], shared / 1e6),
            }
    del batch
    return most


def shared_bytes(pids: list[int]) -> int:
    """The memory files that any of these processes has open or mapped, each counted once.

    PSS leaves out what is on its way from one process to another: nobody has it mapped then.
    """
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(("/memfd:", "/dev/shm/")):
                    state = os.stat(link)
                    found[state.st_dev, state.st_ino] = state.st_blocks * 512
        mapped: dict[tuple[int, int], int] = {}
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, _, _, device, inode, *name = line.split(maxsplit=5)
            if name and name[0].startswith(("/memfd:", "/dev/shm/")):
                start, stop = (int(address, 16) for address in addresses.split("-"))
                major, minor = (int(number, 16) for number in device.split(":"))
                key = os.makedev(major, minor), int(inode)
                mapped[key] = mapped.get(key, 0) + stop - start
        for key, nbytes in mapped.items():
            found.setdefault(key, nbytes)
    return sum(found.values())


def waiting(paced: str, prefetch_factor: int | None) -> float:
    """The share of its time that a loop waits whose steps are as long as loading a batch, on average."""
    import rekindle as rk

    warnings.filterwarnings("ignore", "This DataLoader will create")
    dataset = Floats(seconds=20e-3, size=100 * SMALL_BATCH)
    loader = rk.DataLoader(
        dataset, batch_size=SMALL_BATCH, num_workers=PACED_WORKERS, prefetch_factor=prefetch_factor
    )
    even = 1.1 * SMALL_BATCH * dataset.seconds / PACED_WORKERS
    pace = {"evenly": [even], "in bursts": [even / 4] * 4 + [4 * even]}[paced]
    waited, batches = 0.0, iter(loader)
    next(batches)
    started = time.perf_counter()
    for number in range(80):
        time.sleep(pace[number % len(pace)])
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
    return 100 * waited / (time.perf_counter() - started)


def proportional_set_size(pid: int) -> dict[str, int]:
    """The process's `Pss` in bytes, and its parts such as `Pss_File`."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = [line.split() for line in lines if line.startswith("Pss")]
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in fields}


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """MB with each loader, in all and without files; `data` is not used."""
    del data

    def contender(loader: str) -> Callable[[], dict[str, float]]:
        return lambda: in_fresh_process(memory_after_an_epoch, loader=loader)

    found = alternate({name: contender(name) for name in LOADERS}, rounds)
    title = f"PSS after an epoch; a list of {ENTRIES:,} strings, {WORKERS} workers"
    of_dataset = [
        compare(
            f"{title}; {what}",
            "MB",
            {name: [memory[what] for memory in measured] for name, measured in found.items()},
            {"rekindle": [Bar("≤", 1.0)]},
        )
        for what in ("in all", "without files")
    ]
    return [*of_dataset, *_of_whole(rounds), *_of_batches(rounds), *_of_waiting(rounds)]


def _of_whole(rounds: int) -> list[Comparison]:
    def contender(loader: str, method: str, kind: str) -> Callable[[], float]:
        size = {"entries": ENTRIES, "megabytes": MEGABYTES}
        return lambda: in_fresh_process(growth_with_workers, loader=loader, method=method, kind=kind, **size)

    found = []
    for method in ("fork", "forkserver", "spawn"):
        for kind in ("strings", "tuples", "dicts") if method == "fork" else ("tuples",):
            ratios = alternate({name: contender(name, method, kind) for name in LOADERS}, rounds)
            title = (
                f"all processes against one; {ENTRIES:,} {kind}, {MEGABYTES} MB, {WORKERS_OF_WHOLE} workers"
            )
            bars = {"rekindle": [Bar("≤", 1.15, "×")]}
            found.append(list_values(f"{title}, {method}", "×", ratios, bars))
    return found


def _of_batches(rounds: int) -> list[Comparison]:
    def contender(loader: str, workers: int) -> Callable[[], dict[str, float]]:
        return lambda: in_fresh_process(memory_of_batches, loader=loader, workers=workers)

    found = alternate({f"{name} {n}": contender(name, n) for n in BATCH_WORKERS for name in LOADERS}, rounds)
    title = f"memory; batches of {IMAGES} float images"
    beside = [
        compare(
            f"{title}, {n} workers",
            "MB",
            {name: [one["all"] for one in found[f"{name} {n}"]] for name in LOADERS},
            {"rekindle": [Bar("≤", 1.0)]},
        )
        for n in BATCH_WORKERS
    ]
    of_batches = {n: [one["batches"] for one in found[f"rekindle {n}"]] for n in BATCH_WORKERS}
    fewest = of_batches.pop(min(BATCH_WORKERS))
    more = {
        f"{n} workers": [a - b for a, b in zip(each, fewest, strict=True)] for n, each in of_batches.items()
    }
    one_batch = 1.01 * IMAGES * 3 * SIDE * SIDE * 4 / 1e6
    bars = {name: [Bar("<", one_batch, "MB")] for name in more}
    return [*beside, list_values(f"{title}: more than with {min(BATCH_WORKERS)} workers", "MB", more, bars)]


def _of_waiting(rounds: int) -> list[Comparison]:
    def contender(paced: str, factor: int | None) -> Callable[[], float]:
        return lambda: in_fresh_process(waiting, paced=paced, prefetch_factor=factor)

    found = []
    for paced in ("evenly", "in bursts"):
        ways = {"prefetch_factor=2": contender(paced, 2), "rekindle": contender(paced, None)}
        shares = alternate(ways, rounds)
        found.append(list_values(f"waiting, {PACED_WORKERS} workers, batches taken {paced}", "%", shares, {}))
    return found
