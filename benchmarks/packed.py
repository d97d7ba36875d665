"""Packed files beside a file a sample, h5py and webdataset.

Question: How much faster are samples read from packed files, and what is left of it in the image path?

Method: photographs are packed into HDF5 (by h5py itself as well), TFRecord, tar and LMDB. First only their
bytes: samples in random order, one thread, each contender in an interpreter of its own, page cache warm;
`view` is what a source gives (no copy), `copy` makes bytes of it. With one and with two threads, in turns of
a twentieth of a second of which the best counts, every view is read by a checksum (zlib), which releases the
GIL as a decoder does; and those of HDF5 are copied as `decode=False` does, which releases it too, but so
briefly that taking it again counts. Two processes, which share no GIL, show what the machine itself allows.
Cold: the files are dropped from the page cache before. Through the loader: batches of 64 encoded images with
2 workers, against webdataset's pipeline (4 shards, shuffle buffer of 1,000) in torch's loader. Then the image
path (decode, RandomResizedCrop 224, flip, normalise) with 2 threads, from files, from HDF5, and from copies
of 400 pixels, half of them raw (`pipelines` has more operations); these take turns of an epoch in one
process, of which the median counts. As a loader's rate swings by more than a few per cent, they also take
turns with every sample, in one thread, without a loader. Last, an index of 10,000,000 samples is opened.

    python -m benchmarks packed --data images.tar

Reading: samples/s, more is better. The bars: ≥ 10× h5py, ≥ 3× a file a sample, 2 threads ≥ 1.7× one, ≥ 2×
webdataset, the image path ≥ 1.0× that from files and ≥ 1.8× from the half raw copy; 10,000,000 samples open
in < 100 ms.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import random
import resource
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.packs import SHARDS, make_packs
from benchmarks.photographs import described, photographs

WORKERS, BATCH_SIZE, BUFFER = 2, 64, 1000
FORMATS = {"HDF5": "h5", "TFRecord": "tfrecord", "tar": "tar", "LMDB": "lmdb"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHECKSUM, COPIED = "checksummed", "copied without the GIL"
LEAST_SECONDS = 0.5
TURNS = 80
IMAGE_TURNS = 5
MANY = 10_000_000


# Bytes only.

_use: Callable[
    [int], Any
]  # what is done with a sample; set before processes are forked, who then have it too


def reader(contender: str, path: str, copies: bool = False) -> tuple[int, Callable[[int], Any]]:
    """How many samples there are, and what reads one; of ours, as a view or as a copy."""
    if contender == "h5py":
        import h5py

        stored = h5py.File(path)["images"]
        return len(stored), lambda index: stored[index]
    if contender == "a file a sample":
        names = sorted(glob.glob(os.path.join(path, "*.jpg")))

        def read(index: int) -> bytes:
            with open(names[index], "rb") as file:
                return file.read()

        return len(names), read
    from rekindle.fetch import open_source

    source = open_source(path)
    return len(source), source.copy if copies else source.read


def measure_bytes(contender: str, path: str, how: str) -> float:
    """Samples a second in random order: as a view, or as a copy."""
    count, read = reader(contender, path)
    use = read if how == "view" else lambda index: bytes(read(index))
    order = list(range(count))
    random.Random(0).shuffle(order)
    for index in order:
        use(index)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < LEAST_SECONDS:
        for index in order:
            use(index)
        done += count
    return done / (time.perf_counter() - start)


def measure_threads(contender: str, path: str, how: str) -> dict[str, float]:
    """Samples a second in random order by one thread, by two, and by two processes; checksummed or copied.

    They take turns of a twentieth of a second or so, and the best turn of each counts: two cores are rarely
    both left alone for longer.
    """
    global _use
    count, read = reader(contender, path, copies=how == COPIED)
    _use = read if how == COPIED else lambda index: zlib.crc32(read(index))
    order = list(range(count))
    random.Random(0).shuffle(order)
    _use_all(order)
    halves = [order[::2], order[1::2]]
    with multiprocessing.get_context("fork").Pool(2) as processes, ThreadPoolExecutor(2) as threads:
        turns: dict[str, Callable[[], Any]] = {
            "1 thread": lambda: list(threads.map(_use_all, [order])),
            "2 threads": lambda: list(threads.map(_use_all, halves)),
            "2 processes": lambda: processes.map(_use_all, halves, chunksize=1),
        }
        best = dict.fromkeys(turns, 0.0)
        for _ in range(TURNS):
            for name, turn in turns.items():
                start = time.perf_counter()
                turn()
                best[name] = max(best[name], count / (time.perf_counter() - start))
    return best


def _use_all(indices: list[int]) -> None:
    for index in indices:
        _use(index)


def measure_cold(contender: str, path: str) -> float:
    """Samples a second, each read once and touched, after its files were dropped from the page cache."""
    count, read = reader(contender, path)
    order = list(range(count))
    random.Random(0).shuffle(order)
    for name in [path] if os.path.isfile(path) else glob.glob(os.path.join(path, "*")):
        file = os.open(name, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    start = time.perf_counter()
    for index in order:
        zlib.crc32(read(index))
    return count / (time.perf_counter() - start)


# Through loaders.


def measure_loader(contender: str, path: str) -> float:
    """Samples a second of encoded images in batches, workers' start not counted."""
    batches: Iterable[Any]
    if contender == "webdataset":
        import torch
        import webdataset

        dataset = (
            webdataset.WebDataset(path, shardshuffle=SHARDS, nodesplitter=None)
            .shuffle(BUFFER)
            .to_tuple("jpg", "cls")
            .batched(BATCH_SIZE)
        )
        batches = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True
        )
    else:
        import rekindle as rk

        batches = rk.DataLoader(
            rk.open(path, decode=False),
            batch_size=BATCH_SIZE,
            shuffle=True,
            num_workers=WORKERS,
            seed=0,
        )
    _epoch_rate(batches)  # Starts workers, fills the page cache.
    return statistics.median(_epoch_rate(batches) for _ in range(3))


def _steps() -> list[Any]:
    import rekindle as rk

    T = rk.transforms  # noqa: N806
    return [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]


def measure_images(packs: dict[str, str]) -> dict[str, float]:
    """Samples a second of the whole image path: loaders side by side, which take turns of an epoch."""
    import rekindle as rk

    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS, "seed": 0}
    loaders = {
        name: rk.DataLoader(rk.open(path, transform=_steps()), **settings) for name, path in packs.items()
    }
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    order = list(loaders)
    for turn in range(1 + IMAGE_TURNS):
        for name in order:
            rate = _epoch_rate(loaders[name])
            loaders[name].close()  # Workers would go on with the next epoch, in the next one's turn.
            if turn:  # The first compiles, and fills the page cache.
                rates[name].append(rate)
        order.reverse()
    return {name: statistics.median(values) for name, values in rates.items()}


def measure_samples(packs: dict[str, str]) -> dict[str, float]:
    """The same by one thread without a loader: each sample from each in turn, the least of some times."""
    import rekindle as rk

    datasets = {name: rk.open(path, transform=_steps()) for name, path in packs.items()}
    count, uniforms = len(datasets["files"]), datasets["files"].uniforms or 0
    draw, out = np.random.default_rng(0), np.empty((3, 224, 224), dtype=np.float32)
    numbers = draw.random((count, uniforms))
    least = {name: np.full(count, np.inf) for name in datasets}
    order = list(datasets)
    for _ in range(IMAGE_TURNS):
        for index in draw.permutation(count).tolist():
            for name in order:
                start = time.perf_counter()
                datasets[name].write(index, numbers[index], out)
                least[name][index] = min(least[name][index], time.perf_counter() - start)
            order.append(order.pop(0))
    return {name: count / float(times.sum()) for name, times in least.items()}


def _epoch_rate(batches: Iterable[Any]) -> float:
    done, start = 0, time.perf_counter()
    for batch in batches:
        done += len(batch[0])
    return done / (time.perf_counter() - start)


# Opening.


def measure_opening(path: str) -> dict[str, float]:
    """Milliseconds and MB that opening an index of many samples takes, first reads included."""
    from rekindle.fetch.byte_files import LocalFile
    from rekindle.fetch.packed.source import Packed
    from rekindle.fetch.packed.tar.index import index_tar

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    source = Packed(path, [LocalFile(path)], index_tar)
    for index in (0, MANY // 2, MANY - 1):
        source.read(index)
    took = time.perf_counter() - start
    assert len(source) == MANY
    return {"ms": 1e3 * took, "MB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3}


def _large_index(folder: Path) -> str:
    from rekindle.fetch.byte_files import LocalFile
    from rekindle.fetch.packed import index_file
    from rekindle.fetch.packed.record_index import RecordIndex, make_rows

    path = folder / "many.tar"
    with path.open("wb") as file:
        file.truncate(MANY * 1000)  # Nothing is written: a file of holes.
    rows = make_rows(np.arange(MANY, dtype=np.int64) * 1000, 1000, np.arange(MANY) % 1000)
    files = [LocalFile(path)]
    assert index_file.write_index(index_file.index_paths(files, {})[0], RecordIndex("tar", rows), files)
    return str(path)


# The answer.


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Bytes, threads, loaders, images and opening, each against its peer."""
    images = photographs(data)
    what = described(data, images)
    with tempfile.TemporaryDirectory(prefix="rekindle-packed-") as folder:
        packs = make_packs([str(path) for path in images], Path(folder))
        return [
            *_bytes(what, packs, rounds),
            *_threads(what, packs, rounds),
            *_loaders(what, packs, rounds),
            *_images(what, packs, rounds),
            *_opening(_large_index(Path(folder)), rounds),
        ]


def _call(function: Callable[..., Any], **arguments: Any) -> Callable[[], Any]:
    return lambda: in_fresh_process(function, **arguments)


def _bytes(what: str, packs: dict[str, str], rounds: int) -> list[Comparison]:
    found = []
    for how in ("view", "copy"):
        turns = {
            "h5py": _call(measure_bytes, contender="h5py", path=packs["h5py's"], how=how),
            "rekindle": _call(measure_bytes, contender="rekindle", path=packs["h5py's"], how=how),
        }
        title = f"{what}; bytes at random, one thread, HDF5 that h5py wrote; {how}"
        found.append(compare(title, "samples/s", alternate(turns, rounds), {"rekindle": [Bar("≥", 10.0)]}))
    by_format = {name: packs[ending] for name, ending in FORMATS.items()}
    for how in ("view", "copy"):
        turns = {
            "a file a sample": _call(measure_bytes, contender="a file a sample", path=packs["files"], how=how)
        }
        for name, path in by_format.items():
            turns[name] = _call(measure_bytes, contender=name, path=path, how=how)
        bars = {name: [Bar("≥", 3.0, aim=how == "copy")] for name in by_format}
        found.append(
            compare(
                f"{what}; bytes at random, one thread; {how}", "samples/s", alternate(turns, rounds), bars
            )
        )
    turns = {"a file a sample": _call(measure_cold, contender="a file a sample", path=packs["files"])}
    for name, path in by_format.items():
        turns[name] = _call(measure_cold, contender=name, path=path if name != "LMDB" else f"{path}/data.mdb")
    title = f"{what}; bytes at random, one thread, page cache dropped, every byte touched"
    found.append(compare(title, "samples/s", alternate(turns, rounds), {}))
    return found


def _threads(what: str, packs: dict[str, str], rounds: int) -> list[Comparison]:
    found = []
    for name, how, bar in (
        *((name, CHECKSUM, Bar("≥", 1.7)) for name in FORMATS),
        ("HDF5", COPIED, Bar("≥", 1.7, aim=True)),
    ):
        measured = [
            in_fresh_process(measure_threads, contender=name, path=packs[FORMATS[name]], how=how)
            for _ in range(rounds)
        ]
        rates = {shown: [one[shown] for one in measured] for shown in measured[0]}
        title = f"{what}; {name}, bytes at random, {how}"
        found.append(compare(title, "samples/s", rates, {"2 threads": [bar]}))
    return found


def _loaders(what: str, packs: dict[str, str], rounds: int) -> list[Comparison]:
    turns = {
        name: _call(measure_loader, contender=name, path=packs["shards"])
        for name in ("webdataset", "rekindle")
    }
    title = f"{what}; {SHARDS} tar shards, encoded images in batches of {BATCH_SIZE}, {WORKERS} workers"
    return [compare(title, "samples/s", alternate(turns, rounds), {"rekindle": [Bar("≥", 2.0)]})]


def _images(what: str, packs: dict[str, str], rounds: int) -> list[Comparison]:
    contenders = {name: packs[name] for name in ("files", "h5", "tar", "smaller", "half raw")}
    bars = {"h5": [Bar("≥", 1.0)], "half raw": [Bar("≥", 1.8)]}
    found = []
    for how, function in ((f"{WORKERS} threads", measure_images), ("a sample at a time", measure_samples)):
        measured = [in_fresh_process(function, packs=contenders) for _ in range(rounds)]
        rates = {name: [one[name] for one in measured] for name in contenders}
        found.append(compare(f"{what}; the image path, {how}", "samples/s", rates, bars))
    return found


def _opening(path: str, rounds: int) -> list[Comparison]:
    measured = alternate({"rekindle": _call(measure_opening, path=path)}, rounds)["rekindle"]
    title = f"opening an index of {MANY:,} samples and reading three"
    return [
        compare(
            title, "ms", {"rekindle": [one["ms"] for one in measured]}, {"rekindle": [Bar("<", 100, "ms")]}
        ),
        compare(f"{title}; memory", "MB", {"rekindle": [one["MB"] for one in measured]}, {}),
    ]
