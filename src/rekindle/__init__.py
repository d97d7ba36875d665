"""Rekindle: the DataLoader you already use, without the waiting.

>>> import rekindle as rk
>>> loader = rk.DataLoader(range(8), batch_size=4, shuffle=True, seed=1)
>>> sorted(sample for batch in loader for sample in batch.tolist())
[0, 1, 2, 3, 4, 5, 6, 7]
"""

from typing import TYPE_CHECKING, Any

from rekindle.errors import (
    ArgumentError,
    BadSamplesError,
    DataError,
    DecodeError,
    FormatError,
    LoaderTimeout,
    OutOfMemoryError,
    RekindleError,
    RemoteError,
    StateError,
    WorkerError,
)
from rekindle.fetch import RemoteOptions
from rekindle.images import ArrayImages, ImageDataset, open
from rekindle.loader import DataLoader
from rekindle.ship import BatchInfo
from rekindle.tune import Report

if TYPE_CHECKING:
    from rekindle import transforms

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArrayImages",
    "BadSamplesError",
    "BatchInfo",
    "DataError",
    "DataLoader",
    "DecodeError",
    "FormatError",
    "ImageDataset",
    "LoaderTimeout",
    "OutOfMemoryError",
    "RekindleError",
    "RemoteError",
    "RemoteOptions",
    "Report",
    "StateError",
    "WorkerError",
    "open",
    "transforms",
]


def __getattr__(name: str) -> Any:
    """Import `transforms` when it is first used: OpenCV and compiled code take a second to load."""
    if name == "transforms":
        import importlib

        return importlib.import_module("rekindle.transforms")
    raise AttributeError(f"module 'rekindle' has no attribute {name!r}")
