"""A worker process: its start, its line to the engine, and its end when the main process is gone."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import _utils

from rekindle.global_random import seed_like_torch
from rekindle.memory_file import map_file
from rekindle.run.line import Line
from rekindle.run.messages import MapSlot, Ready, StartFailed
from rekindle.run.reusing import sample_loader
from rekindle.run.told import tell
from rekindle.run.worker import Job, Worker

_LOOK_FOR_MAIN_EVERY = 1.0  # seconds

# The engine's ends of all lines, which a forked worker inherits and must close: as long as anybody holds
# one, a worker does not notice that the main process is gone.
engine_ends: set[Line] = set()


class PipeChannel:
    """A worker process's line to the engine; slots arrive over it as descriptors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.slots: dict[int, NDArray[np.uint8]] = {}

    def receive(self) -> Any:
        try:
            message = self._connection.recv()
            while isinstance(message, MapSlot):
                fd = recv_handle(self._connection)
                self.slots[message.slot] = map_file(fd, message.nbytes)
                os.close(fd)
                message = self._connection.recv()
        except (EOFError, OSError):
            return None
        return message

    def waiting(self) -> bool:
        try:
            return self._connection.poll()
        except OSError:
            return True  # Broken: `receive` will say so.

    def send(self, message: Any) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except BrokenPipeError:  # The engine is gone, and with it the need for an answer.
            os._exit(0)


class NoticingWorkerInfo(_utils.worker.WorkerInfo):
    """Torch's worker info, which notices whether a sample depends on the worker that makes it."""

    __slots__ = ()
    asked = False

    def __getattribute__(self, name: str) -> Any:
        if name == "id":
            NoticingWorkerInfo.asked = True
        return super().__getattribute__(name)


def run_worker(job: Job, number: int, connection: Connection, base_seed: int, main: int) -> None:
    """What a worker process runs from its start to its end."""
    for end in engine_ends:
        end.close()
    engine_ends.clear()
    # Ctrl-C reaches the whole group of processes; the main one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.disable()  # A worker's death is reported by the engine, with the sample's name.
    _leave_with(main)
    gc.freeze()  # The collector would otherwise touch, and so copy, every page shared with the parent.
    torch.set_num_threads(1)
    _stack_without_shared_memory()
    channel = PipeChannel(connection)
    status = map_status(connection)
    try:
        _introduce(job, number, base_seed)
        if job.worker_init_fn is not None:
            job.worker_init_fn(number)
    except Exception as error:
        channel.send(StartFailed(tell(error, f"in DataLoader worker process {number}")))
        return
    channel.send(Ready())
    NoticingWorkerInfo.asked = False
    words = status.data.cast("q")

    def watch(row: int) -> None:
        words[number] = row

    loader = sample_loader(job.dataset, job.reused, watch=watch, draws=job.draws)

    def introduce(seed: int) -> None:
        _introduce(job, number, seed)

    asked = lambda: NoticingWorkerInfo.asked  # noqa: E731
    Worker(job, number, channel, loader, asked, introduce, base_seed).serve()


def map_status(connection: Connection) -> NDArray[np.uint8]:
    """The memory in which each worker notes what it is doing: the first thing that the engine sends."""
    message = connection.recv()
    fd = recv_handle(connection)
    status = map_file(fd, message.nbytes)
    os.close(fd)
    return status


def _introduce(job: Job, number: int, base_seed: int) -> None:
    """Seed the generators and set `get_worker_info()` as torch's own worker does when it starts."""
    seed_like_torch(base_seed, number)
    _utils.worker._worker_info = NoticingWorkerInfo(
        id=number, num_workers=job.workers, seed=base_seed + number, dataset=job.read_from
    )


def _leave_with(main: int) -> None:
    """End this process when the main process is gone, whatever it is busy with."""
    parent = os.getppid()  # The main process itself, or the fork server.

    def look() -> None:
        while os.getppid() == parent and _runs(main):
            time.sleep(_LOOK_FOR_MAIN_EVERY)
        os._exit(1)

    threading.Thread(target=look, name="rekindle-main-alive", daemon=True).start()


def _runs(pid: int) -> bool:
    """Whether a process is there and not just waiting to be buried."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True


def _stack_without_shared_memory() -> None:
    """Make `default_collate` use plain memory: our slots are what is shared, not `/dev/shm`."""
    table: dict[Any, Callable[..., Any]] = _utils.collate.default_collate_fn_map
    if table.get(torch.Tensor) is _utils.collate.collate_tensor_fn:
        table[torch.Tensor] = _stack


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    info, _utils.worker._worker_info = _utils.worker._worker_info, None
    try:
        stacked: torch.Tensor = _utils.collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        return stacked
    finally:
        _utils.worker._worker_info = info
