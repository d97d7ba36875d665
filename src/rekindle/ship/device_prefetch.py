"""Batches on the device, one ahead: while the model works on one, the next is copied and transformed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from rekindle.choose import EndOfEpoch
from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import Batch
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch
from rekindle.run.runner import Runner
from rekindle.ship.copy_stream import CopyStream, Wait
from rekindle.ship.unpack import unpack

_NOTHING = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch on its way to the device; call `wait` before it is used."""

    ready: SlotBatch | CollatedBatch
    batch: Batch
    wait: Wait


class ToDevice:
    """Copies batches to a device, and transforms them there.

    `pin` is what `pin_memory=True` asks for, and comes first. With `keep_memory`, the batch as the workers
    made it can still be unpacked; otherwise its slot is free as soon as no tensor needs it.
    """

    def __init__(
        self,
        copies: CopyStream,
        device: torch.device,
        transform: Callable[[SlotBatch | CollatedBatch, Batch], Batch] | None = None,
        pin: Callable[[Batch], Batch] | None = None,
        keep_memory: bool = False,
    ) -> None:
        self._copies, self._device, self._transform, self._pin = copies, device, transform, pin
        self._keep_memory = keep_memory

    def send(self, ready: SlotBatch | CollatedBatch) -> Sent:
        """Start to copy a batch."""
        batch, wait = self._copies.run(lambda: self._work(ready))
        return Sent(ready if self._keep_memory else _without_memory(ready), batch, wait)

    def _work(self, ready: SlotBatch | CollatedBatch) -> Batch:
        batch = unpack(ready)
        if self._pin is not None:
            batch = self._pin(batch)
        batch = moved(batch, self._copies.copy, self._device)
        return batch if self._transform is None else self._transform(ready, batch)

    def receive(self, sent: Sent) -> Batch:
        """The batch, ready for what the training loop does next."""
        sent.wait(tensors_of(sent.batch))
        return sent.batch


class OneAhead:
    """Takes batches from a runner and starts to copy each before the training loop asks for it.

    It never waits for the batch after the requested one: a batch that no worker has finished yet is copied
    when it is requested. An exception of the batch ahead is kept until its turn comes.
    """

    def __init__(self, runner: Runner, to_device: ToDevice) -> None:
        self._runner, self._to_device = runner, to_device
        self._held: Sent | EndOfEpoch | Exception | None = None
        self._taken: SlotBatch | CollatedBatch | EndOfEpoch | None = None  # from the runner, and not sent yet
        self._raised = False  # an exception of a batch, which is done with

    @property
    def steady(self) -> bool:
        """See `Runner`."""
        return self._raised or (self._held is None and self._taken is None and self._runner.steady)

    @property
    def holds(self) -> bool:
        """Whether `next` will return without asking the runner."""
        return self._held is not None

    def next(self) -> Sent | EndOfEpoch:
        """The next batch, or the mark that the epoch is over. Call `look_ahead` before it is yielded."""
        self._raised = False
        if self._held is None:
            self._taken = self._taken or self._runner.next()
            self._send_taken()
        if isinstance(self._held, Exception):
            error, self._held = self._held, None
            self._raised = True
            raise error
        assert self._held is not None
        return self._held

    def receive(self, sent: Sent) -> Batch:
        """The batch that `next` returned, for the training loop."""
        return self._to_device.receive(sent)

    def look_ahead(self) -> None:
        """Start to copy the batch after the one that `next` returned, if it is ready."""
        try:
            self._taken = self._taken or self._runner.poll()
        except Exception as error:
            if is_interrupt(error):
                raise
            self._held = error
        else:
            self._send_taken()

    def _send_taken(self) -> None:
        taken = self._taken
        held: Sent | EndOfEpoch | Exception | None
        try:
            held = self._to_device.send(taken) if isinstance(taken, SlotBatch | CollatedBatch) else taken
        except Exception as error:
            if is_interrupt(error):
                raise
            held = error
        self._held, self._taken = held, None


def _without_memory(ready: SlotBatch | CollatedBatch) -> SlotBatch | CollatedBatch:
    if isinstance(ready, CollatedBatch):
        return ready._replace(value=None)
    return replace(ready, memory=_NOTHING, strings=[])


def moved(batch: Batch, copy: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> Batch:
    """The batch with its tensors copied, however they are nested; of other objects, their `to` is called."""
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


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    """All tensors of a batch, however they are nested."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [tensor for part in batch for tensor in tensors_of(part)]
    return []
