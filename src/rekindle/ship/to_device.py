"""Batches on the device, one ahead: while the model works on one, the next is copied and finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rekindle.choose import EndOfEpoch
from rekindle.run.runner import AnyRunner
from rekindle.run.tickets import Filled, Made
from rekindle.ship.lanes import Lane
from rekindle.ship.unpack import unpack

_NOTHING = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch on its way, and what is known of it."""

    ready: Filled | Made
    batch: Any
    mark: Any


class ToDevice:
    """Takes batches to a device, where `finish` does what is left to do.

    `pin` is what `pin_memory=True` asks for, and comes first. With `keep_memory`, the batch as the workers
    made it can still be unpacked; otherwise its slot is free as soon as no tensor needs it.
    """

    def __init__(
        self,
        lane: Lane,
        device: torch.device,
        finish: Callable[[Filled | Made, Any], Any] | None = None,
        pin: Callable[[Any], Any] | None = None,
        keep_memory: bool = False,
    ) -> None:
        self._lane, self._device, self._finish, self._pin = lane, device, finish, pin
        self._keep_memory = keep_memory

    def send(self, ready: Filled | Made) -> Sent:
        """Start a batch on its way."""
        batch, mark = self._lane.run(lambda: self._work(ready))
        return Sent(ready if self._keep_memory else _without_memory(ready), batch, mark)

    def _work(self, ready: Filled | Made) -> Any:
        batch = unpack(ready)
        if self._pin is not None:
            batch = self._pin(batch)
        batch = moved(batch, self._lane.copy, self._device)
        return batch if self._finish is None else self._finish(ready, batch)

    def receive(self, sent: Sent) -> Any:
        """The batch, ready for what the training loop does next."""
        self._lane.pass_mark(sent.mark, tensors_of(sent.batch))
        return sent.batch


class OneAhead:
    """Asks a runner for batches and sends each on its way before the training loop asks for it.

    It never waits for the batch after the one that is asked for: what no worker has finished yet is sent when
    it is asked for. An exception that the batch ahead meets is kept until its turn comes.
    """

    def __init__(self, runner: AnyRunner, to_device: ToDevice) -> None:
        self._runner, self._to_device = runner, to_device
        self._held: Sent | EndOfEpoch | Exception | None = None
        self._taken: Filled | Made | EndOfEpoch | None = None  # from the runner, and not sent yet

    @property
    def holds(self) -> bool:
        """Whether something is here for the next call of `next`."""
        return self._held is not None

    def next(self) -> Sent | EndOfEpoch:
        """The next batch, or the mark that the epoch is over. Call `look_ahead` before it is handed over."""
        if self._held is None:
            self._taken = self._taken or self._runner.next()
            self._send_taken()
        if isinstance(self._held, Exception):
            error, self._held = self._held, None
            raise error
        assert self._held is not None
        return self._held

    def receive(self, sent: Sent) -> Any:
        """The batch that `next` gave, for the training loop."""
        return self._to_device.receive(sent)

    def look_ahead(self) -> None:
        """Put the batch after the one that `next` gave on its way, if it is ready."""
        # An interrupt in here loses nothing: the present batch is still held, and will be given again.
        try:
            self._taken = self._taken or self._runner.poll()
        except Exception as error:
            self._held = error
        else:
            self._send_taken()

    def _send_taken(self) -> None:
        taken = self._taken
        held: Sent | EndOfEpoch | Exception | None
        try:
            held = self._to_device.send(taken) if isinstance(taken, Filled | Made) else taken
        except Exception as error:
            held = error
        self._held, self._taken = held, None


def _without_memory(ready: Filled | Made) -> Filled | Made:
    if isinstance(ready, Made):
        return ready._replace(value=None)
    return replace(ready, memory=_NOTHING, strings=[])


def moved(batch: Any, copy: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> Any:
    """The batch with its tensors copied, however they are nested; objects that have a `to` are asked."""
    if isinstance(batch, torch.Tensor):
        return copy(batch)
    if isinstance(batch, dict):
        parts = {key: moved(part, copy, device) for key, part in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, copy, device) for part in batch))
    if type(batch) in (list, tuple):
        return type(batch)(moved(part, copy, device) for part in batch)
    if hasattr(batch, "to") and not isinstance(batch, type):
        return batch.to(device)
    return batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """All tensors of a batch, however they are nested."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [tensor for part in batch for tensor in tensors_of(part)]
    return []
