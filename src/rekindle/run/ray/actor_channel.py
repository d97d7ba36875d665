"""An actor's connection to its worker: it answers for the engine, which is on another machine.

A worker asks for the layout of rows and for memory while it loads. Here both are for one request alone: the
layout is that of the request's own samples, the memory is a buffer whose content goes back with the result.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from rekindle.run.batch_layout import Layout, Spec
from rekindle.run.messages import (
    AssignSlot,
    Cancel,
    Described,
    FromWorker,
    NeedSlot,
    SetLayout,
    ToWorker,
    Unit,
)

_SLOT = 0  # There is one at a time.


class ActorChannel:
    """What a worker in an actor reads its messages from; `sent` is what it has answered.

    Attributes:
        spec: How samples are built, as far as known.
        memory: What the request's samples, or its batch, were written to; None if there was nothing to write.
        in_lent: Whether that is the memory which was lent for it.

    """

    def __init__(self) -> None:
        self.slots: dict[int, NDArray[np.uint8]] = {}
        self.sent: list[FromWorker] = []
        self.spec: Spec | None = None
        self.memory: NDArray[np.uint8] | None = None
        self.in_lent = False
        self._lent: NDArray[np.uint8] | None = None
        self._inbox: deque[ToWorker] = deque()
        self._buffer = np.empty(0, dtype=np.uint8)
        self._unit: Unit | None = None

    def begin(self, message: ToWorker, lent: NDArray[np.uint8] | None = None) -> None:
        """Give the worker one more message, and forget what it has answered to the last one.

        What it writes goes to the memory that is `lent`, if it has room there.
        """
        self.sent, self.memory, self.in_lent, self._lent = [], None, False, lent
        self._inbox.clear()
        if isinstance(message, Unit):
            self._unit = message
            if message.kind == "rows" and self.spec is not None:
                self._lay_out(message, self.spec)
        self._inbox.append(message)

    def _lay_out(self, unit: Unit, spec: Spec) -> None:
        layout = Layout(spec, len(unit.indices))
        self._inbox.append(SetLayout(layout))
        self._assign(unit, layout.nbytes)

    def _assign(self, unit: Unit, nbytes: int) -> None:
        if self._lent is not None and self._lent.nbytes >= nbytes:
            self.in_lent, memory = True, self._lent
        else:  # Reused: Ray has copied the last result before the next request.
            if self._buffer.nbytes < nbytes:
                self._buffer = np.empty(nbytes + nbytes // 8, dtype=np.uint8)
            self.in_lent, memory = False, self._buffer
        self.memory = self.slots[_SLOT] = memory[:nbytes]
        self._inbox.append(AssignSlot(unit.batch, unit.part, _SLOT))

    def receive(self) -> ToWorker | None:
        return self._inbox.popleft() if self._inbox else None

    def waiting(self) -> bool:
        return bool(self._inbox)

    def send(self, message: FromWorker) -> None:
        unit = self._unit
        self.sent.append(message)
        match message:
            case Described(_, _, spec, _) if unit is not None:
                self.spec = spec
                if spec is None:  # The engine will have whole batches collated.
                    self._inbox.append(Cancel(unit.batch + 1))
                else:
                    self._lay_out(unit, spec)
            case NeedSlot(_, _, nbytes) if unit is not None:
                self._assign(unit, nbytes)
