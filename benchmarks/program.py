"""Names the benchmark programs and runs one.

A program is a module of this package with `measure(rounds, data) -> list[Comparison]` and, in its
docstring, a line `Question: ...`, the method, the command, and how to read the result.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from dataclasses import asdict
from typing import Any

PROGRAMS = (
    "peers",
    "ffcv_layout",
    "overhead",
    "first_use",
    "packed",
    "raw_images",
    "packing",
    "pipelines",
    "reuse",
    "balance",
    "layers",
    "echo",
    "pil_pipeline",
    "native",
    "small_arrays",
    "tensor_dataset",
    "first_batch",
    "memory",
    "many_workers",
    "interference",
    "ray_actors",
    "jobs",
    "planning",
    "ranks",
    "growth",
    "choosing",
    "closing",
    "store",
    "jpeg_boxes",
    "counters_cost",
    "feedback_cost",
    "hops",
)


def compile_kernels() -> None:
    """Compile what loading would else begin without: programs measure what comes after the first minute."""
    import torch

    import rekindle as rk
    from rekindle.core import compile_later
    from rekindle.prepare.decode.jpeg_box import load_box
    from rekindle.prepare.pipeline import Pipeline

    T = rk.transforms  # noqa: N806
    crop, convert = T.RandomResizedCrop(8), [T.ToTensor(), T.Normalize([0.5], [0.5])]
    for steps in ([crop, *convert], [crop, T.RandAugment(), *convert]):
        for dtype in (None, torch.uint8):
            for last in (False, True):
                Pipeline(steps, dtype=dtype, channels_last=last, units=True)
    small = [T.RandomCrop(8, padding=1), T.RandomHorizontalFlip(), *convert]
    for dtype in (None, torch.uint8):
        Pipeline(small, dtype=dtype, units=True)
    load_box()
    compile_later.compile_now()


def answer(name: str, rounds: int, data: str | None) -> dict[str, Any]:
    """What the program `name` found, as plain data, and what it was found with."""
    module = importlib.import_module(f"benchmarks.{name}")
    comparisons = module.measure(rounds=rounds, data=data)
    return {
        "name": name,
        "question": _question(module.__doc__ or ""),
        "rounds": rounds,
        "made_with": made_with(),
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }


def _question(docstring: str) -> str:
    lines = docstring.splitlines()
    return next(line for line in lines if line.startswith("Question: ")).removeprefix("Question: ")


def made_with() -> dict[str, Any]:
    """What a reader needs to judge the numbers; nothing that names the machine or its user."""
    packages = (
        "rekindle",
        "torch",
        "torchvision",
        "numpy",
        "pillow",
        "simplejpeg",
        "opencv-python-headless",
        "numba",
        "nvidia-dali-cuda120",
        "ffcv",
        "h5py",
        "webdataset",
    )
    return {
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
