"""A worker process: its start, its pipe to the engine, and its end when the main process is gone."""

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
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import _utils

from rekindle.core.global_rng import seed_like_torch
from rekindle.core.memfd import map_file
from rekindle.core.process_state import end_with_parent, is_running
from rekindle.core.samples import Batch
from rekindle.run.caching_loader import sample_loader
from rekindle.run.job import Job
from rekindle.run.messages import FromWorker, MapSlot, Ready, StartFailed, ToWorker
from rekindle.run.nonblocking_pipe import NonblockingPipe
from rekindle.run.sent_job import SentJob
from rekindle.run.worker import Worker
from rekindle.run.worker_exception import worker_exception

_CHECK_MAIN_EVERY = 1.0  # seconds

# The engine's ends of all pipes, which a forked worker inherits and must close: as long as any process holds
# one, a worker does not notice that the main process is gone.
engine_ends: set[NonblockingPipe] = set()


class PipeChannel:
    """A worker process's end of its pipe to the engine; slots arrive over it as file descriptors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.slots: dict[int, NDArray[np.uint8]] = {}

    def receive(self) -> ToWorker | None:
        try:
            message: ToWorker = self._connection.recv()
            while isinstance(message, MapSlot):
                self.slots[message.slot] = _receive_memory(self._connection, message.nbytes)
                message = self._connection.recv()
        except (EOFError, OSError):
            return None
        return message

    def waiting(self) -> bool:
        try:
            return self._connection.poll()
        except OSError:
            return True  # Broken: `receive` returns None.

    def send(self, message: FromWorker) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except BrokenPipeError:  # The engine is gone, and with it the need for an answer.
            os._exit(0)


class RecordingWorkerInfo(_utils.worker.WorkerInfo):
    """Torch's worker info, which records whether the dataset has read the worker's id."""

    __slots__ = ()
    id_was_read = False

    def __getattribute__(self, name: str) -> object:
        if name == "id":
            RecordingWorkerInfo.id_was_read = True
        return super().__getattribute__(name)


def new_process(
    context: BaseContext, job: Job, number: int, connection: Connection, base_seed: int
) -> BaseProcess:
    """A worker process that is not started yet."""
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=run_worker,
        args=(SentJob(job), number, connection, base_seed, StartedBy.now(context)),
        daemon=True,
        name=f"rekindle-worker-{number}",
    )
    return process


def run_worker(
    sent: SentJob, number: int, connection: Connection, base_seed: int, started_by: StartedBy
) -> None:
    """What a worker process runs from its start to its end."""
    started_by.end_with_it()
    for end in engine_ends:
        end.close()
    engine_ends.clear()
    # Ctrl-C reaches the whole group of processes; the main one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.disable()  # A worker's death is reported by the engine, with the sample's name.
    _exit_with(started_by.pid)
    gc.freeze()  # The collector would otherwise touch, and so copy, every page shared with the parent.
    torch.set_num_threads(1)
    _stack_without_shared_memory()
    channel = PipeChannel(connection)
    # The status of all workers, in which each writes the row that it is loading: the first message there is.
    status = _receive_memory(connection, connection.recv().nbytes).data.cast("q")
    try:
        job = sent.job
        _seed_worker(job, number, base_seed)
        if job.worker_init_fn is not None:
            job.worker_init_fn(number)
    except Exception as error:
        channel.send(StartFailed(worker_exception(error, f"in DataLoader worker process {number}")))
        return
    channel.send(Ready())
    RecordingWorkerInfo.id_was_read = False

    def on_row(row: int) -> None:
        status[number] = row

    Worker(
        job,
        f"worker process {number}",
        channel,
        sample_loader(job, on_row=on_row),
        uses_worker_id=lambda: RecordingWorkerInfo.id_was_read,
        seed_worker=lambda seed: _seed_worker(job, number, seed),
        worker_seed=base_seed,
    ).serve()


def _receive_memory(connection: Connection, nbytes: int) -> NDArray[np.uint8]:
    """The memory whose file descriptor is next in the pipe."""
    fd = recv_handle(connection)
    try:
        return map_file(fd, nbytes)
    finally:
        os.close(fd)


def _seed_worker(job: Job, number: int, base_seed: int) -> None:
    """Seed the generators and set `get_worker_info()` as torch's own worker does when it starts."""
    seed_like_torch(base_seed, number)
    _utils.worker._worker_info = RecordingWorkerInfo(
        id=number, num_workers=job.workers, seed=base_seed + number, dataset=job.read_from
    )


class StartedBy(NamedTuple):
    """The process that starts a worker."""

    pid: int
    is_parent: bool  # of the worker; otherwise a fork server is
    by_main_thread: bool

    @staticmethod
    def now(context: BaseContext) -> StartedBy:
        """The process that this is, about to start a worker."""
        is_main = threading.current_thread() is threading.main_thread()
        return StartedBy(os.getpid(), context.get_start_method() != "forkserver", is_main)

    def end_with_it(self) -> None:
        """End this process, the worker, with the other one, even if it is stopped then.

        Not if another thread than the main one has started it, with which the kernel would end it.
        """
        if self.by_main_thread:
            end_with_parent()
        if self.is_parent and os.getppid() != self.pid:  # It was gone before the kernel was told.
            os._exit(1)


def _exit_with(main_pid: int) -> None:
    """End this process when the main process is gone, whatever it is busy with."""
    parent = os.getppid()  # The main process itself, or the fork server.

    def check() -> None:
        while os.getppid() == parent and is_running(main_pid):
            time.sleep(_CHECK_MAIN_EVERY)
        os._exit(1)

    threading.Thread(target=check, name="rekindle-main-alive", daemon=True).start()


_CollateMap: TypeAlias = dict[type | tuple[type, ...], Callable[..., Batch]]


def _stack_without_shared_memory() -> None:
    """Make `default_collate` use plain memory: the slots are what is shared, not `/dev/shm`."""
    table = _utils.collate.default_collate_fn_map
    if table.get(torch.Tensor) is _utils.collate.collate_tensor_fn:
        table[torch.Tensor] = _stack


def _stack(batch: list[torch.Tensor], *, collate_fn_map: _CollateMap | None = None) -> torch.Tensor:
    info, _utils.worker._worker_info = _utils.worker._worker_info, None
    try:
        stacked: torch.Tensor = _utils.collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        return stacked
    finally:
        _utils.worker._worker_info = info
