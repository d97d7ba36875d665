"""A job on its way to a worker process that is not forked, and what is said at once if it cannot arrive."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable

from rekindle.core.analysis.possible_draws import LongContainers
from rekindle.errors import WorkerError
from rekindle.run.caching_loader import sample_loader
from rekindle.run.code_findings import CodeFindings
from rekindle.run.job import Job
from rekindle.run.shared_parts import SharedParts, StandInParts, unpickled
from rekindle.run.worker_info import seed_is_the_scripts

# How a worker ends that, on importing the script, finds itself starting workers.
UNGUARDED = 78

_ADVICE = (
    "Define it at the top of a module that can be imported; or give multiprocessing_context='fork', or "
    "executor='threads', which need not import it."
)


class SentJob:
    """A job for a worker: forked with it, or pickled apart, so that the worker can report what fails.

    What the dataset has of long lists and large arrays is in memory that all workers share.
    """

    def __init__(self, job: Job, *, forks: bool) -> None:
        self._job, self._shared = job, SharedParts(job)
        watched = job.watched if forks and job.reused is None else None
        can_tell = watched is not None and watched.includes(job.dataset, job.collate_fn)
        self._found = sample_loader(job).find() if can_tell else None
        self._long: LongContainers | None = None
        if forks and not can_tell and job.reused is None and job.draws:
            self._long = LongContainers(job.dataset, without=self._shared.list_ids)

    def receive(self) -> Job:
        """The job, in a worker that was forked."""
        self._shared.put_in_place()
        return self._job

    def known(self) -> CodeFindings | None:
        """What was found in the dataset before the fork, if it is proven that it holds in this worker.

        Of that of long containers, which are not looked at here, it is not: see `look_into`.
        """
        if self._long:
            return sample_loader(self._job).find(self._long)
        watched = self._job.watched
        if watched is None or seed_is_the_scripts() or not watched.holds_same_objects():
            return None
        return self._found

    def __reduce__(self) -> tuple[Callable[..., PickledJob], tuple[object, ...]]:
        pickled, stand_ins = self._shared.pickled(self._job)
        return PickledJob, (pickled, _name(self._job.dataset), stand_ins)


class PickledJob:
    """The same as it arrives in a worker that was not forked."""

    def __init__(self, pickled: bytes, dataset: str, stand_ins: list[StandInParts]) -> None:
        self._pickled, self._dataset, self._stand_ins = pickled, dataset, stand_ins

    def known(self) -> CodeFindings | None:
        """Nothing: what was found is about the objects of the main process."""
        return None

    def receive(self) -> Job:
        """The job; WorkerError if something that it consists of cannot be found here."""
        try:
            job: Job = unpickled(self._pickled, self._stand_ins)
        except Exception as error:
            raise WorkerError(
                f"a worker process cannot unpickle the dataset {self._dataset} and what belongs to it: "
                f"{error}. Workers that are not forked import the modules of all classes and functions; what "
                "is defined within `if __name__ == '__main__':`, within a function or in a notebook is not "
                f"there. {_ADVICE}"
            ) from error
        return job


def check_main_can_be_imported(job: Job, start_method: str) -> None:
    """WorkerError if workers would need something from a session or notebook, which they cannot import.

    In a worker that imports the script of the main process and so comes here again, end at once.
    """
    if start_method == "fork":
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or (path is not None and os.path.exists(path)):
        return
    for part in (job.dataset, job.read_from, job.collate_fn, job.worker_init_fn):
        if _module(part) == "__main__":
            raise WorkerError(
                f"{_name(part)} is defined in a notebook or an interactive session, which worker processes "
                f"started by {start_method!r} cannot import. {_ADVICE}"
            )


def unguarded() -> WorkerError:
    """The error for a script that starts workers when it is imported."""
    path = getattr(sys.modules["__main__"], "__file__", "the script")
    return WorkerError(
        f"{path} starts workers when it is imported, and worker processes import it, unless they are forked. "
        "Put what it does under `if __name__ == '__main__':`, so that only classes and functions are outside."
    )


def _module(part: object) -> str | None:
    kind = part if hasattr(part, "__qualname__") else type(part)
    return getattr(kind, "__module__", None)


def _name(part: object) -> str:
    kind = part if hasattr(part, "__qualname__") else type(part)
    return f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', '?')}"
