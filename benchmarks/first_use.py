"""The first minute: a machine that has never run this.

Question: How long does a new script wait for its first two batches if nothing has been compiled yet?

Method: 256 JPEGs of 320×240 pixels; RandomResizedCrop(224), flip, ToTensor, Normalize, batches of 64,
2 workers. A new interpreter each time, which imports Rekindle, opens the folder and takes two batches, with
an empty folder for compiled code ("empty") or with one where all has been compiled ("warm");
"augmented" adds RandAugment to an empty one. Measured from the start of the script, imports included, by the
clock; CPU seconds of the script's own process beside it, which other programs disturb less.

    python -m benchmarks first_use

Reading: seconds, less is better. The bar: the second batch within 5 s with nothing compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare

SCRIPT = """
import sys, time
import rekindle as rk
T = rk.transforms
extra = [T.RandAugment()] if sys.argv[2] == "augmented" else []
crop, normalize = T.RandomResizedCrop(224), T.Normalize([0.5] * 3, [0.25] * 3)
steps = [crop, *extra, T.RandomHorizontalFlip(), T.ToTensor(), normalize]
dataset = rk.open(sys.argv[1], transform=steps)
batches = iter(rk.DataLoader(dataset, batch_size=64, num_workers=2))
started = float(sys.argv[3])
for _ in range(2):
    next(batches)
    print(time.time() - started, time.process_time())
"""
TIMES = ("first batch", "second batch")


def _seconds(folder: Path, kind: str, compiled: Path) -> list[tuple[float, float]]:
    """Clock and CPU seconds to each of two batches."""
    import time

    printed = _run(SCRIPT, compiled, str(folder), kind, repr(time.time()))
    return [(float(clock), float(cpu)) for clock, cpu in map(str.split, printed.splitlines())]


def _run(script: str, compiled: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(compiled)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def _in_an_empty_folder(folder: Path, kind: str) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as compiled:
        return _seconds(folder, kind, Path(compiled))


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Seconds to the first and to the second batch."""
    del data
    with tempfile.TemporaryDirectory() as scratch:
        folder, compiled = _photographs(Path(scratch)), Path(scratch) / "compiled"
        compiled.mkdir(mode=0o700)
        _run("from benchmarks.program import compile_kernels; compile_kernels()", compiled)
        found = alternate(
            {
                "warm": lambda: _seconds(folder, "plain", compiled),
                "empty": lambda: _in_an_empty_folder(folder, "plain"),
                "augmented": lambda: _in_an_empty_folder(folder, "augmented"),
            },
            rounds,
        )
    comparisons = []
    for number, title in enumerate(TIMES):
        clock = {name: [times[number][0] for times in values] for name, values in found.items()}
        cpu = {name: [times[number][1] for times in values] for name, values in found.items()}
        bars = {name: [Bar("<", 5, "s")] for name in ("empty", "augmented")} if number else {}
        comparisons.append(compare(f"{title}, by the clock", "s", clock, bars))
        comparisons.append(compare(f"{title}, CPU of the script's process", "s", cpu, {}))
    return comparisons


def _photographs(scratch: Path) -> Path:
    from PIL import Image

    folder = scratch / "images" / "class"
    folder.mkdir(parents=True)
    for number in range(256):
        coarse = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((320, 240)).save(folder / f"{number}.jpg")
    return folder.parent
