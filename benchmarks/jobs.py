"""Four training runs on one host that share what they prepare.

Question: What does it cost to run four loaders at once, beside one?

Method: up to 1,000 photographs, RandomResizedCrop(224), RandAugment(4, 9), flip, normalise, in batches of 64
by one worker, 6 epochs of Refurbish(factor=3). Processor time of a job and its worker, from before the loader
is made until it is closed, added up over the jobs, which are forked from one process and start together; jobs
have seeds of their own, or all the same. Split after RandAugment, most of a sample is prepared once for all;
split before its last layer, that layer is each job's own.

    python -m benchmarks jobs --data images.tar

Reading: seconds of processor time, less is better. The bar: ≤ 1.5× of one job, split after RandAugment; four
that share nothing cost 4×. The same work takes more seconds on a machine that is busy with three other jobs:
beside one job alone stands a quarter of four that share nothing.

The least that four can cost: a job is 2,667 parts (about 0.57 ms each, 1.5 s), and the flip, the floats and
the batches of 6,000 samples and its start (0.63 s). The first is done once, the others by each job:
(1.5 + 4 × 0.63) / (1.5 + 0.63) = 1.9. A recipe whose parts take less time than five times a job's own work is
above 1.5 whatever is shared; with photographs decoded by libjpeg-turbo, on a slower machine, it was 1.4.
"""

from __future__ import annotations

import gc
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
from benchmarks.fresh_process import in_fresh_process, results_of
from benchmarks.photographs import photographs
from benchmarks.reuse import rekindle_loader

JOBS, EPOCHS, SAMPLES, LAYERS, BATCH_SIZE = 4, 6, 1000, 4, 64
SPLITS = {"after RandAugment": "RandomHorizontalFlip", "before its last layer": "RandAugment[3]"}


def _job(files: list[str], settings: dict[str, Any], seed: int, start: Any, results: Any) -> None:
    import rekindle as rk

    start.wait()
    began = _seconds()
    reuse = rk.Refurbish(factor=3, memory="1GB", **settings)
    with rekindle_loader(
        files, LAYERS, reuse=reuse, num_workers=1, batch_size=BATCH_SIZE, seed=seed
    ) as loader:
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
    next(iter(rekindle_loader(files, LAYERS, num_workers=0)))  # Compiled code is loaded once.
    gc.freeze()  # A forked job's first collection would copy every page of what was imported: 0.25 s a job.
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(jobs), context.SimpleQueue()
    settings = {"split": split, "shared": f"benchmark {os.getpid()}" if shared else None}
    running = [
        context.Process(target=_job, args=(files, settings, 0 if same_seed else seed, start, results))
        for seed in range(jobs)
    ]
    return sum(results_of(running, results))


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """The answers."""
    with tempfile.TemporaryDirectory() as folder:
        files = links(photographs(data)[:SAMPLES], Path(folder))
        return [one for title, split in SPLITS.items() for one in answers(rounds, files, title, split)]


def links(images: list[Path], folder: Path) -> list[str]:
    """Links to some images in a folder that has no others."""
    files = [folder / f"{number:04}{image.suffix}" for number, image in enumerate(images)]
    for file, image in zip(files, images, strict=True):
        file.symlink_to(image.resolve())
    return [str(file) for file in files]


def answers(rounds: int, files: list[str], title: str, split: str) -> list[Comparison]:
    """What jobs cost that split there, beside one that is alone and one that is not."""
    run = partial(in_fresh_process, processor_seconds, files=files, split=split)
    contenders = {
        "one job": partial(run, jobs=1, shared=False, same_seed=True),
        "four that share": partial(run, jobs=JOBS, shared=True, same_seed=False),
        "four that share, the same seed": partial(run, jobs=JOBS, shared=True, same_seed=True),
        "four that do not": partial(run, jobs=JOBS, shared=False, same_seed=False),
    }
    return compared(alternate(contenders, rounds), len(files), title)


def compared(found: dict[str, list[float]], size: int, title: str) -> list[Comparison]:
    """What was measured beside one job alone, and beside one of four that share nothing."""
    promised = title == "after RandAugment"
    bars = {name: [Bar("≤", 1.5)] for name in found if promised and "share" in name}
    title = f"{JOBS} jobs of {size} images, split {title}"
    one_of_four = {"one of four": [seconds / JOBS for seconds in found["four that do not"]]}
    sharing = {name: seconds for name, seconds in found.items() if "share" in name}
    return [
        compare(title, "s", found, bars),
        compare(f"{title}; as busy a machine", "s", {**one_of_four, **sharing}, bars),
    ]
