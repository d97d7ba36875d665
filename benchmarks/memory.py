"""The memory of all processes together.

Question: Does a loader with many workers take more memory than torch's, with a large Python data set?

Method: a data set that holds a list of 1,000,000 strings; 4 workers, forked, read one epoch of it,
shuffled. After the last batch, while the workers are alive, the proportional set size (PSS: memory
shared by n processes counts 1/n in each) of the process and all below it is added up, from
`/proc/PID/smaps_rollup`. Each measurement runs in an interpreter of its own. Linux only.

    python -m benchmarks memory

Reading: MB, less is better; the bar is torch's (≤ 1.0×). Forked workers share the list at first.
But Python writes into an object when it is used (its reference count), so each worker that reads
from all over the list ends up with a copy of the strings, about 100 MB.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.loaders import LOADERS

ENTRIES, WORKERS, BATCH_SIZE = 1_000_000, 4, 1000


class ManyStrings:
    """A data set that is a list of strings, as file names are; a sample is a string's length."""

    def __init__(self) -> None:
        self.names = [
            f"photographs/of/class-{i % 1000:04}/number-{i:08}.jpg" for i in range(ENTRIES)
        ]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return len(self.names[index])


def memory_after_an_epoch(loader: str) -> float:
    """PSS in MB of this process and all below it, after the last batch of an epoch."""
    import psutil

    make = LOADERS[loader]
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS}
    batches = iter(make(ManyStrings(), multiprocessing_context="fork", **settings))
    for _ in range(ENTRIES // BATCH_SIZE):
        next(batches)
    # The epoch's end, which would let the workers go, has not been asked for.
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    if len(processes) < 1 + WORKERS:
        raise RuntimeError(f"{loader}: {len(processes) - 1} workers are alive, not {WORKERS}.")
    return sum(pss_bytes(process.pid) for process in processes) / 1e6


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Pss.")


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """MB with each loader; `data` is not used."""
    del data
    found = alternate(
        {
            name: lambda name=name: in_fresh_process(memory_after_an_epoch, loader=name)
            for name in LOADERS
        },
        rounds,
    )
    title = f"PSS after an epoch; a list of {ENTRIES:,} strings, {WORKERS} workers"
    return [compare(title, "MB", found, {"rekindle": [Bar("≤", 1.0)]})]
