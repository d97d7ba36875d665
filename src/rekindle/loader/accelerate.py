"""Hugging Face Accelerate re-creates a loader from torch's arguments: this lets ours survive that.

`Accelerator.prepare` copies the arguments that it knows from a loader to a new `torch.utils.data.DataLoader`.
Here its list of arguments gets one more entry, `rekindle`, under which our loaders pass on their own
arguments, and its constructor makes one of our loaders where that entry is filled.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.utils.data

from rekindle.choose.partition import sharding_of

_ENTRY = "rekindle"


def install() -> None:
    """Teach Accelerate to keep our loaders; does nothing the second time."""
    if "accelerate" not in sys.modules:
        return
    from accelerate import data_loader as accelerate

    if _ENTRY in accelerate._PYTORCH_DATALOADER_KWARGS:
        return
    accelerate._PYTORCH_DATALOADER_KWARGS[_ENTRY] = None
    accelerate.DataLoader = _make
    adapter = accelerate.DataLoaderAdapter
    original = adapter.__init__

    def initialise(self: Any, dataset: Any, use_stateful_dataloader: bool = False, **kwargs: Any) -> None:
        if kwargs.get(_ENTRY) is None:
            kwargs.pop(_ENTRY, None)
            original(self, dataset, use_stateful_dataloader=use_stateful_dataloader, **kwargs)
            return
        # Ours keeps its own state: for this flag `save_state` and `load_state` ask for it.
        original(self, dataset, use_stateful_dataloader=False, **kwargs)
        self.use_stateful_dataloader = use_stateful_dataloader

    load = adapter.load_state_dict

    def load_state_dict(self: Any, state: dict[str, object]) -> None:
        load(self, state)
        if getattr(self.base_dataloader, _ENTRY, None) is not None:
            # Accelerate counts epochs from 0 in every run, and tells them to samplers: ours follows that.
            self.iteration = state["epoch"]

    adapter.__init__, adapter.load_state_dict = initialise, load_state_dict


def _make(dataset: Any, rekindle: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """What Accelerate gets instead of a new torch loader."""
    from rekindle.loader.dataloader import DataLoader

    if rekindle is None:
        return torch.utils.data.DataLoader(dataset, **kwargs)
    if not _is_sharded(dataset, kwargs.get("batch_sampler")):
        # There is one process, or Accelerate shares the batches itself: out of one that reads all of them,
        # or by a dataset that it has split.
        rekindle = {**rekindle, "shard": None}
    return DataLoader(dataset, **kwargs, **rekindle)


def _is_sharded(dataset: Any, batch_sampler: object) -> bool:
    """Whether the batch sampler deals a dataset to processes."""
    is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    return not is_iterable and sharding_of(batch_sampler, len(dataset)) is not None
