"""What a user says about a Ray cluster: `executor=rekindle.Ray(…)`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.core.given_numbers import integer_of
from rekindle.errors import ArgumentError, MissingPackageError


@dataclass(frozen=True)
class Ray:
    """Prepare samples in actors of a Ray cluster: byte for byte what local workers give.

    Needs `pip install 'rekindle[ray]'`, here and on every node.

    Args:
        address: The cluster, as `ray.init` takes it. None: the one this process is connected to, the one that
            `RAY_ADDRESS` names, or a new one on this machine that ends with this process.
        workers: How many actors there are; `num_workers` is left out, or the same. Actors for which the
            cluster has no room yet start when it has; the others load their share meanwhile.
        cpus: CPUs that each actor takes.
        resources: What else each takes, such as `{"preprocessing": 1}`: only nodes that have it are used.
        runtime_env: Ray's environment for the actors: packages, files, variables.
        name: Loaders with the same name and number of workers share the actors: those of several ranks, say.

    >>> Ray(workers=32, cpus=0.5)
    Ray(address=None, workers=32, cpus=0.5, resources=None, runtime_env=None, name=None)

    """

    address: str | None = None
    workers: int = 16
    cpus: float = 1
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        workers = integer_of(self.workers)
        if workers is None or workers < 1:
            raise ArgumentError(f"Ray(workers={self.workers!r}): give a number of actors, 1 or more.")
        object.__setattr__(self, "workers", workers)
        if not _is_amount(self.cpus):
            raise ArgumentError(f"Ray(cpus={self.cpus!r}): give the CPUs that an actor takes, 0 or more.")
        for name, amount in (self.resources or {}).items():
            if not _is_amount(amount):
                raise ArgumentError(f"Ray(resources={{{name!r}: {amount!r}}}): give an amount, 0 or more.")
        for argument, value in (("address", self.address), ("name", self.name)):
            if not (value is None or (isinstance(value, str) and value)):
                raise ArgumentError(f"Ray({argument}={value!r}): give a text, or None.")

    @property
    def wants(self) -> dict[str, float]:
        """What a node must have for an actor, by Ray's names."""
        return {"CPU": self.cpus, **(self.resources or {})}


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def check_installed() -> None:
    """MissingPackageError if the package is not there."""
    if importlib.util.find_spec("ray") is None:
        raise MissingPackageError("executor=Ray(…) needs the package ray: pip install 'rekindle[ray]'.")
