"""Workers as threads of the main process: for datasets whose work releases the GIL.

A third-party dataset may draw from the global generators, which the training loop uses as well. Such a
dataset runs only while the training loop waits for a batch, one sample at a time, and the generators are
restored afterwards: correct, if slow.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
from numpy.typing import NDArray

from rekindle.core.global_rng import generators_kept
from rekindle.core.public_rng import RandomSource
from rekindle.core.sole_use import has_turn, turn_of_waiting_thread
from rekindle.errors import WorkerError
from rekindle.run.caching_loader import sample_loader
from rekindle.run.job import Job
from rekindle.run.messages import Event, FromWorker, StartFailed, ToWorker
from rekindle.run.slots import Slot
from rekindle.run.worker import Worker
from rekindle.run.worker_exception import worker_exception

_CLOSE_WITHIN = 1.0  # seconds


class _ClosedError(BaseException):
    """The pool is closed. Not an Exception, so that no code in between handles it as an error of a sample."""


class ThreadChannel:
    """A worker thread's connection to the engine: queues, and the slots themselves."""

    def __init__(self, worker: int, outbox: queue.SimpleQueue[tuple[int, Event]]) -> None:
        self.inbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self.slots: dict[int, NDArray[np.uint8]] = {}
        self._worker, self._outbox = worker, outbox
        self._closed = False

    def receive(self) -> ToWorker | None:
        message = None if self._closed else self.inbox.get()
        self._closed = (
            message is None
        )  # From now on, whoever asks: the worker may be in the middle of a unit.
        return message

    def waiting(self) -> bool:
        return self._closed or not self.inbox.empty()

    def send(self, message: FromWorker) -> None:
        self._outbox.put((self._worker, message))


class ThreadPool:
    """Worker threads with numbers from 0 on."""

    splits = False
    waiting = False  # An interrupt may lose a message, and leave the lock released.

    def __init__(self, job: Job) -> None:
        self.size = job.workers
        self._messages: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self._channels = [ThreadChannel(number, self._messages) for number in range(self.size)]
        # Held by the training loop, except while it waits for a batch.
        self._generators_lock = threading.Lock()
        self._generators_lock.acquire()
        self._loop_has_lock = True
        # Whether that loop is in a dataset without workers, which has the generators while it waits.
        self._has_turn = False
        self._open = True
        self.workers = [
            threading.Thread(
                target=self._run,
                args=(job, number),
                daemon=True,
                name=f"rekindle-worker-{number}",
            )
            for number in range(self.size)
        ]
        for thread in self.workers:
            thread.start()

    def _run(self, job: Job, number: int) -> None:
        channel = self._channels[number]
        loader = sample_loader(job, exclusive=self._exclusive)
        try:
            if job.worker_init_fn is not None:
                job.worker_init_fn(number)
        except Exception as error:
            channel.send(StartFailed(worker_exception(error, f"in DataLoader worker thread {number}")))
            return
        with contextlib.suppress(_ClosedError):
            Worker(job, f"worker thread {number}", channel, loader).serve()

    @contextmanager
    def _exclusive(self, generators: tuple[RandomSource, ...]) -> Iterator[None]:
        """A context in which only this thread uses the generators, and after which they are as they were."""
        with self._generators_lock:
            if not self._open:
                raise _ClosedError
            with turn_of_waiting_thread() if self._has_turn else nullcontext(), generators_kept(generators):
                yield

    def send(self, messages: Mapping[int, Sequence[ToWorker]], slots: Sequence[Slot] = ()) -> None:
        """Send workers their messages, by number, and the slots that these are about."""
        for number, own in messages.items():
            channel = self._channels[number]
            for slot in slots:
                channel.slots[slot.number] = slot.array
            for message in own:
                channel.inbox.put(message)

    def poll(self, timeout: float, enough: int = 1, batch: int | None = None) -> list[tuple[int, Event]]:
        """The messages of workers, after waiting up to `timeout` seconds for one.

        Meanwhile workers may use the generators.
        """
        found: list[tuple[int, Event]] = []
        if timeout and self._messages.empty():
            self._has_turn, self._loop_has_lock = has_turn(), False
            self._generators_lock.release()
            try:
                found.append(self._messages.get(timeout=timeout))
            except queue.Empty:
                pass
            finally:
                self._generators_lock.acquire()
                self._loop_has_lock = self._open
                if not self._open:
                    self._generators_lock.release()
            if not self._open:
                raise WorkerError("another thread has closed the loader")
        while not self._messages.empty():
            found.append(self._messages.get())
        return found

    def close(self) -> None:
        """End all threads; one that is loading a sample ends after it."""
        self._open = False
        for channel in self._channels:
            channel.inbox.put(None)
        if self._loop_has_lock:
            self._loop_has_lock = False
            with contextlib.suppress(RuntimeError):  # An interrupt came while it was released.
                self._generators_lock.release()
        for thread in self.workers:
            # The garbage collector may find a loader, and close it, in a thread that works for it.
            if thread is not threading.current_thread():
                thread.join(_CLOSE_WITHIN / self.size)
