"""Hugging Face Accelerate re-creates a loader from torch's arguments: this lets ours survive that.

`Accelerator.prepare` copies the arguments that it knows from a loader to a new `torch.utils.data.DataLoader`.
Here its list of arguments gets one more entry, `rekindle`, under which our loaders pass on their own
arguments, and its constructor makes one of our loaders where that entry is filled.

What it makes asks a loader for batches before the training loop does: one more, or those of all processes. So
`loader.batch` and `feedback` are told which one the training loop has, and states are those behind that one.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeAlias

import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from rekindle.choose.importance import session_state
from rekindle.choose.partition import sharding_of
from rekindle.choose.planned_sampler import PlannedSampler
from rekindle.core.samples import Batch
from rekindle.errors import ArgumentError
from rekindle.loader.checkpoint import State
from rekindle.reuse import Echo
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch

_ENTRY = "rekindle"
Adapter: TypeAlias = Any  # what Accelerate makes of a loader; it has no types


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

    def initialise(
        self: Adapter, dataset: object, use_stateful_dataloader: bool = False, **kwargs: Any
    ) -> None:
        if kwargs.get(_ENTRY) is None:
            kwargs.pop(_ENTRY, None)
            original(self, dataset, use_stateful_dataloader=use_stateful_dataloader, **kwargs)
            return
        if issubclass(type(self), accelerate.DataLoaderDispatcher):  # Its `__class__` is another.
            _check_dispatched(kwargs[_ENTRY])
        # Ours keeps its own state: for this flag `save_state` and `load_state` ask for it.
        original(self, dataset, use_stateful_dataloader=False, **kwargs)
        self.use_stateful_dataloader = use_stateful_dataloader

    load = adapter.load_state_dict

    def load_state_dict(self: Adapter, state: dict[str, object]) -> None:
        load(self, state)
        if _is_ours(self):
            # Accelerate counts epochs from 0 in every run, and tells them to samplers: ours follows that.
            self.iteration = state["epoch"]

    def state_dict(self: Adapter) -> State:
        state: State = self.dl_state_dict  # as it was before the training loop had this batch
        if _is_ours(self) and "importance_state" in state:
            state["importance_state"] = session_state.save(self.base_dataloader._parts.importance)
        return state

    adapter.__init__, adapter.load_state_dict, adapter.state_dict = initialise, load_state_dict, state_dict
    shard, dispatcher = accelerate.DataLoaderShard, accelerate.DataLoaderDispatcher
    shard.__iter__ = _showing_what_is_yielded(shard.__iter__)
    dispatcher._fetch_batches = _saving_states_before(dispatcher._fetch_batches)
    for kind in (shard, dispatcher):
        kind.set_sampler = _keeping_planned_order(kind.set_sampler)


def _is_ours(adapter: Adapter) -> bool:
    return getattr(adapter.base_dataloader, _ENTRY, None) is not None


def _check_dispatched(arguments: dict[str, object]) -> None:
    if arguments["importance"] is not None:
        raise ArgumentError(
            "importance= with dispatch_batches=True: one process reads the batches, and Accelerate splits "
            "them among all, so no process knows which samples it has. Give DataLoaderConfiguration("
            "dispatch_batches=False)."
        )


def _showing_what_is_yielded(
    iterate: Callable[[Adapter], Iterator[Batch]],
) -> Callable[[Adapter], Iterator[Batch]]:
    """Let a loader know which of the batches that were asked for the training loop has."""

    @wraps(iterate)
    def iterate_ours(self: Adapter) -> Iterator[Batch]:
        if not _is_ours(self):
            yield from iterate(self)
            return
        progress = self.base_dataloader._progress
        progress.read_ahead = read = deque[SlotBatch | CollatedBatch]()
        try:
            skipped = self.skip_batches
            for batch in iterate(self):
                for _ in range(skipped + 1):
                    progress.shown = read.popleft()
                skipped = 0
                if self.remainder >= 0 and progress.shown.order.plan is not None:
                    self.remainder = progress.shown.order.plan.unrepeated(progress.shown.order.step)
                progress.state_shown = lambda: {**self.state_dict()}
                yield batch
                progress.state_shown = None
        finally:
            if progress.read_ahead is read:  # unless another pass has begun
                progress.state_shown = None
                progress.last, progress.shown, progress.read_ahead = progress.current, None, None

    return iterate_ours


def _saving_states_before(fetch: Callable[[Adapter, object], object]) -> Callable[[Adapter, object], object]:
    """Let the state of a loader be that before the batches which are fetched for all processes."""

    @wraps(fetch)
    def fetch_ours(self: Adapter, iterator: object) -> object:
        if not _is_ours(self):
            return fetch(self, iterator)
        self._update_state_dict()
        before = self.dl_state_dict
        fetched = fetch(self, iterator)
        self.dl_state_dict = before
        return fetched

    return fetch_ours


def _make(dataset: Any, rekindle: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """What Accelerate gets instead of a new torch loader."""
    from rekindle.loader.dataloader import DataLoader

    if rekindle is None:
        return torch.utils.data.DataLoader(dataset, **kwargs)
    skipped = _skipped_of_a_plan(dataset, kwargs.get("batch_sampler"), rekindle)
    if skipped:
        kwargs["batch_sampler"] = kwargs["batch_sampler"].batch_sampler
    if not _is_sharded(dataset, kwargs.get("batch_sampler")):
        # There is one process, or Accelerate shares the batches itself: out of one that reads all of them,
        # or by a dataset that it has split.
        rekindle = {**rekindle, "shard": None}
    if _lays_out_batches(rekindle):
        _check_not_skipped(kwargs.get("batch_sampler"), rekindle)
        kwargs |= _order_of(kwargs.get("batch_sampler"))
    loader = DataLoader(dataset, **kwargs, **rekindle)
    loader._epochs.first_step = skipped
    return loader


def _skipped_of_a_plan(dataset: object, batch_sampler: object, arguments: dict[str, object]) -> int:
    """How many batches `skip_first_batches` leaves out of an epoch that is planned for several processes.

    These are dealt otherwise than by Accelerate, so it is the plan that must begin later.
    """
    from accelerate.data_loader import SkipBatchSampler

    plans = arguments["reuse"] is not None or arguments["shard"] is not None
    if not (plans and isinstance(batch_sampler, SkipBatchSampler)) or _lays_out_batches(arguments):
        return 0
    return batch_sampler.skip_batches if _is_sharded(dataset, batch_sampler.batch_sampler) else 0


def _keeping_planned_order(put: Callable[[Adapter, object], None]) -> Callable[[Adapter, object], None]:
    """Leave a loader its order that takes no sampler, where Accelerate puts in a seedable one for all."""
    from accelerate.data_loader import SeedableRandomSampler

    @wraps(put)
    def put_ours(self: Adapter, sampler: object) -> None:
        is_for_all = type(sampler) is SeedableRandomSampler
        if not (is_for_all and _is_ours(self) and _lays_out_batches(self.base_dataloader.rekindle)):
            put(self, sampler)

    return put_ours


def _lays_out_batches(arguments: dict[str, object]) -> bool:
    """Whether a loader with these arguments takes no sampler."""
    chooses = arguments["importance"] is not None or arguments["redundancy"] is not None
    return chooses or isinstance(arguments["reuse"], Echo)


def _check_not_skipped(batch_sampler: object, arguments: dict[str, object]) -> None:
    from accelerate.data_loader import SkipBatchSampler

    if isinstance(batch_sampler, SkipBatchSampler):
        given = next(
            f"{name}=" for name in ("importance", "redundancy", "reuse") if arguments[name] is not None
        )
        raise ArgumentError(
            f"{given} with skip_first_batches({batch_sampler.skip_batches}): that makes a second loader "
            "of the rest, and neither would know what the other has chosen or learned. Save "
            "loader.state_dict() of the prepared loader and give it to load_state_dict(), or use "
            "accelerator.save_state() and load_state() with "
            "DataLoaderConfiguration(use_stateful_dataloader=True): both go on in the middle of an epoch."
        )


def _order_of(batch_sampler: object) -> dict[str, object]:
    """The arguments for a batch sampler that torch has made of them: a choice of samples takes no sampler."""
    if type(batch_sampler) is not BatchSampler:
        return {}
    if type(batch_sampler.sampler) not in (SequentialSampler, RandomSampler, PlannedSampler):
        return {}
    return {
        "batch_sampler": None,
        "batch_size": batch_sampler.batch_size,
        "drop_last": batch_sampler.drop_last,
        "shuffle": type(batch_sampler.sampler) is not SequentialSampler,
    }


def _is_sharded(dataset: Any, batch_sampler: object) -> bool:
    """Whether the batch sampler deals a dataset to processes."""
    is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    return not is_iterable and sharding_of(batch_sampler, len(dataset)) is not None
