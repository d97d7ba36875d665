"""A job on its way to actors: what is large lies in the object store and is shared by the actors of a node.

Small arrays travel within the pickle, so each actor has copies of its own, as a local worker has. A large one
is mapped from the object store, read-only.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import WorkerError
from rekindle.run.job import Job

_LARGE = 1 << 20  # bytes of an array


@dataclass(frozen=True)
class SentDataset:
    """A job as bytes, and the arrays that it refers to."""

    pickled: bytes
    arrays: list[NDArray[np.uint8]]

    @staticmethod
    def of(ray: Any, job: Job) -> SentDataset:
        """The job, ready to be put into the object store."""
        arrays: list[NDArray[np.uint8]] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            content = buffer.raw()
            if content.nbytes >= _LARGE:
                arrays.append(np.frombuffer(content, dtype=np.uint8))
            return content.nbytes < _LARGE

        # By Ray's pickler, which sends classes and functions of the script itself along.
        pickled: bytes = ray.cloudpickle.dumps(job, protocol=5, buffer_callback=is_small)
        return SentDataset(pickled, arrays)

    def job(self) -> Job:
        """The job on an actor's node; WorkerError if something that it consists of is not there."""
        try:
            job: Job = pickle.loads(self.pickled, buffers=self.arrays)
        except Exception as error:
            raise WorkerError(
                f"a Ray actor cannot unpickle the dataset and what belongs to it: {error}. What it is made "
                "of must be found on every node: install its modules there, or send them with "
                "Ray(runtime_env={'working_dir': …})."
            ) from error
        return job
