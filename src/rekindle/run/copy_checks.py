"""Asks workers, between two epochs, whether loading has changed their own copies of the dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rekindle.run.messages import CheckCopy
from rekindle.run.worker_pool import WorkerPool

_WAIT = 0.5  # seconds, before dead workers are looked for


class CopyChecks:
    """What workers have answered. `receive` handles messages, after waiting for them so many seconds."""

    def __init__(self, pool: WorkerPool, receive: Callable[[float], None]) -> None:
        self._pool, self._receive = pool, receive
        self._epoch = -1  # before which they are to check
        # By worker and epoch: where epochs are short, one that is not even asked about may be begun already.
        self._answers: dict[tuple[int, int], bool] = {}

    def ask(self, epoch: int) -> None:
        """Have all workers check before this epoch.

        One that is at work on it has answered before its first sample; the others do so at once.
        """
        self._epoch = epoch
        self._answers = {key: answer for key, answer in self._answers.items() if key[1] >= epoch}
        self._pool.send(dict.fromkeys(range(self._pool.size), (CheckCopy(epoch),)))

    def note(self, worker: int, epoch: int, unchanged: bool) -> None:
        """Note a worker's answer."""
        self._answers[worker, epoch] = unchanged

    def renewed(self, workers: Iterable[int]) -> None:
        """Note that workers died: their replacements have a new copy."""
        self._answers |= {(worker, self._epoch): True for worker in workers}

    def are_unchanged(self) -> bool:
        """Whether it is proven that no worker has changed its copy; waits for the answers."""
        while True:
            answers = [answer for (_, epoch), answer in self._answers.items() if epoch == self._epoch]
            if not all(answers) or len(answers) == self._pool.size:
                return all(answers)
            self._receive(_WAIT)
