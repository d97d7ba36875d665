"""What a worker does, be it a process or a thread: take a unit, load it into its slot, report it as done."""

from __future__ import annotations

from collections.abc import Callable

from rekindle.core.interrupts import dataset_call, running_timers
from rekindle.run.batch_units import BatchUnits, StreamUnits
from rekindle.run.dataset_copies import DatasetCopy
from rekindle.run.job import Job
from rekindle.run.messages import CopyChecked, Kind, StartStream, Unit
from rekindle.run.row_units import RowUnits
from rekindle.run.sample_loader import SampleLoader
from rekindle.run.unit_gate import UnitGate
from rekindle.run.unit_loader import UnitLoader
from rekindle.run.unit_queue import CancelledError, UnitQueue
from rekindle.run.worker_pool import Channel


class Worker:
    """One worker; `serve` runs until the engine closes the connection.

    `name` is what errors call it, such as "worker process 0". `gate` is shared with the other workers of its
    process, if there are any, and `number` is its number there.
    `uses_worker_id` says whether the dataset has read the worker's id so far. `seed_worker` seeds the worker
    as torch seeds one that starts; `worker_seed` is what it was seeded with last.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        channel: Channel,
        loader: SampleLoader,
        uses_worker_id: Callable[[], bool] = lambda: False,
        seed_worker: Callable[[int], None] = lambda _: None,
        worker_seed: int = 0,
        gate: UnitGate | None = None,
        number: int = 0,
    ) -> None:
        self._gate, self._number = gate, number
        self._watched, self._channel = job.watched, channel
        self._epoch: int | None = None  # of the last unit
        self._checked: dict[int, CopyChecked] = {}  # by epoch
        self._seed_worker, self._worker_seed = seed_worker, worker_seed
        self._loader = UnitLoader(job, name, loader)
        copy = DatasetCopy(job.read_from if job.takes_states else None)
        self._queue = UnitQueue(
            channel, loader, self._start_stream, copy.load, self._check_copy, job.will_need
        )
        self._streams = StreamUnits(job, self._queue, self._loader, seed_worker)
        self._run: dict[Kind, Callable[[Unit], None]] = {
            "rows": RowUnits(job, self._queue, self._loader, uses_worker_id).run,
            "batch": BatchUnits(job, self._queue, self._loader, copy).run,
            "stream": self._streams.run,
        }

    def _start_stream(self, message: StartStream) -> None:
        self._worker_seed = message.base_seed
        self._streams.start(message)

    def _check_copy(self, epoch: int) -> None:
        """Tell the engine, before the first sample of an epoch, whether earlier ones changed the dataset.

        For then this worker is not what one would be that starts now. The engine will start others.
        """
        if self._watched is None:
            return
        if epoch not in self._checked:
            self._checked = {one: checked for one, checked in self._checked.items() if one >= epoch}
            self._checked[epoch] = CopyChecked(epoch, self._watched.is_unchanged())
        self._channel.send(self._checked[epoch])

    def serve(self) -> None:
        """Carry out units until there are no more."""
        queue = self._queue
        while (unit := queue.next()) is not None:
            if queue.is_cancelled(unit):
                queue.done(unit)
                continue
            if unit.epoch != self._epoch:
                if self._epoch is not None:
                    self._check_copy(unit.epoch)
                self._epoch = unit.epoch
            if unit.worker_seed != self._worker_seed:  # A new epoch, for which torch would start new workers.
                self._worker_seed = unit.worker_seed
                self._seed_worker(unit.worker_seed)
            if self._gate is None:
                self._carry_out(unit)
                continue
            self._gate.enter(self._number, unit.careful)
            self._carry_out(unit)
            self._gate.leave(self._number, unit.careful)

    def _carry_out(self, unit: Unit) -> None:
        dataset_call.script_timers = running_timers()
        try:
            self._run[unit.kind](unit)
        except CancelledError:
            self._queue.done(unit)
        except Exception as error:
            self._queue.done(unit, errors=(self._loader.error(error, unit),))
