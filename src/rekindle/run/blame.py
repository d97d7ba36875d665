"""Whose fault it is that a worker died."""

from __future__ import annotations

from rekindle.errors import WorkerError
from rekindle.run.messages import Death
from rekindle.run.tickets import Part, Ticket

_MOST_DEATHS = 3


class Blame:
    """Counts what workers died of; the third time of the same thing is an error."""

    def __init__(self, workers: int) -> None:
        self._started = [False] * workers
        self._failed_starts = [0] * workers

    def started(self, worker: int) -> None:
        """Note that a worker is up: what kills it from now on is what it is given to do."""
        self._started[worker] = True
        self._failed_starts[worker] = 0

    def died(self, worker: int, death: Death, at_work_on: tuple[Ticket, Part] | None) -> None:
        """Note a death; WorkerError if it is one too many."""
        started, self._started[worker] = self._started[worker], False
        if death.guiltless:
            return
        if not started:
            self._failed_starts[worker] += 1
            if self._failed_starts[worker] >= _MOST_DEATHS:
                raise WorkerError(
                    f"{death.how} before it could load anything, and so did the two before it. Look at what "
                    "workers do when they start: unpickling the data set, worker_init_fn."
                )
        elif at_work_on is not None:
            ticket, part = at_work_on
            part.deaths += 1
            if part.deaths >= _MOST_DEATHS:
                raise _killer(ticket, part, death)


def _killer(ticket: Ticket, part: Part, death: Death) -> WorkerError:
    row = part.start + death.row
    if death.row >= 0 and row < part.stop:
        culprit = f"sample {ticket.indices[row]!r}"
    else:
        culprit = f"one of the samples {ticket.indices[part.start : part.stop]!r}"
    return WorkerError(
        f"{death.how}: {culprit} has killed {part.deaths} workers (batch {ticket.order.step} of epoch "
        f"{ticket.order.epoch}). Load it by itself to see why: dataset[index], or num_workers=0. If nothing "
        "is wrong with it, workers may be running out of memory."
    )
