"""Workers as threads of the main process: for data sets whose work leaves Python's lock to others.

A data set of unknown code may draw from the global generators, which the training loop uses as well. Such
code runs only while the training loop waits for a batch, one sample at a time, and the generators are put
back afterwards: right, if slow.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.global_random import Stream
from rekindle.run.load import generators_kept
from rekindle.run.messages import StartFailed
from rekindle.run.reusing import sample_loader
from rekindle.run.slots import Slot
from rekindle.run.told import tell
from rekindle.run.worker import Job, Worker

_CLOSE_WITHIN = 1.0  # seconds


class _ClosedError(BaseException):
    """Nobody waits for this thread any more. Not an Exception, so that nobody on the way takes it for one."""


class ThreadChannel:
    """A worker thread's line to the engine: queues, and the slots themselves."""

    def __init__(self, worker: int, outbox: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.slots: dict[int, NDArray[np.uint8]] = {}
        self._worker, self._outbox = worker, outbox

    def receive(self) -> Any:
        return self.inbox.get()

    def waiting(self) -> bool:
        return not self.inbox.empty()

    def send(self, message: Any) -> None:
        self._outbox.put((self._worker, message))


class ThreadCrew:
    """Worker threads with numbers from 0 on."""

    def __init__(self, job: Job) -> None:
        self.size = job.workers
        self._said: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._channels = [ThreadChannel(number, self._said) for number in range(self.size)]
        # Held by the training loop, except while it waits for a batch.
        self._generators = threading.Lock()
        self._generators.acquire()
        self._open = True
        draws = job.draws
        self.threads = [
            threading.Thread(
                target=self._run,
                args=(job, number, draws),
                daemon=True,
                name=f"rekindle-worker-{number}",
            )
            for number in range(self.size)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, job: Job, number: int, draws: bool) -> None:
        channel = self._channels[number]
        loader = sample_loader(job.dataset, job.reused, alone=self._alone if draws else None, draws=draws)
        try:
            if job.worker_init_fn is not None:
                job.worker_init_fn(number)
        except Exception as error:
            channel.send(StartFailed(tell(error, f"in DataLoader worker thread {number}")))
            return
        with contextlib.suppress(_ClosedError):
            Worker(job, number, channel, loader).serve()

    @contextmanager
    def _alone(self, streams: tuple[Stream, ...]) -> Iterator[None]:
        with self._generators:
            if not self._open:
                raise _ClosedError
            with generators_kept(streams):
                yield

    def send(self, number: int, message: Any, slots: Sequence[Slot] = ()) -> None:
        """Hand a message over, and the slots that it is about."""
        channel = self._channels[number]
        for slot in slots:
            channel.slots[slot.number] = slot.array
        channel.inbox.put(message)

    def poll(self, timeout: float) -> list[tuple[int, Any]]:
        """What workers said, waiting up to `timeout` seconds for the first word."""
        said = []
        if timeout > 0 and self._said.empty():
            self._generators.release()
            try:
                said.append(self._said.get(timeout=timeout))
            except queue.Empty:
                return []
            finally:
                self._generators.acquire()
        while not self._said.empty():
            said.append(self._said.get())
        return said

    def close(self) -> None:
        """End all threads; one that is in the middle of a sample ends after it."""
        self._open = False
        for channel in self._channels:
            channel.inbox.put(None)
        self._generators.release()
        for thread in self.threads:
            # The collector may find a loader, and close it, in a thread that works for it.
            if thread is not threading.current_thread():
                thread.join(_CLOSE_WITHIN / self.size)
