"""Rekindle: the DataLoader you already use, without the waiting.

>>> import rekindle as rk
>>> loader = rk.DataLoader(range(8), batch_size=4, shuffle=True, seed=1)
>>> sorted(sample for batch in loader for sample in batch.tolist())
[0, 1, 2, 3, 4, 5, 6, 7]
"""

from rekindle.errors import (
    ArgumentError,
    BadSamplesError,
    LoaderTimeout,
    OutOfMemoryError,
    RekindleError,
    StateError,
    WorkerError,
)
from rekindle.loader import DataLoader
from rekindle.ship import BatchInfo
from rekindle.tune import Report

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BadSamplesError",
    "BatchInfo",
    "DataLoader",
    "LoaderTimeout",
    "OutOfMemoryError",
    "RekindleError",
    "Report",
    "StateError",
    "WorkerError",
]
