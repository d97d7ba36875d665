"""An actor: a worker in a process of a Ray cluster, which loads what it is sent and returns it as arrays.

The worker is the one that local processes run. An actor may serve several loaders, one request at a time,
and each has a copy of its dataset here.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import WorkerError
from rekindle.reuse.cache.stats import StoreStats
from rekindle.run.batch_layout import Spec
from rekindle.run.caching_loader import sample_loader
from rekindle.run.job import Job
from rekindle.run.messages import CheckCopy, Described, Done, FromWorker, Unit
from rekindle.run.ray.actor_cache import ActorCache, CacheRecipe
from rekindle.run.ray.actor_channel import ActorChannel
from rekindle.run.ray.lent_memory import Borrowed, Loan
from rekindle.run.ray.sent_dataset import SentDataset
from rekindle.run.worker import Worker
from rekindle.run.worker_exception import WorkerException, worker_exception
from rekindle.run.worker_info import (
    RecordingWorkerInfo,
    seed_worker,
    stack_without_shared_memory,
    use_one_opencv_thread,
)


class Started(NamedTuple):
    """Where an actor runs, or why it cannot load anything; `cache` names the one that its node shares."""

    node: str
    pid: int
    cache: str = ""
    failure: WorkerException | None = None


class Loaded(NamedTuple):
    """What comes of a request: the worker's answers, and the memory that its rows or its batch are in.

    `spec` says how the rows lie there (`batch_layout.Layout` of as many rows as were asked for); it is None
    if samples cannot be described, or all of them failed. `lent_bytes` is how much is in the memory that was
    lent for it, instead; `found_lent` says that there was such memory, and that it was found here.
    """

    done: Done
    spec: Spec | None
    described: bool
    uses_worker_id: bool
    others: tuple[FromWorker, ...]
    memory: NDArray[np.uint8] | None
    lent_bytes: int = 0
    found_lent: bool = False
    cache: StoreStats | None = None


class _Served:
    """The worker for one loader, with its copy of the loader's dataset."""

    def __init__(self, job: Job, number: int, base_seed: int) -> None:
        self._job, self._number, self._base_seed = job, number, base_seed
        self.take_turn()
        if job.worker_init_fn is not None:
            job.worker_init_fn(number)
        RecordingWorkerInfo.was_asked = False
        self._requests = 0
        self._borrowed = Borrowed()
        self._loader = sample_loader(job)
        self._start_worker()

    def take_turn(self) -> None:
        """Make `get_worker_info()` that of this loader."""
        seed_worker(self._job, self._number, self._base_seed)

    def _start_worker(self) -> None:
        self._channel = ActorChannel()
        self._worker = Worker(
            self._job,
            f"Ray actor {self._number}",
            self._channel,
            self._loader,
            uses_worker_id=lambda: RecordingWorkerInfo.was_asked,
            seed_worker=lambda seed: seed_worker(self._job, self._number, seed),
            worker_seed=self._base_seed,
        )

    def load(self, unit: Unit, loan: Loan | None) -> Loaded:
        lent = self._borrowed.find(loan)
        loaded = self._load(unit, lent)
        if loaded.done.mismatch and not any(isinstance(one, Described) for one in loaded.others):
            # They are not built like the first samples here; perhaps those were the odd ones.
            self._start_worker()
            loaded = self._load(unit, lent)
        return loaded

    def _load(self, unit: Unit, lent: NDArray[np.uint8] | None) -> Loaded:
        self._requests += 1  # A number of its own: what was cancelled here once must not cancel another.
        channel, worker_id = self._channel, RecordingWorkerInfo
        channel.begin(unit._replace(batch=self._requests), lent)
        self._worker.serve()
        done = next(one for one in channel.sent if isinstance(one, Done))
        others = tuple(one for one in channel.sent if not isinstance(one, Done))
        nothing_described = any(isinstance(one, Described) and one.spec is None for one in others)
        described = nothing_described or channel.spec is not None
        lent_bytes = channel.memory.nbytes if channel.memory is not None and channel.in_lent else 0
        memory = None if lent_bytes else channel.memory
        return Loaded(
            done, channel.spec, described, worker_id.was_asked, others, memory, lent_bytes, lent is not None
        )

    def check_copy(self, epoch: int) -> list[FromWorker]:
        self._channel.begin(CheckCopy(epoch))
        self._worker.serve()
        return self._channel.sent


@lru_cache(maxsize=1)
def installed_version() -> str:
    """The version of this package."""
    return version("rekindle")


def this_node() -> str:
    """The node that this process belongs to."""
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node


class LoadingActor:
    """Loads samples for one loader, or for several that share it."""

    def __init__(self, number: int, version: str) -> None:
        self._number, self._version = number, version
        self._served: dict[str, _Served] = {}
        self._caches: dict[str, ActorCache] = {}
        self._last: str | None = None
        torch.set_num_threads(1)
        stack_without_shared_memory()

    def start(self, loader: str, sent: SentDataset, base_seed: int, recipe: CacheRecipe | None) -> Started:
        """Get ready to load for a loader; what an earlier job of it needed is dropped."""
        self._served.pop(loader, None)
        node = this_node()
        where = Started(node, os.getpid())
        try:
            if self._version != installed_version():
                raise WorkerError(
                    f"rekindle {installed_version()} is installed on this node, and {self._version} where "
                    "the loader is. Install the same on all nodes."
                )
            self._last = loader
            cache = self._caches.setdefault(loader, ActorCache())
            job = cache.fill_in(sent.job(), recipe, node)
            use_one_opencv_thread()
            self._served[loader] = _Served(job, self._number, base_seed)
        except Exception as error:
            failure = worker_exception(error, f"in DataLoader Ray actor {self._number} on node {node}")
            return where._replace(failure=failure)
        return where._replace(cache=cache.name)

    def load(self, loader: str, unit: Unit, loan: Loan | None) -> Loaded:
        """Load a request of a loader, into the memory that it lends if that is to be found here."""
        return self._serving(loader).load(unit, loan)._replace(cache=self._caches[loader].stats)

    def check_copy(self, loader: str, epoch: int) -> list[FromWorker]:
        """Say whether loading has changed the copy of a loader's dataset."""
        return self._serving(loader).check_copy(epoch)

    def _serving(self, loader: str) -> _Served:
        served = self._served[loader]
        if loader != self._last:
            self._last = loader
            served.take_turn()
        return served

    def stop(self, loader: str) -> None:
        """Drop the copy of a loader's dataset, and its cache."""
        self._served.pop(loader, None)
        cache = self._caches.pop(loader, None)
        if cache is not None:
            cache.close()
