"""Which units may be loaded at the same time within one process: any, or a suspect one alone.

When a process dies, any of the units that its threads were loading may have been the cause. They are loaded
again one at a time, with nothing beside them: so the next death tells which one it was.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from threading import Condition

# What the shared status says of a worker; or the row that it is at, if it keeps count of them.
NOT_ALONE, ALONE = -1, -2


class UnitGate:
    """Lets the threads of a process load units together, but a careful unit alone.

    `status` is memory that outlives the process: by worker, who is alone.
    """

    def __init__(self, status: MutableSequence[int] | memoryview) -> None:
        self._status = status
        self._changed = Condition()
        self._loading = 0
        self._is_closed = False  # Somebody is alone, or waits for the others to end.

    def enter(self, worker: int, careful: bool) -> None:
        """Wait until a worker may load a unit."""
        with self._changed:
            while self._is_closed:
                self._changed.wait()
            if careful:
                self._is_closed = True  # Now: if others still began, it might never be this one's turn.
                while self._loading:
                    self._changed.wait()
                self._status[worker] = ALONE
            self._loading += 1

    def leave(self, worker: int, careful: bool) -> None:
        """Say that a worker has loaded its unit."""
        with self._changed:
            self._loading -= 1
            if careful:
                self._status[worker] = NOT_ALONE
                self._is_closed = False
            if careful or self._is_closed:
                self._changed.notify_all()
