"""Workers between two epochs of a loader."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from rekindle.choose.position import Position
from rekindle.core.analysis.changes import Watched
from rekindle.core.interrupts import is_interrupt
from rekindle.run.runner import Runner

_LOGGER = logging.getLogger(__name__)


class IdleRunner:
    """A runner between two epochs, and what it has begun already.

    Unless they are to persist, workers are kept only if it is proven that nothing was changed that they have
    copies of: neither by the script, nor in a copy by the worker that has it. The loader's finalizer closes
    it, so it must not refer to the loader.
    """

    def __init__(self) -> None:
        self.runner: Runner | None = None
        # What is said here is of the workers that were started last, but for those beside another pass.
        self.newest: Callable[[], Runner | None] = (
            _no_runner  # gives the runner that may be kept, while there is one
        )
        self._watched: Watched | None = None  # what the workers have copies of, as it was when they got them
        self.can_keep = False  # workers that are not to persist
        # Whether batches loaded before an epoch starts are those that would be loaded then. Not if something
        # may change that no look sees: memory shared with the script, or a file.
        self.can_load_ahead = False
        self._is_worth_watching = True
        self._ahead: int | None = None  # the epoch whose first batches are being loaded

    def watch(
        self, roots: tuple[object, ...] | None, *, forks: bool, reads_on: Callable[[], bool]
    ) -> Watched | None:
        """Look at what new workers are about to get copies of; None if nothing could ever be proven of it.

        `reads_on` says whether records would be missing in one epoch that are loaded ahead for the next.
        """
        self._watched = None
        if self._is_worth_watching and roots is not None:
            watched = Watched(*roots, forks=forks)
            self._is_worth_watching = not watched.why_unproven
            if self._is_worth_watching:
                self._watched = watched
            else:
                _LOGGER.debug("workers start afresh for every epoch: %s", watched.why_unproven)
        self.can_keep = self._watched is not None
        is_fixed = self._watched is not None and not self._watched.may_change_meanwhile
        self.can_load_ahead = is_fixed and not reads_on()
        return self._watched

    def started(self, runner: Runner, *, keep: bool) -> None:
        """Note a runner that was started; `keep` it, whatever becomes of its epoch."""
        self._ahead = None
        self.runner = runner if keep else None
        self.newest = weakref.ref(runner)

    def keep(self, runner: Runner, epoch: int, *, is_ahead: bool) -> None:
        """Keep a runner for `epoch`, the one before being over; it may be at work on its batches already."""
        if self.runner is not None and self.runner is not runner:
            self.runner.close()
        self.runner, self._ahead = runner, epoch if is_ahead else None
        if runner.copies is not None:
            runner.copies.ask(epoch)

    def take(
        self, roots: tuple[object, ...], *, persistent: bool, copies: bool, reads_on: Callable[[], bool]
    ) -> Runner | None:
        """The idle runner, if there is one and its workers' copies are what they would get now.

        Those that persist keep the copies that they got at first. Threads have none (`copies`): what they
        have loaded ahead is thrown away if something was changed since.
        """
        runner = self.runner
        if runner is None or runner.closed:
            return None
        if persistent:
            if not copies and self._ahead is not None and not self._is_unchanged(roots):
                self._ahead = None
                self.watch(roots, forks=False, reads_on=reads_on)
            return runner
        self.runner = None
        if self._is_unchanged(roots):
            try:
                if runner.copies is None or runner.copies.are_unchanged():
                    return runner
                self._is_worth_watching = False  # Workers change their copies, and will again.
            except Exception as error:  # It concerns batches that nobody has asked for yet.
                if is_interrupt(error):
                    runner.close()
                    raise
                _LOGGER.debug("workers start afresh: %s", error)
        runner.close()
        return None

    def _is_unchanged(self, roots: tuple[object, ...]) -> bool:
        return self._watched is not None and self._watched.is_unchanged(*roots)

    def is_ahead_at(self, position: Position) -> bool:
        """Whether the runner taken last is at work on this position; if so, only once."""
        ahead, self._ahead = self._ahead, None
        return ahead == position.epoch and position.step == 0 and not position.ahead

    def close(self) -> None:
        """End the workers."""
        if self.runner is not None:
            self.runner.close()
        self.leave()

    def leave(self) -> None:
        """Leave the workers to the pass that has them, and that ends them."""
        self.runner, self._ahead, self.newest = None, None, _no_runner


def _no_runner() -> Runner | None:
    return None
