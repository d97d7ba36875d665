"""`rekindle pack` beside what it cannot do without: reading and writing bytes, and decoding images.

Question: Is packing bound by the disk where images stay as they are, and by both cores where they do not?

Method: a folder of photographs is packed with two workers, in an interpreter of its own, files in the page
cache, the result synchronised to disk. Plain copies are beside a loop that appends each file to one file
(`cat`) and synchronises that. For smaller copies (400 pixels, quality 90, half raw) the processor time of the
process is divided by the time that passed: so many of the two cores were busy. Imports are not counted.

    python -m benchmarks packing --data images.tar

Reading: MB/s of images, more is better; 1.0× is as quick as `cat`. Cores: 2 is the most there can be, and a
wait for the disk at the end is part of the time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.photographs import described, photographs

WORKERS = 2
ENDINGS = {"HDF5": "h5", "TFRecord": "tfrecord", "tar": "tar", "LMDB": "lmdb"}


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Plain copies beside `cat`, and the cores that smaller copies keep busy."""
    images = photographs(data)
    what = described(data, images)
    with tempfile.TemporaryDirectory(prefix="rekindle-packing-") as scratch:
        folder = Path(scratch) / "files" / "class"
        folder.mkdir(parents=True)
        for number, image in enumerate(images):
            shutil.copy(image, folder / f"{number:06}{image.suffix.lower()}")
        turns: dict[str, Callable[[], Any]] = {
            "cat": lambda: in_fresh_process(concatenate, folder=str(folder))
        }
        for name, ending in ENDINGS.items():
            turns[name] = _turn(folder, ending, small=False)
        plain = alternate(turns, rounds)
        small = alternate(
            {name: _turn(folder, ending, small=True) for name, ending in ENDINGS.items()}, rounds
        )
    rates = {name: [one["MB/s"] for one in found] for name, found in plain.items()}
    aims = {name: [Bar("≥", 0.8, aim=True)] for name in ENDINGS}
    cores = {name: [one["cores"] for one in found] for name, found in small.items()}
    busy = {name: [Bar("≥", 1.7, "cores")] for name in ENDINGS}
    return [
        compare(f"{what}; as they are", "MB/s", rates, aims),
        compare(f"{what}; 400 pixels, half raw, {WORKERS} workers", "cores busy", cores, busy),
    ]


def _turn(folder: Path, ending: str, small: bool) -> Callable[[], Any]:
    return lambda: in_fresh_process(packed, folder=str(folder.parent), ending=ending, small=small)


def packed(folder: str, ending: str, small: bool) -> dict[str, float]:
    """MB/s and cores of one run of packing."""
    import cv2  # noqa: F401 - loaded before the clock runs
    import simplejpeg  # noqa: F401

    from rekindle.fetch import open_source, writer_for
    from rekindle.prepare.decode import decode  # noqa: F401
    from rekindle.tools.pack import pack

    options: dict[str, Any] = {"resize": 400, "quality": 90, "raw_share": 0.5} if small else {}
    source = open_source(folder)
    with tempfile.TemporaryDirectory(dir=Path(folder).parent) as scratch:
        writer_for(Path(scratch) / f"first.{ending}").abort()  # loads the format's library
        clock, work = time.perf_counter(), time.process_time()
        pack(source, Path(scratch) / f"x.{ending}", workers=WORKERS, progress=False, **options)
        clock, work = time.perf_counter() - clock, time.process_time() - work
    return {"MB/s": source.lengths().sum() / 1e6 / clock, "cores": work / clock}


def concatenate(folder: str) -> dict[str, float]:
    """MB/s of appending all files to one, and of waiting until the disk has it."""
    names = sorted(os.listdir(folder))
    with tempfile.NamedTemporaryFile(dir=Path(folder).parent.parent) as out:
        start, nbytes = time.perf_counter(), 0
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                nbytes += out.write(file.read())
        out.flush()
        os.fsync(out.fileno())
        return {"MB/s": nbytes / 1e6 / (time.perf_counter() - start)}
