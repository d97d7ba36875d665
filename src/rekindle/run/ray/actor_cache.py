"""The cache of an actor: it keeps the parts of the samples that the actor is the home of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rekindle.reuse.cache.memory_budget import memory_budget
from rekindle.reuse.cache.stats import StoreStats
from rekindle.reuse.cache.store import Store, StoreArguments
from rekindle.run.job import Job


@dataclass(frozen=True)
class CacheRecipe:
    """The cache that an actor is to have. `key` names its content: as long as it is the same, it is kept.

    The memory that the user allows is that of a node, of which each actor takes an equal share.
    """

    key: int
    arguments: StoreArguments
    actors_per_node: int

    def make(self) -> Store:
        """A cache, with nothing in it but what the disk has."""
        given = self.arguments
        return Store(
            given.size,
            memory=memory_budget(given.memory) // self.actors_per_node,
            disk=given.disk,
            disk_limit=given.disk_limit,
            codec=given.codec,
            fingerprint=given.fingerprint,
        )


def without_store(job: Job) -> Job:
    """The job as it is sent: a store is memory of this machine."""
    if job.reused is None or job.reused.store is None:
        return job
    return replace(job, reused=replace(job.reused, store=None))


class ActorCache:
    """The cache that an actor has for one loader, from one job of it to the next."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._key = -1

    def fill_in(self, job: Job, recipe: CacheRecipe | None) -> Job:
        """The job with a cache, the one that there is if it is meant."""
        if recipe is None or job.reused is None:
            self.close()
            return job
        if self._store is None or self._key != recipe.key:
            self.close()
            self._store, self._key = recipe.make(), recipe.key
        return replace(job, reused=replace(job.reused, store=self._store))

    @property
    def stats(self) -> StoreStats | None:
        """What the cache holds, and how it was used."""
        return None if self._store is None else self._store.stats

    def close(self) -> None:
        """Let go of the cache."""
        if self._store is not None:
            self._store.close()
        self._store = None
