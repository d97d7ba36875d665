"""When a worker's death is an error: the third time that the same part, or the same start, kills one."""

from __future__ import annotations

from collections.abc import Mapping

from rekindle.errors import WorkerError
from rekindle.run.in_flight_batch import InFlightBatch, Part
from rekindle.run.messages import WorkerDied
from rekindle.run.unit_gate import NOT_ALONE

_MOST_DEATHS = 3


class CrashPolicy:
    """Counts the deaths of workers by what they were doing.

    `started` says which are up: what kills these is their work.
    """

    def __init__(self, workers: int) -> None:
        self.started = [False] * workers
        self._failed_starts = [0] * workers

    def died(self, death: WorkerDied, working_on: Mapping[int, tuple[InFlightBatch, Part]]) -> None:
        """Record a death; WorkerError if it is the third for the same reason.

        `working_on` is the part that each worker of the process was loading, or was about to. Several were at
        work at once, so all are suspect the first time; what is suspect is loaded alone from then on, and
        its worker says so with the row that it is at.
        """
        started = {worker: self.started[worker] for worker in death.rows}
        for worker, was_up in started.items():
            self.started[worker] = False
            self._failed_starts[worker] *= not was_up
        if death.stopped:
            return
        alone = [worker for worker, row in death.rows.items() if row != NOT_ALONE]
        is_shared = len(death.rows) > 1
        for worker in alone or death.rows:
            if not started[worker]:
                self._failed_starts[worker] += 1
                if self._failed_starts[worker] >= _MOST_DEATHS:
                    raise WorkerError(
                        f"{death.how} before it could load anything, and so did the two before it. Look at "
                        "what workers do when they start: unpickling the dataset, worker_init_fn."
                    )
            elif worker in working_on:
                batch, part = working_on[worker]
                if is_shared and part.deaths and not alone:
                    continue  # It was to be loaded alone, and its turn had not come.
                part.deaths += 1
                if part.deaths >= _MOST_DEATHS:
                    raise _deadly_sample(batch, part, death.how, death.rows[worker])


def _deadly_sample(batch: InFlightBatch, part: Part, how: str, at: int) -> WorkerError:
    row = part.start + at
    if at >= 0 and row < part.stop:
        culprit = f"sample {batch.indices[row]!r}"
    else:
        culprit = f"one of the samples {batch.indices[part.start : part.stop]!r}"
    return WorkerError(
        f"{how}: {culprit} has killed {part.deaths} workers (batch {batch.order.step} of epoch "
        f"{batch.order.epoch}). Load it by itself to see why: dataset[index], or num_workers=0. If nothing "
        "is wrong with it, workers may be running out of memory."
    )
