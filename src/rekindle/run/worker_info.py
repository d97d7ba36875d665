"""What `torch.utils.data.get_worker_info()` gives in a worker process, and its seeds, as in torch's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.utils.data import _utils

from rekindle.core.global_rng import seed_like_torch
from rekindle.core.samples import Batch
from rekindle.run.job import Job


class RecordingWorkerInfo(_utils.worker.WorkerInfo):
    """Torch's worker info, which records whether the dataset has asked which worker it is in.

    There is one a process, and `id` and `seed` are those of the thread that asks.
    """

    __slots__ = ()
    was_asked = False
    beside = threading.local()  # `number`: how much higher than the first worker's a thread's own number is

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name in ("id", "seed"):
            RecordingWorkerInfo.was_asked = True
            return value + getattr(RecordingWorkerInfo.beside, "number", 0)
        return value


def seed_worker(job: Job, number: int, base_seed: int) -> None:
    """Seed the generators and set `get_worker_info()` as torch's own worker does when it starts."""
    seed_like_torch(base_seed, number)
    _utils.worker._worker_info = RecordingWorkerInfo(
        id=number, num_workers=job.workers, seed=base_seed + number, dataset=job.read_from
    )


def seed_is_the_scripts() -> bool:
    """Whether the script has seeded torch's generator in this worker: its `worker_init_fn`, that is."""
    info = _utils.worker._worker_info
    if not isinstance(info, RecordingWorkerInfo):
        return False
    return bool(torch.initial_seed() != super(RecordingWorkerInfo, info).__getattribute__("seed"))


def use_one_opencv_thread() -> None:
    """Let OpenCV use the thread that it is called in, as torch does, if the script has imported it.

    Samples are prepared in parallel, and its own threads were not forked with the process.
    """
    set_threads = getattr(sys.modules.get("cv2"), "setNumThreads", None)
    if set_threads is not None:
        set_threads(1)


_WITHOUT_INFO = threading.Lock()
_CollateMap: TypeAlias = dict[type | tuple[type, ...], Callable[..., Batch]]


def stack_without_shared_memory() -> None:
    """Make `default_collate` use plain memory: the slots are what is shared, not `/dev/shm`."""
    table = _utils.collate.default_collate_fn_map
    if table.get(torch.Tensor) is _utils.collate.collate_tensor_fn:
        table[torch.Tensor] = _stack


def _stack(batch: list[torch.Tensor], *, collate_fn_map: _CollateMap | None = None) -> torch.Tensor:
    first = batch[0]
    if first.layout is torch.strided and not first.is_nested:
        return torch.stack(batch, 0)
    with _WITHOUT_INFO:  # Of two threads, the second would find None, and leave that behind.
        info, _utils.worker._worker_info = _utils.worker._worker_info, None
        try:
            stacked: torch.Tensor = _utils.collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
            return stacked
        finally:
            _utils.worker._worker_info = info
