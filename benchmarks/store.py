"""The store of cached values.

Question: What does it cost to find and read a cached image?

Method: 1,000 uint8 images of 224 × 224 × 3 (150 kB each), read in random order.
Lookups are `Store.holds` for batches of 100, on one core. Images in memory are read with `get` (a
copy of their own) and viewed in place with `peek`, then copied to a buffer that exists; the peers
are the copies of the same images from plain memory. Images on disk are read with `get`, the peer
reads the same ranges with `os.pread`: from the disk (its cache emptied of these files before each
round), and from the system's cache.

    python -m benchmarks store

Reading: lookups a second, more is better, the bar is 500,000. The rest are images a second; ratios
are to the peer. From disk the bar is 0.8, within 20 % of reading alone. From the system's cache
reading is a copy, and the checksum, which is computed at every read, shows: there is no bar for it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare

IMAGES, SHAPE = 1000, (224, 224, 3)
LOOKUPS = 2_000_000


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Lookups a second, then images a second from memory and from disk; `data` is not used."""
    del data
    order = np.random.default_rng(0).permutation(IMAGES).tolist()
    images = np.random.default_rng(1).integers(0, 256, (IMAGES, *SHAPE), dtype=np.uint8)
    return [_lookups(rounds), *_memory(rounds, images, order), *_disk(rounds, images, order)]


def _a_second(read: Callable[[int], Any], order: list[int]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        for index in order:
            read(index)
        return len(order) / (time.perf_counter() - start)

    return timed


def _lookups(rounds: int) -> Comparison:
    from rekindle.reuse import Store

    with Store(1_000_000, memory=1 << 20) as store:
        ids = np.random.default_rng(0).permutation(1_000_000)[: LOOKUPS // 4].reshape(-1, 100)
        batches = [*ids, *ids, *ids, *ids]
        generations = np.zeros(ids.shape[1], dtype=np.int64)

        def look() -> float:
            start = time.perf_counter()
            for batch in batches:
                store.holds(batch, generations)
            return LOOKUPS / (time.perf_counter() - start)

        found = alternate({"holds, batches of 100": look}, rounds)
    title = "lookups in a store of 1,000,000 samples"
    return compare(title, "samples/s", found, {"holds, batches of 100": [Bar("≥", 500_000, "samples/s")]})


def _memory(rounds: int, images: np.ndarray[Any, Any], order: list[int]) -> list[Comparison]:
    from rekindle.reuse import Store

    with Store(IMAGES, memory=2 * images.nbytes) as store:
        for index in order:
            assert store.put(index, 0, images[index])
        buffer = np.empty(SHAPE, dtype=np.uint8)

        def copy_in_place(index: int) -> None:
            seen = store.peek(index, 0)
            assert seen is not None
            np.copyto(buffer, seen.value)
            assert seen.still_there()

        found = alternate(
            {
                "copy": _a_second(lambda index: images[index].copy(), order),
                "get": _a_second(lambda index: store.get(index, 0), order),
            },
            rounds,
        )
        in_place = alternate(
            {
                "copy": _a_second(lambda index: np.copyto(buffer, images[index]), order),
                "peek and copy": _a_second(copy_in_place, order),
            },
            rounds,
        )
    return [
        compare("150 kB images from memory, to memory of their own", "samples/s", found, {}),
        compare("150 kB images from memory, to a buffer that exists", "samples/s", in_place, {}),
    ]


def _disk(rounds: int, images: np.ndarray[Any, Any], order: list[int]) -> list[Comparison]:
    from rekindle.reuse import Store

    comparisons = []
    with tempfile.TemporaryDirectory() as folder, Store(IMAGES, memory=0, disk=folder) as store:
        for index in order:
            assert store.put(index, 0, images[index])
        assert store._disk is not None
        index = store._disk.index
        found = [index.find(sample, 0) for sample in range(IMAGES)]
        locations = [entry[0] for entry in found if entry]
        files = {location.segment: -1 for location in locations}
        for number in files:
            files[number] = os.open(index.path(number), os.O_RDONLY)
            os.fsync(files[number])
        ranges = [(files[location.segment], location.length, location.offset) for location in locations]

        def emptied(timed: Callable[[], float]) -> Callable[[], float]:
            def from_disk() -> float:
                for fd in files.values():
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                return timed()

            return from_disk

        pread = _a_second(lambda index: os.pread(*ranges[index]), order)
        get = _a_second(lambda index: store.get(index, 0), order)
        from_disk = alternate({"pread": emptied(pread), "get": emptied(get)}, rounds)
        bars = {"get": [Bar("≥", 0.8)]}
        comparisons.append(compare("150 kB images from disk", "samples/s", from_disk, bars))
        cached = alternate({"pread": pread, "get": get}, rounds)
        comparisons.append(compare("150 kB images from the system's cache", "samples/s", cached, {}))
        for fd in files.values():
            os.close(fd)
    return comparisons
