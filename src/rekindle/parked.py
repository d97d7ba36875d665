"""Workers between two passes over a loader."""

from __future__ import annotations

from typing import Any

from rekindle.run.changes import fingerprint
from rekindle.run.runner import AnyRunner
from rekindle.state import Position


class Parked:
    """A runner between two passes, and what it has begun already.

    The loader's finalizer closes it, so it must not refer to the loader.
    """

    def __init__(self) -> None:
        self._runner: Any = None
        self._started_with: object = None  # what the data set looked like to the workers
        self._ahead: int | None = None  # the epoch whose first batches are being made

    def started(self, runner: AnyRunner, dataset: Any, *, keep: bool) -> None:
        self._started_with = fingerprint(dataset)
        self._ahead = None
        self._runner = runner if keep else None

    def park(self, runner: AnyRunner, ahead: int | None) -> None:
        if self._runner is not None and self._runner is not runner:
            self._runner.close()
        self._runner, self._ahead = runner, ahead

    def take(self, dataset: Any, persistent: bool) -> Any:
        """The parked runner, if there is one and its workers' copies of the data set are good."""
        runner = self._runner
        if runner is None or runner.closed:
            return None
        if persistent:
            return runner
        self._runner = None
        if fingerprint(dataset) != self._started_with:
            runner.close()
            return None
        return runner

    def is_ahead_at(self, position: Position) -> bool:
        """Whether the runner taken last is at work on this position; if so, only once."""
        ahead, self._ahead = self._ahead, None
        return ahead == position.epoch and position.step == 0 and not position.ahead

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner, self._ahead = None, None
