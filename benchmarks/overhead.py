"""What Python itself costs on the image path.

Question: How long does a sample hold the GIL on its way from a file to the batch?

Method: an image of 16×16 pixels, so small that nothing but overhead is left, as a JPEG in a file and as raw
pixels in an HDF5 file: RandomResizedCrop(8), flip, normalise, batches of 64, in one thread. Of the CPU time,
that within the decoder (of this thread, measured where it is called), what measuring that takes itself, and
the system's share, which is opening and reading files, are left out: these release the GIL, or are not the
loader's. The compiled kernels release it too, but are counted:
with so few pixels, calling them is all there is. The least of 30 passes over 1,024 images counts; the rest is
the machine's noise.

    python -m benchmarks overhead

Reading: microseconds a sample, less is better. The bars: < 25 from JPEGs, < 10 from raw pixels.
"""

from __future__ import annotations

import io
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.peers import BATCH_SIZE, MEAN, STD

SAMPLES, PASSES = 16 * BATCH_SIZE, 30


def measure_overhead(raw: bool = False) -> float:
    """Microseconds a sample, from JPEG files or from raw pixels in one file."""
    import rekindle as rk
    from rekindle.prepare.decode import jpeg_box

    T = rk.transforms  # noqa: N806
    steps = [T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    decoder = TimedDecoder(jpeg_box.compile_box())
    loaded = patch.object(jpeg_box, "compiled_or_later", lambda *_: decoder)
    with tempfile.TemporaryDirectory() as scratch, loaded:
        folder, packed = Path(scratch) / "files", Path(scratch) / "raw.h5"
        folder.mkdir()
        names = [f"{number}.jpg" for number in range(SAMPLES)]
        for name in names:
            (folder / name).write_bytes(_tiny_jpeg())
        labels = dict.fromkeys(names, 0)
        if raw:
            rk.pack(rk.open(folder, labels=labels), packed, raw_share=1.0, progress=False)
            dataset = rk.open(packed, transform=steps)
        else:
            dataset = rk.open(folder, transform=steps, labels=labels)
        loader = rk.DataLoader(dataset, batch_size=BATCH_SIZE, seed=0)
        for _ in loader:
            pass
        spent, in_the_system = [], _system_seconds()
        for _ in range(PASSES):
            decoder.seconds, started = 0.0, time.process_time()
            for _ in loader:
                pass
            spent.append(time.process_time() - started - decoder.seconds)
        share = (_system_seconds() - in_the_system) / sum(spent)
    measuring = 0.0 if raw else seconds_of_timing()
    return 1e6 * (min(spent) / SAMPLES - measuring) * (1 - share)


class TimedDecoder:
    """A decoder that counts the CPU time it takes."""

    def __init__(self, decode: Callable[..., Any]) -> None:
        self.decode, self.seconds = decode, 0.0

    def __call__(self, *arguments: Any) -> Any:
        started = time.thread_time()
        decoded = self.decode(*arguments)
        self.seconds += time.thread_time() - started
        return decoded


def seconds_of_timing() -> float:
    """What a call of a timed decoder takes that one without would not, and does not count as decoding."""

    def nothing(*_: object) -> None:
        """Nothing, with the arguments of the real one."""

    timed, arguments = TimedDecoder(nothing), (b"", *[0] * 6, *[b""] * 9, b"")

    def least(decode: Callable[..., Any]) -> float:
        times = []
        for _ in range(PASSES):
            timed.seconds, started = 0.0, time.process_time()
            for _ in range(SAMPLES):
                decode(*arguments)
            times.append(time.process_time() - started - timed.seconds)
        return min(times) / SAMPLES

    return least(timed) - least(nothing)


def _tiny_jpeg() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def _system_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """One number a round, from JPEGs and from raw pixels."""
    del data
    found = alternate(
        {
            "JPEG": lambda: in_fresh_process(measure_overhead),
            "raw": lambda: in_fresh_process(measure_overhead, raw=True),
        },
        rounds,
    )
    where = "of 16×16 pixels to the batch, GIL held"
    return [
        compare(
            f"a JPEG {where}", "µs a sample", {"rekindle": found["JPEG"]}, {"rekindle": [Bar("<", 25, "µs")]}
        ),
        compare(
            f"raw pixels {where}",
            "µs a sample",
            {"rekindle": found["raw"]},
            {"rekindle": [Bar("<", 10, "µs")]},
        ),
    ]
