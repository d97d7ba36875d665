"""Workers as the engine sees them, be they processes, threads or actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rekindle.run.messages import Event, FromWorker, ToWorker
from rekindle.run.slots import Slot


class WorkerPool(Protocol):
    """Workers with numbers from 0 on."""

    size: int
    waiting: bool  # in `poll`, for messages: an interrupt now changes nothing
    splits: bool  # batches into parts itself: it is sent whole ones

    @property
    def workers(self) -> Sequence[BaseProcess | Thread]:
        """The processes or threads themselves."""

    def send(self, messages: Mapping[int, Sequence[ToWorker]], slots: Sequence[Slot] = ()) -> None:
        """Send workers their messages, by number, and make the slots visible to them that these are about."""

    def poll(self, timeout: float, enough: int = 1, batch: int | None = None) -> list[tuple[int, Event]]:
        """The messages of workers, by number, after waiting up to `timeout` seconds for the first.

        With `enough`, nothing can go on before as many units are done, those of the `batch` if it is given:
        it may wait for them all, but no longer than for the first message that asks for something.
        """

    def close(self) -> None:
        """End all workers."""


class Channel(Protocol):
    """A worker's end of its connection to the engine."""

    slots: dict[int, NDArray[np.uint8]]

    def receive(self) -> ToWorker | None:
        """The next message, waiting for it; None when the engine has closed the connection."""

    def waiting(self) -> bool:
        """Whether `receive` would return at once."""

    def send(self, message: FromWorker) -> None:
        """Send a message to the engine."""
