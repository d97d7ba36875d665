"""When a worker's death is an error: the third time that the same part, or the same start, kills one."""

from __future__ import annotations

from rekindle.errors import WorkerError
from rekindle.run.in_flight_batch import InFlightBatch, Part
from rekindle.run.messages import WorkerDied

_MOST_DEATHS = 3


class CrashPolicy:
    """Counts the deaths of workers by what they were doing."""

    def __init__(self, workers: int) -> None:
        self._started = [False] * workers
        self._failed_starts = [0] * workers

    def started(self, worker: int) -> None:
        """Record that a worker is up: from now on, what kills it is its work."""
        self._started[worker] = True
        self._failed_starts[worker] = 0

    def died(self, worker: int, death: WorkerDied, working_on: tuple[InFlightBatch, Part] | None) -> None:
        """Record a death; WorkerError if it is the third for the same reason."""
        started, self._started[worker] = self._started[worker], False
        if death.stopped:
            return
        if not started:
            self._failed_starts[worker] += 1
            if self._failed_starts[worker] >= _MOST_DEATHS:
                raise WorkerError(
                    f"{death.how} before it could load anything, and so did the two before it. Look at what "
                    "workers do when they start: unpickling the dataset, worker_init_fn."
                )
        elif working_on is not None:
            batch, part = working_on
            part.deaths += 1
            if part.deaths >= _MOST_DEATHS:
                raise _deadly_sample(batch, part, death)


def _deadly_sample(batch: InFlightBatch, part: Part, death: WorkerDied) -> WorkerError:
    row = part.start + death.row
    if death.row >= 0 and row < part.stop:
        culprit = f"sample {batch.indices[row]!r}"
    else:
        culprit = f"one of the samples {batch.indices[part.start : part.stop]!r}"
    return WorkerError(
        f"{death.how}: {culprit} has killed {part.deaths} workers (batch {batch.order.step} of epoch "
        f"{batch.order.epoch}). Load it by itself to see why: dataset[index], or num_workers=0. If nothing "
        "is wrong with it, workers may be running out of memory."
    )
