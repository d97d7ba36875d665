"""Opens the cache between the two parts of a dataset: this loader's own, or one that it shares."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from rekindle.choose.distributed import rank_and_world
from rekindle.choose.refurbish_sequence import CostsOf
from rekindle.errors import ArgumentError
from rekindle.reuse import Refurbish, Store
from rekindle.reuse.admission import admit
from rekindle.reuse.cache.host_memory import find_caches
from rekindle.reuse.host_cache import host_name, job_of_ranks, kept_generations, open_for_jobs, open_for_ranks
from rekindle.reuse.part_fingerprint import part_fingerprint
from rekindle.reuse.split_dataset import Split
from rekindle.reuse.split_point import SplitPoint

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the `repr` of a function: another one in every process
_log = logging.getLogger("rekindle")
_WARN_AT = 6  # calls below the user's `iter(loader)`


class CacheOpener:
    """Opens caches for the first part of one dataset, again if it was changed.

    `given` is the user's dataset, `find_costs` gives what says how long the parts of samples take.
    """

    def __init__(self, given: object, split: SplitPoint, find_costs: Callable[[int], CostsOf | None]) -> None:
        self._given, self._split, self._find_costs = given, split, find_costs
        self._changed = ""  # sets apart the disk cache of a dataset that was changed within this run
        self._changes = 0  # of the dataset, within this run

    def note_change(self) -> None:
        """The dataset was changed: what has changed may not be seen in another run."""
        self._changed = os.urandom(8).hex()
        self._changes += 1

    def open(self, reuse: Refurbish, seed: int) -> tuple[Split, Store]:
        """The dataset in two, and a cache for the first part: this loader's, or one that it shares."""
        split, world = self._split, rank_and_world()[1]
        several = world > 1
        halves = cache(split.checked_split)  # asked for once it is decided where to split
        if reuse.shared is None or several:
            split.decide(
                reuse.memory, None if reuse.shared is None else partial(self._split_of_jobs, reuse.shared)
            )

        job = "" if reuse.shared is not None else job_of_ranks(world)
        name = self._name_for_ranks(job, reuse, halves, seed) if job else ""
        kept = kept_generations(reuse.factor, ranks=bool(name), jobs=reuse.shared is not None)

        def make(**given: Any) -> Store:
            return Store(
                len(self._split.dataset),
                memory=reuse.memory,
                disk=reuse.disk,
                codec=reuse.codec,
                fingerprint="" if reuse.disk is None else self._fingerprint(reuse, halves(), seed),
                kept=kept,
                **given,
            )

        def begin(store: Store) -> None:
            if reuse.disk is None:
                admit(store, halves(), reuse.part_seed(seed), self._find_costs, stacklevel=_WARN_AT + 3)

        def settle(theirs: Mapping[str, str] | None) -> Mapping[str, str]:
            if not several:
                split.decide(reuse.memory, lambda: self._possible_split(theirs))
            return self._about(reuse, halves)

        if reuse.shared is None:
            store = open_for_ranks(name, make, begin)
        else:
            store = open_for_jobs(reuse.shared, make, begin, settle)
        return halves(), store

    def _name_for_ranks(self, job: str, reuse: Refurbish, halves: Callable[[], Split], seed: int) -> str:
        """The name of the cache that the ranks of a job share on this host; empty if they cannot."""
        about = self._about(reuse, halves)
        if not about["code"]:
            _log.info("Refurbish: ranks share no cache, since nothing identifies %r", self._given)
            return ""
        return host_name("ranks", job, seed, *about.values(), self._changes)

    def _split_of_jobs(self, shared: str) -> int | None:
        """Where the jobs split that use this name now; None if there are none."""
        found = next(find_caches(host_name("jobs", shared)), None)
        return self._possible_split(None if found is None else found[1].about)

    def _possible_split(self, about: Mapping[str, str] | None) -> int | None:
        text = "" if about is None else about.get("split", "")
        return int(text) if text.isdecimal() and int(text) <= self._split.last else None

    def _about(self, reuse: Refurbish, halves: Callable[[], Split]) -> dict[str, str]:
        """What cached parts depend on beside the seed: equal for loaders that may share them."""
        split = self._split
        found = part_fingerprint(halves(), split.first_steps())
        if found is None and reuse.shared is not None:
            raise ArgumentError(
                f"Refurbish(shared={reuse.shared!r}): {type(self._given).__name__} cannot be pickled, "
                "so nothing shows whether other jobs have the same samples. Give the dataset an attribute "
                "`fingerprint`, a string that changes with its samples."
            )
        return {
            "samples": str(len(self._split.dataset)),
            "factor": str(float(reuse.factor)),
            "split": str(split.index),
            "steps": _ADDRESS.sub("", ", ".join(map(repr, split.first_steps()))),
            "codec": repr(reuse.codec),
            "files": "" if found is None or reuse.shared is None else found.files.digest(),
            "code": "" if found is None else found.code,
            "disk": "" if reuse.disk is None else os.path.realpath(reuse.disk),
        }

    def _fingerprint(self, reuse: Refurbish, halves: Split, seed: int) -> str:
        """What a disk cache must have been made with to be of use."""
        found = part_fingerprint(halves, self._split.first_steps())
        if found is None:
            self._changed = self._changed or os.urandom(8).hex()
            warnings.warn(
                f"Refurbish(disk={str(reuse.disk)!r}): {type(self._given).__name__} cannot be pickled, so "
                "nothing shows whether a later run has the same samples: none will use this cache again. "
                "Give the dataset an attribute `fingerprint`, a string that changes with its samples.",
                stacklevel=_WARN_AT + 3,
            )
        made_of = "" if found is None else f"{found.code} {found.files.digest()}"
        made_with = (
            f"{len(self._split.dataset)} {made_of} {reuse.part_seed(seed)} {reuse.codec} {self._changed}"
        )
        made_with += " recorded"  # how the parts of samples of a Compose are cached
        return hashlib.blake2b(made_with.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
