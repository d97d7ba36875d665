"""What workers have to know about a loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.analysis.changes import Watched
from rekindle.core.samples import Batch, Collate, Index, Sample
from rekindle.prepare.declared import draws_nothing, will_need
from rekindle.prepare.native import as_native
from rekindle.reuse.echo_stream import EchoStream
from rekindle.reuse.finished_stream import FinishedStream
from rekindle.reuse.worker_view import WorkerView
from rekindle.run.collation import collate
from rekindle.run.dataset_copies import has_state


@dataclass(frozen=True)
class Job:
    """A dataset and how to make batches of it. `batched` is false for `batch_size=None`."""

    dataset: Any
    collate_fn: Collate
    batched: bool
    drop_last: bool
    stop_at_failure: bool
    skip_failures: bool
    substitutes: bool
    workers: int
    worker_init_fn: Callable[[int], None] | None
    reused: WorkerView | None = None
    watched: Watched | None = None  # what a worker must not have changed, to be kept for another epoch
    takes_states: bool = False  # of workers' copies of a map-style dataset, behind every batch
    asks_once: bool = True  # for a sample, whatever becomes of its batch; Ray's actors may ask again

    @property
    def native(self) -> bool:
        """Whether the dataset writes its images straight into the batch."""
        return as_native(self.dataset) is not None and (self.reused is None or self.reused.native)

    @property
    def together(self) -> bool:
        """Whether the dataset loads a whole batch at once (`__getitems__`)."""
        return self.reused is None and bool(getattr(self.dataset, "__getitems__", None))

    @property
    def read_from(self) -> Any:
        """The dataset that samples are read from in the end: what `get_worker_info().dataset` is."""
        if isinstance(self.dataset, EchoStream):
            return self.dataset.dataset
        if isinstance(self.dataset, FinishedStream):
            return self.dataset.source
        return self.dataset if self.reused is None else self.reused.split.read_from

    @property
    def has_state(self) -> bool:
        """Whether loading a sample may change the dataset in a way that counts: then each is loaded once."""
        return has_state(self.read_from)

    @property
    def draws(self) -> bool:
        """Whether the dataset may draw from the global generators."""
        third_party = self.reused is not None and not self.reused.native
        return third_party or not draws_nothing(self.dataset)

    @property
    def will_need(self) -> Callable[[Sequence[Index]], None] | None:
        """The dataset's way to start fetching samples before they are asked for, if it has one."""
        return will_need(self.dataset)

    def collate(self, samples: list[Sample]) -> Batch:
        """The batch of these samples; with `batch_size=None`, of the one that there is."""
        return collate(self.collate_fn, samples if self.batched else samples[0])
