"""Which loaders of this host share a cache: the ranks of one job, and jobs that ask for it by a name.

The first of them makes the cache, the others find it (see `cache/host_memory.py`); it lives as long as one of
them does. Ranks share if all that their parts depend on is the same: it is in the name of their cache, so one
that differs finds none. Jobs that were given the same name must agree, and are told what differs.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from rekindle.core.host_lock import host_lock
from rekindle.core.memfd import CAN_BE_FOUND, MemoryFile
from rekindle.errors import ArgumentError
from rekindle.reuse.cache.host_memory import HostCache, find_caches
from rekindle.reuse.cache.kept_generations import KeptGenerations
from rekindle.reuse.cache.store import Store

_FOR_JOBS, _FOR_RANKS = 4, 2  # generations of a sample
_LONGEST = 120  # characters of what is shown of a difference
_IN_WORDS = {
    "code": "the dataset, its code or what that reads (a checksum)",
    "files": "the dataset's files (a checksum of names, sizes and times)",
}
_log = logging.getLogger("rekindle")


class MakeStore(Protocol):
    """Makes a store, found by others under a `name`; or joins one that was found."""

    def __call__(
        self,
        *,
        name: str = "",
        about: dict[str, str] | None = None,
        join: tuple[MemoryFile, HostCache] | None = None,
    ) -> Store: ...


def job_of_ranks(world: int) -> str:
    """What the ranks of a job have in common and no other job has; empty if there is one rank.

    `world` is how many torch.distributed knows of.
    """
    given = os.environ.get("WORLD_SIZE", "")
    world = max(world, int(given) if given.isdecimal() else 1)
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    address, port, run = (os.environ.get(name, "") for name in names)
    return f"{address} {port} {run}" if world > 1 and address and port else ""


def kept_generations(factor: float, *, ranks: bool, jobs: bool) -> KeptGenerations:
    """How many generations of a sample are kept: several, where loaders may be in different epochs."""
    ways = _FOR_JOBS if jobs else _FOR_RANKS if ranks else 1
    return KeptGenerations(ways, math.ceil(factor)) if ways > 1 else KeptGenerations()


def host_name(kind: str, *parts: object) -> str:
    """A name for a cache: equal if all the parts are."""
    text = repr((kind, *map(str, parts))).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def open_for_ranks(name: str, make: MakeStore, begin: Callable[[Store], None]) -> Store:
    """The cache of this name: joined, or made and begun. A private one, if `name` is empty."""
    if not name or not CAN_BE_FOUND:
        store = make()
        begin(store)
        return store
    with host_lock(name) as held:
        for found in find_caches(name) if held else ():
            with suppress(ValueError, ArgumentError):
                store = make(name=name, join=found)
                _log.info("Refurbish: shares the cache of process %d", found[0].pid)
                return store
        store = make(name=name if held else "")
        begin(store)
        return store


def open_for_jobs(
    shared: str,
    make: MakeStore,
    begin: Callable[[Store], None],
    settle: Callable[[Mapping[str, str] | None], Mapping[str, str]],
) -> Store:
    """The cache that jobs share under a name, joined or made; ArgumentError if they differ.

    `settle` gets what the values of a cache that was found depend on, or None, follows it where it is free to
    (the split), and returns what the values depend on here.
    """
    name = host_name("jobs", shared)
    with host_lock(name) as held:
        if not held or not CAN_BE_FOUND:
            warnings.warn(
                f"Refurbish: shared={shared!r} is not shared: this system has no means to, or a process of "
                "another user keeps it from being found. This job prepares all samples itself.",
                RuntimeWarning,
                stacklevel=2,
            )
            settle(None)
            store = make()
            begin(store)
            return store
        for found in find_caches(name):
            theirs = found[1].about
            _check_same(shared, found[0].pid, theirs, _shown(settle(theirs)))
            with suppress(ValueError):
                return make(name=name, join=found)
        store = make(name=name, about=_shown(settle(None)))
        begin(store)
        return store


def _shown(about: Mapping[str, str]) -> dict[str, str]:
    return {key: ascii(text)[1:-1][:_LONGEST] for key, text in about.items()}


def _check_same(shared: str, pid: int, theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """ArgumentError that says what differs."""
    differing = [
        f"{_IN_WORDS.get(key, key)}: {theirs.get(key, 'nothing')} there, {text} here"
        for key, text in ours.items()
        if theirs.get(key) != text
    ]
    if differing:
        raise ArgumentError(
            f"Refurbish(shared={shared!r}): process {pid} uses this name for something else "
            f"({'; '.join(differing)}). Jobs can share a cache if dataset, steps, split, factor and codec "
            "are the same: give this one another name."
        )
