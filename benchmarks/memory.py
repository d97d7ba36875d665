"""The memory of all processes together.

Question: Do many workers over a large Python dataset take more memory than torch's do?

Method: a dataset that holds a list of 1,000,000 strings; 4 workers, forked, read one epoch of it,
shuffled. After the last batch, while the workers are alive, the proportional set size (PSS: memory
shared by n processes counts 1/n in each) of the process and all below it is added up, from
`/proc/PID/smaps_rollup`: in all, and without the pages of files, which are libraries. Each
measurement runs in an interpreter of its own. Linux only.

    python -m benchmarks memory

Reading: MB, less is better; the bar is torch's (≤ 1.0×). Forked workers share the list at first.
But Python writes into an object when it is used (its reference count), so each worker that reads
from all over the list ends up with a copy of the strings, about 100 MB. On a machine where other
processes use torch too, look at the number without files: they share the libraries' pages, and when
one of them starts or ends, the share that counts here changes by up to 150 MB.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.loaders import LOADERS

ENTRIES, WORKERS, BATCH_SIZE = 1_000_000, 4, 1000


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
    return [
        compare(
            f"{title}; {what}",
            "MB",
            {name: [memory[what] for memory in measured] for name, measured in found.items()},
            {"rekindle": [Bar("≤", 1.0)]},
        )
        for what in ("in all", "without files")
    ]
