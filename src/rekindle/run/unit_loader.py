"""Loads the samples of a unit, and describes the failed ones as errors that the engine can read."""

from __future__ import annotations

from rekindle.core.samples import Sample
from rekindle.run.bad_samples import failed_rows
from rekindle.run.job import Job
from rekindle.run.messages import SampleError, Unit
from rekindle.run.sample_loader import Images, LoadRequest, SampleLoader
from rekindle.run.worker_exception import worker_exception


def request_of(unit: Unit) -> LoadRequest:
    """The samples of a unit."""
    ids = unit.indices if unit.ids is None else unit.ids
    return LoadRequest(unit.seed, unit.batch_turn, unit.step, unit.indices, ids, unit.generations, unit.turns)


class UnitLoader:
    """Loads samples for a worker, by its `name` in errors."""

    def __init__(self, job: Job, name: str, samples: SampleLoader) -> None:
        self._job, self._name, self.samples = job, name, samples

    def load(self, unit: Unit, request: LoadRequest, into: Images | None = None) -> list[Sample]:
        """Samples of a unit; see `SampleLoader.load`."""
        return self.samples.load(
            request,
            stop_at_failure=self._job.stop_at_failure or not self._job.batched,
            careful=unit.careful,
            timed=unit.timed,
            into=into,
        )

    def errors(self, samples: list[Sample], unit: Unit) -> tuple[SampleError, ...]:
        """The errors of the samples that failed, by their rows in the batch."""
        return tuple(self.error(samples[row].error, unit, unit.start + row) for row in failed_rows(samples))

    def error(self, error: Exception, unit: Unit, row: int = -1) -> SampleError:
        """The error of a row, or of a whole batch."""
        where = f"in DataLoader {self._name}"
        if row >= 0:
            where += f", at sample {unit.indices[row - unit.start]!r}"
        return SampleError(row, worker_exception(error, where))
