"""Rekindle: the DataLoader you already use, without the waiting.

>>> import rekindle as rk
>>> loader = rk.DataLoader(range(8), batch_size=4, shuffle=True, seed=1)
>>> sorted(sample for batch in loader for sample in batch.tolist())
[0, 1, 2, 3, 4, 5, 6, 7]
"""

import importlib
from typing import TYPE_CHECKING, Any

from rekindle.errors import (
    ArgumentError,
    BadSamplesError,
    DataError,
    DecodeError,
    FeedbackError,
    FormatError,
    LoaderTimeout,
    OutOfMemoryError,
    RekindleError,
    RemoteError,
    StateError,
    WorkerError,
)

if TYPE_CHECKING:
    from rekindle import transforms
    from rekindle.choose import Redundancy, RedundantGroups, Scores
    from rekindle.choose.importance import (
        ActiveBias,
        Buckets,
        InfoBatch,
        Kakurenbo,
        Method,
        OnlineBatchSelection,
        RandomSubset,
        SelectionViaProxy,
        SelectiveBackprop,
        Uniform,
    )
    from rekindle.dedupe import find_redundancy
    from rekindle.fetch import RemoteOptions
    from rekindle.images import ArrayImages, ImageDataset, open
    from rekindle.loader import DataLoader
    from rekindle.proxy import train_proxy
    from rekindle.reuse import Diversity, Echo, Jpeg, Refurbish, diversity
    from rekindle.ship import BatchInfo
    from rekindle.tune import Report

__version__ = "0.1.0"

__all__ = [
    "ActiveBias",
    "ArgumentError",
    "ArrayImages",
    "BadSamplesError",
    "BatchInfo",
    "Buckets",
    "DataError",
    "DataLoader",
    "DecodeError",
    "Diversity",
    "Echo",
    "FeedbackError",
    "FormatError",
    "ImageDataset",
    "InfoBatch",
    "Jpeg",
    "Kakurenbo",
    "LoaderTimeout",
    "Method",
    "OnlineBatchSelection",
    "OutOfMemoryError",
    "RandomSubset",
    "Redundancy",
    "RedundantGroups",
    "Refurbish",
    "RekindleError",
    "RemoteError",
    "RemoteOptions",
    "Report",
    "Scores",
    "SelectionViaProxy",
    "SelectiveBackprop",
    "StateError",
    "Uniform",
    "WorkerError",
    "diversity",
    "find_redundancy",
    "open",
    "train_proxy",
    "transforms",
]


# What is imported when it is first used: torch, OpenCV and compiled code take seconds to load, which the
# command line need not wait for.
_HOMES = {
    "ActiveBias": "choose.importance",
    "ArrayImages": "images",
    "BatchInfo": "ship",
    "Buckets": "choose.importance",
    "DataLoader": "loader",
    "Diversity": "reuse",
    "Echo": "reuse",
    "ImageDataset": "images",
    "InfoBatch": "choose.importance",
    "Jpeg": "reuse",
    "Kakurenbo": "choose.importance",
    "Method": "choose.importance",
    "OnlineBatchSelection": "choose.importance",
    "RandomSubset": "choose.importance",
    "Redundancy": "choose",
    "RedundantGroups": "choose",
    "Refurbish": "reuse",
    "RemoteOptions": "fetch",
    "Report": "tune",
    "Scores": "choose",
    "SelectionViaProxy": "choose.importance",
    "SelectiveBackprop": "choose.importance",
    "Uniform": "choose.importance",
    "diversity": "reuse",
    "find_redundancy": "dedupe",
    "open": "images",
    "train_proxy": "proxy",
}


def __getattr__(name: str) -> Any:
    """A public name, or the module `transforms`, imported now."""
    if name == "transforms":
        return importlib.import_module("rekindle.transforms")
    if name in _HOMES:
        found = globals()[name] = getattr(importlib.import_module(f"rekindle.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module 'rekindle' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__})
