"""The cache of an actor: one for all actors of its node, which outlives each of them.

The first of them makes it and the others find it, as ranks of one host do (`reuse/host_cache.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from rekindle.core.memfd import MemoryFile
from rekindle.reuse.cache.host_memory import HostCache
from rekindle.reuse.cache.memory_budget import memory_budget
from rekindle.reuse.cache.stats import StoreStats
from rekindle.reuse.cache.store import Store, StoreArguments
from rekindle.reuse.host_cache import host_name, open_for_ranks
from rekindle.run.job import Job

Found: TypeAlias = tuple[MemoryFile, HostCache]


@dataclass(frozen=True)
class CacheRecipe:
    """The cache that actors are to have: those of a node share one, of the memory that the user allows.

    `loader` and `key` name its content: as long as they are the same, it is kept. Where processes cannot find
    each other's memory, each actor has its own, with an equal share of the node's.
    """

    loader: str
    key: int
    arguments: StoreArguments
    actors_per_node: int

    def open(self, node: str) -> tuple[Store, str]:
        """The cache of a node, made or found, and its name; an empty one if it is this actor's own."""
        given, names = self.arguments, [""]

        def make(*, name: str = "", about: dict[str, str] | None = None, join: Found | None = None) -> Store:
            names.append(name)
            return Store(
                given.size,
                memory=given.memory if name else memory_budget(given.memory) // self.actors_per_node,
                disk=given.disk,
                disk_limit=given.disk_limit,
                codec=given.codec,
                fingerprint=given.fingerprint,
                name=name,
                about=about,
                join=join,
            )

        name = host_name("ray", self.loader, self.key, node)
        return open_for_ranks(name, make, begin=lambda store: None), names[-1]


def without_store(job: Job) -> Job:
    """The job as it is sent: a store is memory of this machine."""
    if job.reused is None or job.reused.store is None:
        return job
    return replace(job, reused=replace(job.reused, store=None))


class ActorCache:
    """The cache that an actor has for one loader, from one job of it to the next.

    Attributes:
        name: What the cache is known by that all actors of the node share; empty if it is the actor's own.

    """

    def __init__(self) -> None:
        self.name = ""
        self._store: Store | None = None
        self._key = -1

    def fill_in(self, job: Job, recipe: CacheRecipe | None, node: str) -> Job:
        """The job with a cache, the one that there is if it is meant."""
        if recipe is None or job.reused is None:
            self.close()
            return job
        if self._store is None or self._key != recipe.key:
            self.close()
            self._store, self.name = recipe.open(node)
            self._key = recipe.key
        return replace(job, reused=replace(job.reused, store=self._store))

    @property
    def stats(self) -> StoreStats | None:
        """What the cache holds, and how it was used."""
        return None if self._store is None else self._store.stats

    def close(self) -> None:
        """Let go of the cache."""
        if self._store is not None:
            self._store.close()
        self._store, self.name = None, ""
