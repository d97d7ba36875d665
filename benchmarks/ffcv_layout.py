"""FFCV's files and pipelines beside packed files of the same bytes.

Question: How much faster than FFCV are batches made from the very bytes that FFCV has written?

Method: FFCV's own writer stores photographs as its recipes for ImageNet do: as JPEGs of quality 90 with at
most 500 pixels a side, as pixels (at most 400 a side), and half of each (`write_mode="proportion"`, 400); and
50,000 images of 32×32, CIFAR-10's size, as pixels. Rekindle reads HDF5 files into which these are copied, the
JPEGs byte for byte; the small ones also from an array in memory (`rk.ArrayImages`). Photographs go through
RandomResizedCrop(224), RandomHorizontalFlip and Normalize, batched by 64; small images through a shift of up
to 4 pixels (RandomTranslate, RandomCrop with padding), a flip and Normalize, batched by 512, as in FFCV's
example. All become float32; Rekindle's batches are contiguous, FFCV's are in channels-last order, as its
pipelines make them: contiguous ones would cost it another copy. FFCV has what its documentation recommends
for data that fits in memory: `os_cache=True`, `OrderOption.RANDOM`, all steps compiled, normalization by its
lookup table. Both have 2 workers, and random order. A measurement is some epochs with one loader in an
interpreter of its own, from the ninth batch on, after as many that do not count. In those FFCV compiles; from
their shapes, types, labels and the mean of their values follows that both contenders do the same.

    python -m benchmarks ffcv_layout --data images.tar

Reading: samples/s, more is better; CPU milliseconds a sample over all processes, less is better. The bars: ≥
1.25× FFCV from JPEGs, ≥ 2.5× from pixels and half pixels, ≥ 3× from small images in memory. `pip install
ffcv` compiles it, with the headers of OpenCV and libturbojpeg. Without it nothing is measured, and the title
says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.betons import LABELS, Decoded, packed_beton, write_beton
from benchmarks.cpu_time import cpu_seconds
from benchmarks.fresh_process import in_fresh_process
from benchmarks.peers import MEAN, STD, is_installed
from benchmarks.photographs import described, photographs

WORKERS, BATCHES_AHEAD = 2, 3
SIZE, SMALL, SHIFT, SMALL_IMAGES = 224, 32, 4, 50_000
SKIPPED = 8  # batches: more than either has ahead
TOLERANCE = 0.1  # of the mean of normalized values, whose deviation is about 1: crops are drawn at random


@dataclass(frozen=True)
class Layout:
    """How FFCV stores images, and what Rekindle is to reach on the same bytes."""

    title: str
    field: dict[str, Any]  # of FFCV's RGBImageField
    bar: float
    is_small: bool = False  # generated images of CIFAR-10's size instead of photographs
    batch_size: int = 64
    epochs: int = 3  # in one pass


LAYOUTS = {
    "jpeg": Layout(
        "JPEGs of 500 pixels, quality 90",
        {"write_mode": "jpg", "max_resolution": 500, "jpeg_quality": 90},
        bar=1.25,
    ),
    "half raw": Layout(
        "400 pixels, half of them raw",
        {
            "write_mode": "proportion",
            "max_resolution": 400,
            "compress_probability": 0.5,
            "jpeg_quality": 90,
        },
        bar=2.5,
    ),
    "raw": Layout("400 pixels, raw", {"write_mode": "raw", "max_resolution": 400}, bar=2.5),
    "small": Layout(
        f"{SMALL_IMAGES:,} images of {SMALL}×{SMALL}, raw",
        {"write_mode": "raw"},
        bar=3.0,
        is_small=True,
        batch_size=512,
        epochs=4,
    ),
}


# What each contender makes of its file: an iterable of the batches of some epochs.


def ffcv_batches(path: str, layout: Layout) -> Iterable[Any]:
    """FFCV's loader, all of whose steps are compiled."""
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.reader import Reader
    from ffcv.transforms import (
        NormalizeImage,
        RandomHorizontalFlip,
        RandomTranslate,
        Squeeze,
        ToTensor,
        ToTorchImage,
    )

    window = (
        [SimpleRGBImageDecoder(), RandomTranslate(SHIFT)]
        if layout.is_small
        else [RandomResizedCropRGBImageDecoder((SIZE, SIZE))]
    )
    normalize = NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32)
    return Loader(
        path,
        batch_size=layout.batch_size,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        seed=0,
        batches_ahead=BATCHES_AHEAD,
        # Each epoch gets memory that is new, which is much where an epoch is a second: all become one.
        indices=np.tile(np.arange(Reader(path).num_samples, dtype=np.uint64), layout.epochs),
        pipelines={
            "image": [*window, RandomHorizontalFlip(), normalize, ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor(), Squeeze(1)],
        },
    )


def rekindle_batches(path: str, layout: Layout, in_memory: bool = False) -> Iterable[Any]:
    """Rekindle's loader, on the packed file or on an array of its images."""
    import rekindle as rk

    T = rk.transforms  # noqa: N806
    window = T.RandomCrop(SMALL, padding=SHIFT) if layout.is_small else T.RandomResizedCrop(SIZE)
    steps = [window, T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    dataset: Any = rk.open(path) if in_memory else rk.open(path, transform=steps)
    if in_memory:
        dataset = rk.ArrayImages(np.stack([image for image, _ in dataset]), dataset.targets, transform=steps)
    loader = rk.DataLoader(
        dataset,
        batch_size=layout.batch_size,
        shuffle=True,
        num_workers=WORKERS,
        seed=0,
    )
    return _Pass(loader, layout.epochs)


class _Pass:
    """Some epochs of a loader, one after the other."""

    def __init__(self, loader: Iterable[Any], epochs: int) -> None:
        self.loader, self.epochs = loader, epochs

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(repeat(self.loader, self.epochs))


CONTENDERS: dict[str, Callable[[str, Layout], Iterable[Any]]] = {
    "FFCV": ffcv_batches,
    "rekindle": rekindle_batches,
    "rekindle, in memory": partial(rekindle_batches, in_memory=True),
}


def measure_epochs(contender: str, layout: str, path: str) -> dict[str, Any]:
    """Samples a second, CPU milliseconds a sample, and what the batches are."""
    batches = CONTENDERS[contender](path, LAYOUTS[layout])
    content = _content(batches)
    timed, samples = iter(batches), 0
    for _ in range(SKIPPED):
        next(timed)
    cpu, start = cpu_seconds(), time.perf_counter()
    for images, _ in timed:
        samples += len(images)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return {"rate": samples / seconds, "cpu": 1e3 * cpu / samples, "content": content}


def _content(batches: Iterable[Any]) -> dict[str, Any]:
    samples, labels, shapes, values, squares = 0, 0, set(), 0.0, 0.0
    for images, classes in batches:
        samples += len(images)
        labels += int(classes.sum())
        shapes.add((str(images.dtype), *images.shape[1:]))
        values += len(images) * float(images.mean())
        squares += len(images) * float(images.square().mean())
    return {
        "samples": samples,
        "labels": labels,
        "shapes": sorted(map(str, shapes)),
        "mean": values / samples,
        "mean square": squares / samples,
    }


def _check(measured: dict[str, list[dict[str, Any]]]) -> None:
    """ValueError unless all contenders have made the same of the same samples."""
    theirs, *others = (each[0]["content"] for each in measured.values())
    for ours in others:
        exact = all(theirs[what] == ours[what] for what in ("samples", "labels", "shapes"))
        if not exact or any(abs(theirs[what] - ours[what]) > TOLERANCE for what in ("mean", "mean square")):
            raise ValueError(f"the batches differ, so their rates mean nothing: {theirs}, {ours}.")


# The answer.


def write_files(files: list[str], layout: str, beton: str, pack: str) -> None:
    """FFCV's file of the photographs or of small images, and the packed file of the same bytes."""
    images: Any = Decoded(files)
    if LAYOUTS[layout].is_small:
        pixels = np.random.default_rng(0).integers(0, 256, (SMALL_IMAGES, SMALL, SMALL, 3), dtype=np.uint8)
        images = [(image, number % LABELS) for number, image in enumerate(pixels)]
    write_beton(images, beton, **LAYOUTS[layout].field)
    packed_beton(beton, pack)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Rates and CPU time on each layout."""
    if not is_installed("ffcv"):
        return [Comparison("not installed: FFCV", "samples/s", [])]
    images = photographs(data)
    with tempfile.TemporaryDirectory() as scratch:
        return [
            comparison
            for name, layout in LAYOUTS.items()
            for comparison in _compared(
                f"{layout.title if layout.is_small else f'{described(data, images)}; {layout.title}'}; "
                f"batch {layout.batch_size}, {WORKERS} workers",
                name,
                [str(path) for path in images],
                Path(scratch),
                rounds,
            )
        ]


def _compared(title: str, name: str, files: list[str], scratch: Path, rounds: int) -> list[Comparison]:
    beton, pack = str(scratch / "images.beton"), str(scratch / "images.h5")
    in_fresh_process(write_files, files=files, layout=name, beton=beton, pack=pack)
    paths = {"FFCV": beton, "rekindle": pack}
    judged = "rekindle"
    if LAYOUTS[name].is_small:
        judged = "rekindle, in memory"
        paths[judged] = pack
    measured = alternate({who: _epochs(who, name, path) for who, path in paths.items()}, rounds)
    _check(measured)
    rates, cpu = (
        {who: [one[key] for one in each] for who, each in measured.items()} for key in ("rate", "cpu")
    )
    return [
        compare(title, "samples/s", rates, {judged: [Bar("≥", LAYOUTS[name].bar)]}),
        compare(f"{title}; CPU time", "ms a sample", cpu, {}),
    ]


def _epochs(contender: str, layout: str, path: str) -> Callable[[], dict[str, Any]]:
    return lambda: in_fresh_process(measure_epochs, contender=contender, layout=layout, path=path)
