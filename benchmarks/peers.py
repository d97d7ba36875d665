"""The image path beside its peers.

Question: From JPEG files to float batches on two cores, how much faster is the native path than its peers?

Method: photographs are decoded, go through RandomResizedCrop(224), RandomHorizontalFlip and Normalize, and
are batched by 64 as float32, channels first; in two more comparisons with RandAugment(2, 9) or
ColorJitter(0.4, 0.4, 0.4) after the crop. Each contender has 2 threads or workers. `torch` is torch's loader
with torchvision on PIL images; `DALI` runs on the CPU and decodes only the crop; `decode only` reads the
files and calls simplejpeg with nothing after it, on 2 threads. Each measurement is three epochs with one
loader in an interpreter of its own, after two batches of another that do not count; starting the workers
does. CIFAR-10 is 50,000 arrays of 32×32 in memory, RandomCrop(32, padding=4), flip and normalise, batched by
128.

    python -m benchmarks peers --data images.tar

Reading: samples/s, more is better; CPU milliseconds a sample over all processes, and MB of memory (PSS
without files, all processes, at the last batch), less is better. The bars: ≥ 2.0× torch, ≥ 1.3× DALI, ≥ 0.8
of decoding alone; with RandAugment ≥ 2× torch and ≥ 3× DALI; with ColorJitter ≥ 2× torch; CIFAR-10 ≥ 15×
torch. A peer that is not installed is left out, and the title says so.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Bar, Comparison, compare
from benchmarks.cpu_time import cpu_seconds
from benchmarks.fresh_process import in_fresh_process
from benchmarks.memory import proportional_set_size
from benchmarks.photographs import described, photographs

WORKERS, BATCH_SIZE, SIZE = 2, 64, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORKS = {"": "", "RandAugment": " + RandAugment(2, 9)", "ColorJitter": " + ColorJitter(.4, .4, .4)"}
WARM_UP, EPOCHS = 2, 3  # batches; epochs
NEEDS = {"torch": "torchvision", "DALI": "nvidia.dali", "decode only": "simplejpeg"}
CIFAR_SAMPLES, CIFAR_BATCH_SIZE = 50_000, 128


# What each contender makes of a list of files: an iterable of batches, a new one each epoch.


def rekindle_batches(files: list[str], work: str) -> Iterable[Any]:
    """Rekindle's native path."""
    import rekindle as rk

    extra = {
        "": [],
        "RandAugment": [rk.transforms.RandAugment(2, 9)],
        "ColorJitter": [rk.transforms.ColorJitter(0.4, 0.4, 0.4)],
    }[work]
    steps = [
        rk.transforms.RandomResizedCrop(SIZE),
        *extra,
        rk.transforms.RandomHorizontalFlip(),
        rk.transforms.ToTensor(),
        rk.transforms.Normalize(MEAN, STD),
    ]
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    labels = {os.path.relpath(file, folder): number for number, file in enumerate(files)}
    dataset = rk.open(folder, transform=steps, labels=labels)
    return rk.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=WORKERS, seed=0)


def torch_batches(files: list[str], work: str) -> Iterable[Any]:
    """Torch's loader with torchvision's transforms on PIL images."""
    from torch.utils.data import DataLoader

    from benchmarks.pil_pipeline import Photographs
    from benchmarks.torchvision_on_cpu import torchvision

    dataset = Photographs([Path(file) for file in files])
    if work:
        transforms = torchvision.transforms
        extra = (
            transforms.RandAugment(2, 9) if work == "RandAugment" else transforms.ColorJitter(0.4, 0.4, 0.4)
        )
        dataset.transform.transforms.insert(1, extra)
    return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=WORKERS)


def dali_batches(files: list[str], work: str) -> Iterable[Any]:
    """DALI on the CPU, which decodes only what the crop needs."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment

    @pipeline_def(
        batch_size=BATCH_SIZE, num_threads=WORKERS, device_id=None, enable_conditionals=True, seed=0
    )
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(files=files, random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(images, resize_x=SIZE, resize_y=SIZE)
        if work == "RandAugment":
            images = rand_augment.rand_augment(images, n=2, m=9, shape=(SIZE, SIZE))
        elif work == "ColorJitter":
            bounds = (0.6, 1.4)
            images = fn.color_twist(
                images,
                brightness=fn.random.uniform(range=bounds),
                contrast=fn.random.uniform(range=bounds),
                saturation=fn.random.uniform(range=bounds),
            )
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=fn.random.coin_flip(),
        )
        return images, labels

    return _DaliEpochs(pipeline(), -(-len(files) // BATCH_SIZE))


class _DaliEpochs:
    """A DALI pipeline, which runs on for ever, as epochs."""

    def __init__(self, pipeline: Any, batches: int) -> None:
        self.pipeline, self.batches = pipeline, batches
        pipeline.build()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.batches):
            yield tuple(part.as_tensor() for part in self.pipeline.run())


class DecodedFiles:
    """Arrays of whole images and nothing else."""

    def __init__(self, files: list[str], work: str) -> None:
        del work
        self.files = files

    def __iter__(self) -> Iterator[np.ndarray]:
        import simplejpeg

        def decode(file: str) -> np.ndarray:
            return simplejpeg.decode_jpeg(Path(file).read_bytes())

        with ThreadPoolExecutor(WORKERS) as pool:
            waiting = []
            for file in self.files:  # No further ahead than a loader would be.
                waiting.append(pool.submit(decode, file))
                if len(waiting) == 4 * BATCH_SIZE:
                    yield waiting.pop(0).result()
            for image in waiting:
                yield image.result()


CONTENDERS: dict[str, Callable[[list[str], str], Iterable[Any]]] = {
    "torch": torch_batches,
    "DALI": dali_batches,
    "decode only": DecodedFiles,
    "rekindle": rekindle_batches,
}


def measure_files(contender: str, work: str, files: list[str]) -> dict[str, float]:
    """Samples a second, CPU milliseconds a sample and MB of memory, in an epoch over these files."""
    make = CONTENDERS[contender]
    warm_up = iter(make(files, work))
    for _ in range(WARM_UP):
        next(warm_up)
    del warm_up
    return _measured(make(files, work), len(files))


def _measured(batches: Iterable[Any], samples: int) -> dict[str, float]:
    cpu, start = cpu_seconds(), time.perf_counter()
    for _ in range(EPOCHS):
        for _ in batches:
            pass
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - cpu
    return {"rate": EPOCHS * samples / seconds, "cpu": 1e3 * cpu / (EPOCHS * samples)}


def measure_memory(contender: str, work: str, files: list[str]) -> float:
    """MB in use by all processes at the last batch of an epoch, without files."""
    import psutil

    most = 0.0
    wanted = len(files) // BATCH_SIZE
    batches = iter(CONTENDERS[contender](files, work))
    step = BATCH_SIZE if contender == "decode only" else 1
    for number, _ in enumerate(batches):
        if number == (wanted - 1) * step:
            everyone = [psutil.Process(), *psutil.Process().children(recursive=True)]
            used = [proportional_set_size(process.pid) for process in everyone]
            most = sum(memory["Pss"] - memory["Pss_File"] for memory in used) / 1e6
    return most


# CIFAR-10.


class CifarInPython:
    """CIFAR-10's size, as torchvision's dataset of it works: an array, PIL, transforms."""

    def __init__(self, images: np.ndarray, labels: list[int]) -> None:
        from benchmarks.torchvision_on_cpu import torchvision

        T = torchvision.transforms  # noqa: N806
        self.images, self.labels = images, labels
        self.transform = T.Compose(
            [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def measure_cifar(contender: str) -> dict[str, float]:
    """Samples a second and CPU milliseconds a sample over an epoch of arrays in memory."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (CIFAR_SAMPLES, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, CIFAR_SAMPLES).tolist()
    settings: dict[str, Any] = {"batch_size": CIFAR_BATCH_SIZE, "shuffle": True, "num_workers": WORKERS}

    def make(count: int) -> Iterable[Any]:
        if contender == "torch":
            from torch.utils.data import DataLoader

            return DataLoader(CifarInPython(images[:count], labels[:count]), **settings)
        import rekindle as rk

        T = rk.transforms  # noqa: N806
        steps = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
        dataset = rk.ArrayImages(images[:count], labels[:count], transform=steps)
        return rk.DataLoader(dataset, seed=0, **settings)

    for _ in make(4 * CIFAR_BATCH_SIZE):
        pass
    return _measured(make(CIFAR_SAMPLES), CIFAR_SAMPLES)


# The answer.


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Rates, CPU time and memory with each contender, then CIFAR-10."""
    images = photographs(data)
    files = [str(path) for path in images]
    missing = [name for name, module in NEEDS.items() if not is_installed(module)]
    without = f"; not installed: {', '.join(missing)}" if missing else ""
    found = []
    for work, more in WORKS.items():
        names = [name for name in CONTENDERS if name not in missing and not (work and name == "decode only")]
        title = (
            f"{described(data, images)}; RandomResizedCrop({SIZE}){more}, flip, normalise; {WORKERS} threads"
        )
        measured = alternate({name: _epoch(name, work, files) for name in names}, rounds)
        found += _against_each(title + without, measured, work)
        if not work:
            memory = {
                name: [in_fresh_process(measure_memory, contender=name, work=work, files=files)]
                for name in names
            }
            found.append(compare(f"{title}; memory", "MB", memory, {}))
    if "torch" not in missing:
        cifar = alternate({name: _cifar(name) for name in ("torch", "rekindle")}, rounds)
        title = f"{CIFAR_SAMPLES:,} arrays of 32×32×3 in memory; RandomCrop(32, 4), flip, normalise"
        rates = {name: [one["rate"] for one in values] for name, values in cifar.items()}
        found.append(compare(title, "samples/s", rates, {"rekindle": [Bar("≥", 15.0)]}))
    return found


def _against_each(title: str, measured: dict[str, list[dict[str, float]]], work: str) -> list[Comparison]:
    """One comparison with each peer, since each has its own bar; then the CPU time of all."""
    bars = {
        "torch": 2.0,
        "DALI": 3.0 if work == "RandAugment" else 1.3,
        "decode only": 0.8,
    }
    rates = {name: [one["rate"] for one in values] for name, values in measured.items()}
    found = [
        compare(
            f"{title}; against {peer}",
            "samples/s",
            {peer: rates[peer], "rekindle": rates["rekindle"]},
            {"rekindle": [Bar("≥", bars[peer])]},
        )
        for peer in rates
        if peer != "rekindle"
    ]
    cpu = {name: [one["cpu"] for one in values] for name, values in measured.items()}
    found.append(compare(f"{title}; CPU time", "ms a sample", cpu, {}))
    return found


def _epoch(name: str, work: str, files: list[str]) -> Callable[[], dict[str, float]]:
    return lambda: in_fresh_process(measure_files, contender=name, work=work, files=files)


def _cifar(name: str) -> Callable[[], dict[str, float]]:
    return lambda: in_fresh_process(measure_cifar, contender=name)


def is_installed(module: str) -> bool:
    """Whether a peer can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
