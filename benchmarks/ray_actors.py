"""Ray's actors beside local processes.

Question: What does it cost to have samples prepared by Ray's actors, and how far does their number carry?

Method: photographs (decode, RandomResizedCrop 224, flip, normalise, `rk.transforms`), batches of 64, by two
local processes and by two actors on this machine; also by two whose results go through the object store, as
those of other machines do; then by two actors and by Ray Data (`map_batches`, `iter_torch_batches`), if it is
installed, with the same dataset and steps: whole epochs, because it goes on loading when nobody asks. What it
gives is neither in the loader's order nor made into its batches by keys; it is the same work. Then **remote
cores are simulated**: a transform that sleeps 20 ms, in 1 and in 16 actors. Contenders alternate; all workers
are up and warm before anything is timed. Each comparison has a cluster of its own, with a CPU an actor: Ray
starts a process for each CPU that it is told of, and each of these takes a little time of the real ones.

    python -m benchmarks ray_actors

Reading: samples/s, more is better. The bars: actors ≥ 0.85 of local processes and ahead of Ray Data; 16
sleeping actors ≥ 14.4× of one. Bytes copied a sample: each result is copied to the batch once, so it is the
size of a sample; by way of the object store, Ray copies as much into that.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.data import Dataset

import rekindle as rk
from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare, list_values
from benchmarks.photographs import described, photographs
from rekindle.run.ray.lent_memory import Lender

BATCH_SIZE, SIZE, WORKERS, MANY = 64, 224, 2, 16
SECONDS, WARM_UP = 3.0, 8  # seconds; batches
LOADER: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "drop_last": True, "seed": 0}


class Sleeping(Dataset[torch.Tensor]):
    """Samples that take 20 ms and no CPU."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.full((64,), index)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Photographs by two workers of each kind; then what sleeps by 1 and 16 actors."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    files = photographs(data)
    dataset = _dataset(files)
    title = f"{described(data, files)}, {WORKERS} workers"
    sample = float(3 * SIZE * SIZE * 4 + 8)
    copied = {"Ray actors": [sample], "by the object store": [2 * sample]}
    return [
        compare(title, "samples/s", beside_processes(dataset, rounds), {"Ray actors": [Bar("≥", 0.85)]}),
        *_beside_ray_data(title, dataset, rounds),
        compare(
            "a sleep of 20 ms", "samples/s", sleeping(rounds), {f"{MANY} actors": [Bar("≥", 0.9 * MANY)]}
        ),
        list_values(f"{title}; copied", "bytes a sample", copied, {}),
    ]


def _dataset(files: list[Path]) -> Any:
    folder = os.path.commonpath([file.parent for file in files])
    labels = {os.path.relpath(file, folder): number for number, file in enumerate(files)}
    return rk.open(folder, transform=steps(), labels=labels)


def beside_processes(dataset: Any, rounds: int) -> dict[str, list[float]]:
    """Samples a second of local processes and of as many actors."""
    local = rk.DataLoader(dataset, num_workers=WORKERS, executor="processes", **LOADER)
    actors = rk.DataLoader(dataset, executor=rk.Ray(workers=WORKERS), **LOADER)
    with _cluster(WORKERS), local, actors:
        rate = _rate(actors, WORKERS)
        contenders = {
            "local processes": _rate(local),
            "Ray actors": rate,
            "by the object store": lambda: _as_from_elsewhere(rate),
        }
        return alternate(contenders, rounds)


def _as_from_elsewhere(measure: Callable[[], float]) -> float:
    """What is measured while actors are lent no memory: as if they were on other machines."""
    with patch.object(Lender, "lend", lambda *_: None):
        return measure()


@contextlib.contextmanager
def _cluster(cpus: int) -> Iterator[None]:
    """A cluster of this machine, said to have so many CPUs."""
    import ray

    ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _beside_ray_data(title: str, dataset: Any, rounds: int) -> list[Comparison]:
    if importlib.util.find_spec("pyarrow") is None:
        return []
    with (
        _cluster(2 * WORKERS),
        rk.DataLoader(dataset, executor=rk.Ray(workers=WORKERS), **LOADER) as loader,
    ):
        contenders = {
            "Ray Data": _rate_of_epochs(RayData(dataset), len(dataset)),
            "Ray actors": _rate_of_epochs(loader, len(loader) * BATCH_SIZE),
        }
        found = alternate(contenders, rounds)
    return [compare(f"{title}; whole epochs", "samples/s", found, {"Ray actors": [Bar("≥", 1.0)]})]


def sleeping(rounds: int) -> dict[str, list[float]]:
    """Samples a second of 1 and of 16 actors whose samples take 20 ms and no CPU."""
    counts = (1, MANY)
    with _cluster(sum(counts)), contextlib.ExitStack() as made:
        loaders = [rk.DataLoader(Sleeping(), executor=rk.Ray(workers=count), **LOADER) for count in counts]
        for loader in loaders:
            made.enter_context(loader)
        contenders = {
            f"{count} actors": _rate(loader, count) for count, loader in zip(counts, loaders, strict=True)
        }
        return alternate(contenders, rounds)


def steps() -> list[Any]:
    """What is done to a photograph."""
    return [
        rk.transforms.RandomResizedCrop(SIZE),
        rk.transforms.RandomHorizontalFlip(),
        rk.transforms.ToTensor(),
        rk.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]


class RayData:
    """The same samples by Ray Data: an epoch of batches each time it is asked."""

    def __init__(self, dataset: Any) -> None:
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        self._rows = ray.data.range(len(dataset), override_num_blocks=max(1, len(dataset) // BATCH_SIZE))
        self._rows = self._rows.map_batches(
            _load,
            batch_size=BATCH_SIZE,
            fn_args=(pickle.dumps(dataset),),
            compute=ray.data.TaskPoolStrategy(size=WORKERS),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows.iter_torch_batches(batch_size=BATCH_SIZE, local_shuffle_buffer_size=None))


@lru_cache(maxsize=1)
def _unpickled(pickled: bytes) -> Any:
    return pickle.loads(pickled)


def _load(rows: dict[str, Any], pickled: bytes) -> dict[str, Any]:
    dataset = _unpickled(pickled)
    samples = [dataset[int(index)] for index in rows["id"]]
    return {
        "image": np.stack([np.asarray(image) for image, _ in samples]),
        "label": np.array([label for _, label in samples]),
    }


def _rate(loader: Any, actors: int = 0) -> Callable[[], float]:
    """Samples a second of a loader, over a few seconds of the epochs that it goes on with."""
    batches = chain.from_iterable(repeat(loader))

    def measured() -> float:
        for _ in range(WARM_UP):
            next(batches)
        while actors and len(loader._parts.actors.pids()) < actors:
            next(batches)
        samples, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            next(batches)
            samples += BATCH_SIZE
        return samples / (time.perf_counter() - start)

    return measured


def _rate_of_epochs(loader: Any, samples: int) -> Callable[[], float]:
    """Samples a second of a loader, over as many epochs as take a few seconds, after one."""

    def measured() -> float:
        for _ in loader:
            pass
        epochs, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            for _ in loader:
                pass
            epochs += 1
        return epochs * samples / (time.perf_counter() - start)

    return measured
