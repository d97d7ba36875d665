"""The connection to a Ray cluster, and what its errors mean here."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

from rekindle.core.available_cores import available_cores
from rekindle.errors import OutOfMemoryError, WorkerError
from rekindle.run.job import Job
from rekindle.run.ray.sent_dataset import SentDataset
from rekindle.run.ray.settings import Ray, check_installed

_ENDED_FROM_OUTSIDE = ("killed by `ray.kill`", "node has died", "node was terminated", "was preempted")


def connect(settings: Ray) -> Any:
    """The module `ray`, connected to the cluster that is meant."""
    check_installed()
    import ray

    if not ray.is_initialized():
        if settings.address is None and "RAY_ADDRESS" not in os.environ:
            _start_here(ray, settings)
        else:
            ray.init(address=settings.address)
    return ray


def _start_here(ray: Any, settings: Ray) -> None:
    """Start a cluster of this machine alone, which ends with this process; it has room for all actors."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=max(available_cores(), math.ceil(settings.workers * settings.cpus)),
        resources={name: amount * settings.workers for name, amount in (settings.resources or {}).items()},
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
    )


def put(ray: Any, job: Job) -> Any:
    """A reference to a job in the object store, from where each node gets it once; its arrays are shared."""
    try:
        return ray.put(SentDataset.of(ray, job))
    except ray.exceptions.ObjectStoreFullError as error:
        raise OutOfMemoryError(
            f"the dataset {_name(job.dataset)} does not fit into Ray's object store: {_first_line(error)}. "
            "Raise object_store_memory of the nodes, or read the data from files that all nodes see "
            "(rekindle.open), of which only the description is sent."
        ) from error
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise WorkerError(
            f"the dataset {_name(job.dataset)}, its collate_fn or worker_init_fn cannot be sent to Ray: "
            f"{_first_line(error)}. Open files and connections in the worker, when the first sample is asked "
            "for, and do not hold locks or generators."
        ) from error


def _name(part: object) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def is_actors_end(ray: Any, error: Exception) -> bool:
    """Whether the actor is gone, or cannot be reached."""
    return isinstance(error, ray.exceptions.RayActorError)


def is_from_outside(error: Exception) -> bool:
    """Whether an actor ended by what somebody did to it or its node, not by what it was loading."""
    return any(words in str(error) for words in _ENDED_FROM_OUTSIDE)


def how_it_ended(error: Exception) -> str:
    """An actor's end, in one line."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    said = next((line for line in lines if line.startswith("The actor is dead")), lines[0] if lines else "")
    return f"a Ray actor of the DataLoader died ({said.split(' Some common causes')[0]})"


def cannot_start(error: Exception) -> WorkerError:
    """The error for an actor that lives, but cannot load anything."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return WorkerError(
        f"a Ray actor of the DataLoader cannot start: {lines[-1] if lines else repr(error)}. What the "
        "dataset is made of must be found on every node: install its modules there, or send them with "
        "Ray(runtime_env={'working_dir': …})."
    )


def check_room(ray: Any, settings: Ray, seconds: float) -> None:
    """WorkerError if no node will ever have room for an actor, a warning if one may have.

    For when not one actor has started for so many seconds.
    """
    wants = settings.wants
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    has = [{name: node.get(name, 0) for name in wants} for node in nodes]
    text = (
        f"no Ray actor has started within {seconds:.0f} seconds: each needs {wants}, and the nodes of the "
        f"cluster have {has}"
    )
    if not any(all(node[name] >= amount for name, amount in wants.items()) for node in has):
        raise WorkerError(f"{text}. Lower Ray(cpus=, resources=), or add nodes.")
    warnings.warn(
        f"{text}, part of which may be in use. Loading goes on when one has.", RuntimeWarning, stacklevel=2
    )


def quietly(ray: Any, action: Callable[..., object], *arguments: object) -> None:
    """Do something to an actor that may be gone, of a cluster that may be."""
    if ray.is_initialized():
        with contextlib.suppress(Exception):  # What is gone needs nothing done to it.
            action(*arguments)
