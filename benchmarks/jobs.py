"""Four training runs on one host that share what they prepare.

Question: What does it cost to run four loaders at once, beside one?

Method: up to 400 photographs, RandomResizedCrop(224), RandAugment(4, 9), flip, normalise, in batches of 16 by
one worker, 4 epochs of Refurbish(factor=3). Processor time of a job and its worker, from before the loader is
made until it is closed, added up over the jobs, which are forked from one process and start together; jobs
have seeds of their own, or all the same. Split after RandAugment, most of a sample is prepared once for all;
split before its last layer, that layer is each job's own.

    python -m benchmarks jobs --data images.tar

Reading: seconds of processor time, less is better; four that share nothing cost 4×. The bar: ≤ 1.5× of one
job, split after RandAugment.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.photographs import photographs
from benchmarks.reuse import rekindle_loader

JOBS, EPOCHS, SAMPLES, LAYERS = 4, 4, 400, 4
SPLITS = {"after RandAugment": "RandomHorizontalFlip", "before its last layer": "RandAugment[3]"}


def _job(files: list[str], settings: dict[str, Any], seed: int, start: Any, results: Any) -> None:
    import rekindle as rk

    start.wait()
    began = _seconds()
    reuse = rk.Refurbish(factor=3, memory="1GB", **settings)
    with rekindle_loader(files, LAYERS, reuse=reuse, num_workers=1, batch_size=16, seed=seed) as loader:
        for _ in range(EPOCHS):
            for _ in loader:
                pass
    results.put(_seconds() - began)


def _seconds() -> float:
    """Processor time of this process and of those below it that have ended."""
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + below.ru_utime + below.ru_stime


def processor_seconds(files: list[str], jobs: int, split: str, shared: bool, same_seed: bool) -> float:
    """Processor time of some jobs that run at once."""
    next(iter(rekindle_loader(files, LAYERS, num_workers=0, batch_size=16)))  # Compiled code is loaded once.
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(jobs), context.SimpleQueue()
    settings = {"split": split, "shared": f"benchmark {os.getpid()}" if shared else None}
    running = [
        context.Process(target=_job, args=(files, settings, 0 if same_seed else seed, start, results))
        for seed in range(jobs)
    ]
    for job in running:
        job.start()
    found = [results.get() for _ in running]
    for job in running:
        job.join()
    return sum(found)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """The answers."""
    with tempfile.TemporaryDirectory() as folder:
        files = links(photographs(data)[:SAMPLES], Path(folder))
        return [_answer(rounds, files, title, split) for title, split in SPLITS.items()]


def links(images: list[Path], folder: Path) -> list[str]:
    """Links to some images in a folder that has no others."""
    files = [folder / f"{number:04}{image.suffix}" for number, image in enumerate(images)]
    for file, image in zip(files, images, strict=True):
        file.symlink_to(image.resolve())
    return [str(file) for file in files]


def _answer(rounds: int, files: list[str], title: str, split: str) -> Comparison:
    run = partial(in_fresh_process, processor_seconds, files=files, split=split)
    contenders = {
        "one job": partial(run, jobs=1, shared=False, same_seed=True),
        "four that share": partial(run, jobs=JOBS, shared=True, same_seed=False),
        "four that share, the same seed": partial(run, jobs=JOBS, shared=True, same_seed=True),
        "four that do not": partial(run, jobs=JOBS, shared=False, same_seed=False),
    }
    promised = title == "after RandAugment"
    bars = {name: [Bar("≤", 1.5)] for name in contenders if promised and "share" in name}
    found = alternate(contenders, rounds)
    return compare(f"{JOBS} jobs of {len(files)} images, split {title}", "s", found, bars)
