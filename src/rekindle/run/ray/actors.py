"""The actors of a loader: started once, used by one epoch's pool after the other, ended with the loader."""

from __future__ import annotations

import os
import uuid
from typing import Any

from rekindle.reuse.cache.store import Store
from rekindle.run.ray import cluster
from rekindle.run.ray.actor import LoadingActor, installed_version
from rekindle.run.ray.actor_cache import CacheRecipe
from rekindle.run.ray.settings import Ray

_NAMESPACE = "rekindle"


def actors_of(executor: object) -> Actors | None:
    """The actors for an executor, none of them started yet; None if it is not Ray."""
    return Actors(executor) if isinstance(executor, Ray) else None


class Actors:
    """The actors, by number, as far as they are started; `loader` is what they know this loader by."""

    def __init__(self, settings: Ray) -> None:
        self.settings = settings
        self.loader = uuid.uuid4().hex
        self._handles: dict[int, Any] = {}
        self._owner = os.getpid()
        self._pids: dict[int, int] = {}
        self._store: Store | None = None  # that actors have the like of
        self._stores = 0

    @property
    def ray(self) -> Any:
        """Ray's module, connected."""
        return cluster.connect(self.settings)

    def handle(self, number: int, node: str | None = None) -> Any:
        """The actor of a number; a new one if there is none, on that node if it has room."""
        found = self._handles.get(number)
        if found is None:
            found = self._handles[number] = self._create(number, node)
        return found

    def _create(self, number: int, node: str | None) -> Any:
        ray, settings = self.ray, self.settings
        # Said always: within Ray Train, the default would be the trainer's own resources, which are in use.
        strategy: object = "SPREAD"
        if node is not None:
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        options: dict[str, Any] = {
            "num_cpus": settings.cpus,
            "resources": dict(settings.resources or {}),
            "runtime_env": None if settings.runtime_env is None else dict(settings.runtime_env),
            "scheduling_strategy": strategy,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if settings.name is not None:
            name = f"{settings.name}-{number}-of-{settings.workers}"
            options |= {"name": name, "namespace": _NAMESPACE, "get_if_exists": True}
        return ray.remote(LoadingActor).options(**options).remote(number, installed_version())

    def cache_recipe(self, store: Store | None) -> CacheRecipe | None:
        """The cache that each node is to have in the place of a store; the same for the same store."""
        if store is None:
            return None
        if store is not self._store:
            self._store, self._stores = store, self._stores + 1
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        each = -(-self.settings.workers // max(nodes, 1))
        return CacheRecipe(self.loader, self._stores, store.arguments, each)

    def started(self, number: int, pid: int) -> None:
        """Note the process of an actor that is up."""
        self._pids[number] = pid

    def pids(self) -> list[int]:
        """The processes of the actors that are up, each on its own node."""
        return list(self._pids.values())

    def drop(self, number: int, *, kill: bool = False) -> None:
        """Forget an actor that is gone; `kill` it if it may not be."""
        found = self._handles.pop(number, None)
        self._pids.pop(number, None)
        if found is not None and kill:
            cluster.quietly(self.ray, self.ray.kill, found)

    def close(self) -> None:
        """End the actors, or leave those that are shared to the others."""
        handles, self._handles, self._store = self._handles, {}, None
        self._pids.clear()
        if not handles or os.getpid() != self._owner:  # A forked child: the actors are not its own.
            return
        import ray

        for handle in handles.values():
            if self.settings.name is None:
                cluster.quietly(ray, ray.kill, handle)
            else:
                cluster.quietly(ray, handle.stop.remote, self.loader)
