"""What Python itself costs on the image path.

Question: How long does a sample hold the GIL on its way from a file to the batch?

Method: a JPEG of 16×16 pixels, so small that nothing but overhead is left: RandomResizedCrop(8), flip,
normalise, batches of 64, in one thread. Of the CPU time, that within the decoder (timed where it is called)
and the system's share, which is opening and reading files, are left out: both release the GIL. The compiled
kernels release it too, but are counted: with so few pixels, calling them is all there is. The least of 30
passes over 1,024 files counts; the rest is the machine's noise.

    python -m benchmarks overhead

Reading: microseconds a sample, less is better. The bar: < 60.
"""

from __future__ import annotations

import io
import resource
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.answer import Bar, Comparison, compare
from benchmarks.fresh_process import in_fresh_process
from benchmarks.peers import BATCH_SIZE, MEAN, STD

SAMPLES, PASSES = 16 * BATCH_SIZE, 30


def measure_overhead() -> float:
    """Microseconds a sample."""
    import rekindle as rk
    from rekindle.prepare.decode import jpeg

    T = rk.transforms  # noqa: N806
    steps = [T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    decode, decoding = jpeg.simplejpeg.decode_jpeg, 0.0

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal decoding
        started = time.perf_counter()
        image = decode(*arguments, **options)
        decoding += time.perf_counter() - started
        return image

    with tempfile.TemporaryDirectory() as folder, patch.object(jpeg.simplejpeg, "decode_jpeg", timed):
        names = [f"{number}.jpg" for number in range(SAMPLES)]
        for name in names:
            (Path(folder) / name).write_bytes(_tiny_jpeg())
        dataset = rk.open(folder, transform=steps, labels=dict.fromkeys(names, 0))
        loader = rk.DataLoader(dataset, batch_size=BATCH_SIZE, seed=0)
        for _ in loader:
            pass
        spent, in_the_system = [], _system_seconds()
        for _ in range(PASSES):
            decoding, started = 0.0, time.process_time()
            for _ in loader:
                pass
            spent.append(time.process_time() - started - decoding)
        share = (_system_seconds() - in_the_system) / sum(spent)
    return 1e6 * min(spent) * (1 - share) / SAMPLES


def _tiny_jpeg() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def _system_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """One number a round."""
    own = [in_fresh_process(measure_overhead) for _ in range(rounds)]
    title = "a JPEG of 16×16 pixels from file to batch, GIL held"
    return [compare(title, "µs a sample", {"rekindle": own}, {"rekindle": [Bar("<", 60, "µs")]})]
