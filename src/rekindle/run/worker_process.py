"""A worker process: its start, its workers' pipes to the engine, and its end when the main process is gone.

It has one worker, or several in threads of their own if their work releases the GIL. Each has its own number
and pipe, and loads as if it were a process; what a process is, they share: the dataset, the slots, the death.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle
from threading import Lock, Thread
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.memfd import map_file
from rekindle.core.process_state import end_with_parent, is_running
from rekindle.run.caching_loader import sample_loader
from rekindle.run.messages import FromWorker, MapSlot, Ready, StartFailed, ToWorker
from rekindle.run.nonblocking_pipe import NonblockingPipe
from rekindle.run.sent_job import PickledJob, SentJob
from rekindle.run.unit_gate import UnitGate
from rekindle.run.worker import Worker
from rekindle.run.worker_exception import worker_exception
from rekindle.run.worker_info import (
    RecordingWorkerInfo,
    seed_worker,
    stack_without_shared_memory,
    use_one_opencv_thread,
)

_CHECK_MAIN_EVERY = 1.0  # seconds
_END_WITHIN = 0.5  # seconds: less than the engine waits before it uses force

# The engine's ends of all pipes, which a forked worker inherits and must close: as long as any process holds
# one, a worker does not notice that the main process is gone.
engine_ends: set[NonblockingPipe] = set()


class ProcessSlots:
    """The slots that the workers of a process have in use: each is mapped once, whoever gets it first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mapped: WeakValueDictionary[int, NDArray[np.uint8]] = WeakValueDictionary()

    def receive(self, connection: Connection, message: MapSlot) -> NDArray[np.uint8]:
        """The memory of a slot whose file descriptor is next in the pipe."""
        fd = recv_handle(connection)
        try:
            with self._lock:
                memory = self._mapped.get(message.slot)
                if memory is None:
                    memory = self._mapped[message.slot] = map_file(fd, message.nbytes)
                return memory
        finally:
            os.close(fd)


class PipeChannel:
    """A worker's end of its pipe to the engine; slots arrive over it as file descriptors."""

    def __init__(self, connection: Connection, slots: ProcessSlots) -> None:
        self._connection, self._process_slots = connection, slots
        # Kept, as `Connection.poll` makes one for every call, which takes longer than all else between units.
        self._readable = select.poll()
        self._readable.register(connection.fileno(), select.POLLIN)
        self.slots: dict[int, NDArray[np.uint8]] = {}

    def receive(self) -> ToWorker | None:
        try:
            message: ToWorker = self._connection.recv()
            while isinstance(message, MapSlot):
                self.slots[message.slot] = self._process_slots.receive(self._connection, message)
                message = self._connection.recv()
        except (EOFError, OSError):
            return None
        return message

    def waiting(self) -> bool:
        return bool(self._readable.poll(0))  # Also if it is broken: `receive` returns None.

    def send(self, message: FromWorker) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except BrokenPipeError:  # The engine is gone, and with it the need for an answer.
            os._exit(0)


def new_process(
    context: BaseContext, sent: SentJob, lines: dict[int, Connection], base_seed: int
) -> BaseProcess:
    """A process, not started yet, for the workers of these numbers, each with its end of a pipe."""
    started_by = StartedBy.now(context)
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=run_workers,
        args=(sent, lines, base_seed, started_by),
        daemon=True,
        name=f"rekindle-worker-{min(lines)}",
    )
    return process


def run_workers(
    sent: SentJob | PickledJob, lines: dict[int, Connection], base_seed: int, started_by: StartedBy
) -> None:
    """What a worker process runs from its start to its end."""
    _leave_the_main_process(started_by)
    slots = ProcessSlots()
    channels = {number: PipeChannel(connection, slots) for number, connection in lines.items()}
    first, *others = channels
    # The status of all workers, in which each writes the row that it is loading: the first message there is.
    status = _receive_memory(lines[first], lines[first].recv().nbytes).data.cast("q")
    try:
        job = sent.receive()
        use_one_opencv_thread()
        seed_worker(job, first, base_seed)
        if job.worker_init_fn is not None:
            job.worker_init_fn(first)
    except Exception as error:
        channels[first].send(StartFailed(worker_exception(error, f"in DataLoader worker process {first}")))
        return
    gate = UnitGate(status) if others else None
    for channel in channels.values():  # All of them, before one could do anything that kills the process.
        channel.send(Ready())
    RecordingWorkerInfo.was_asked = False

    def serve(number: int) -> None:
        def on_row(row: int) -> None:
            status[number] = row

        RecordingWorkerInfo.beside.number = number - first
        Worker(
            job,
            f"worker process {number}",
            channels[number],
            sample_loader(job, on_row=on_row, known=sent.known),
            uses_worker_id=lambda: RecordingWorkerInfo.was_asked,
            # The generators are those of the process; where there are several workers, none draws from them.
            seed_worker=lambda seed: seed_worker(job, first, seed),
            worker_seed=base_seed,
            gate=gate,
            number=number,
        ).serve()

    threads = [Thread(target=_serve_in_thread, args=(serve, number), daemon=True) for number in others]
    for thread in threads:
        thread.start()
    serve(first)
    _end(threads)


def _leave_the_main_process(started_by: StartedBy) -> None:
    """Let go of what a fork has copied, and end when the main process does."""
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
    stack_without_shared_memory()


def _serve_in_thread(serve: Callable[[int], None], number: int) -> None:
    """Run a worker; if it ends as none should, end the process, as it would if it had one worker only."""
    torch.set_num_threads(1)  # Some of what this sets is set for a thread.
    try:
        serve(number)
    except SystemExit as leaving:
        os._exit(leaving.code if isinstance(leaving.code, int) else 1)
    except BaseException:  # It is shown, and the engine sees the process end.
        traceback.print_exc()
        os._exit(1)


def _end(threads: list[Thread]) -> None:
    """Wait for the other workers, whose pipes are closed too, but not for one in the middle of a sample."""
    deadline = time.monotonic() + _END_WITHIN
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # A stream of the user's, or one that is closed.
                stream.flush()
        os._exit(0)  # No interpreter can be taken down while a thread is at work in it.


def _receive_memory(connection: Connection, nbytes: int) -> NDArray[np.uint8]:
    """The memory whose file descriptor is next in the pipe."""
    fd = recv_handle(connection)
    try:
        return map_file(fd, nbytes)
    finally:
        os.close(fd)


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
