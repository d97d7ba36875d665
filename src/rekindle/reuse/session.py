"""Reuse in one loader: the dataset in two parts, and the cache in between."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torch.utils.data import IterableDataset

from rekindle.choose import Redundancy
from rekindle.choose.distributed import rank_and_world
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.core.look import Look
from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.prepare.native import as_native, device_steps, follow_changes
from rekindle.reuse import Echo, Refurbish, Store, WorkerView
from rekindle.reuse.accounting import ReuseAccounting
from rekindle.reuse.admission import admit
from rekindle.reuse.cache.host_memory import find_caches
from rekindle.reuse.cache.memory_budget import Memory
from rekindle.reuse.echo_stream import EchoStream
from rekindle.reuse.finished_stream import FinishedStream
from rekindle.reuse.host_cache import host_name, job_of_ranks, kept_generations, open_for_jobs, open_for_ranks
from rekindle.reuse.part_fingerprint import part_fingerprint
from rekindle.reuse.planning import ReusePlanning
from rekindle.reuse.report import ReuseReport
from rekindle.reuse.split_dataset import Split
from rekindle.reuse.split_point import SplitPoint

_LOOK_SECONDS = 0.02  # to find out whether the dataset was changed, as far as can be seen in that time
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the `repr` of a function: another one in every process
_log = logging.getLogger("rekindle")
_WARN_AT = 6  # calls below the user's `iter(loader)`


class ReuseSession:
    """What a loader's workers read: the dataset split in two, with a cache between, or as it is.

    Made with the loader, decided with its first epoch. `planning` and `accounting` do the rest.
    `is_native` says whether the dataset is one of ours, or was translated to one.
    """

    def __init__(
        self,
        dataset: Any,
        reuse: Refurbish | Echo | None,
        final_transform: Callable[[Sample], Sample] | None,
        memory: Memory | None,
        seed: int,
        redundancy: Redundancy | None = None,
    ) -> None:
        self._given, self._reuse, self._seed = dataset, reuse, seed
        self._final_transform, self._memory = final_transform, memory
        self.redundant = None if redundancy is None else DuplicatePolicy(redundancy, len(dataset), seed)
        self._split = SplitPoint(dataset, reuse, final_transform)
        self.dataset = self._split.dataset
        self.is_native = as_native(dataset) is not None
        self.planning = ReusePlanning(self.dataset, reuse, seed, self.redundant)
        self.accounting = ReuseAccounting(self.dataset, reuse, self.planning, self.redundant, seed)
        self.worker_view: WorkerView | None = None
        self._on_device = device_steps(dataset)
        self._looked_like: Look | None = None
        self._changed = ""  # sets apart the disk cache of a dataset that was changed within this run
        self._changes = 0  # of the dataset, within this run
        self._order_seed: int | None = None  # of the order, if it is not the seed of the views
        self._fits = 1.0  # the share of the samples that the cache has room for

    def order_by(self, seed: int | None) -> None:
        """Order samples by a seed of its own, that of a sampler; None: by that of the views."""
        self.planning.follow(self._seed if seed is None else seed)
        self._order_seed = seed

    def prepare(self) -> None:
        """Split the dataset and make the cache, if that is to be done; again if the dataset was changed."""
        follow_changes(self._given, self.dataset)
        if device_steps(self._given) is not self._on_device:
            raise ArgumentError(
                f"the transform of {self._given!r} was changed, whose last steps run on the device. Make "
                "another DataLoader for it."
            )
        nothing_to_do = self._reuse is None and self._final_transform is None
        if nothing_to_do or isinstance(self.dataset, IterableDataset):
            return
        looks_like = Look(self.dataset, self._final_transform, budget=_LOOK_SECONDS, code=False)
        is_another = self._looked_like is not None and not looks_like.finds_same(self._looked_like)
        if self.worker_view is None or is_another:
            self.close()
            if is_another:
                self._split.look()
                self._changed = os.urandom(8).hex()  # What has changed may not be seen in another run.
                self._changes += 1
            self._looked_like = looks_like
            self.worker_view = self._split_and_cache()
        elif not looks_like.is_complete:  # The first part may be a copy of a dataset that was changed since.
            self.worker_view = replace(self.worker_view, split=self._split.split())

    def _split_and_cache(self) -> WorkerView | None:
        reuse, split = self._reuse, self._split
        if reuse is None or self.batch_echo is not None:
            return None if self._final_transform is None else WorkerView(split.split(), None)
        memory = reuse.memory if self._memory is None else self._memory
        if isinstance(reuse, Echo):
            return WorkerView(split.checked_split(), Store(len(self.dataset), memory=memory))
        halves, store = self._open_cache(reuse, memory)
        self._fits = 1.0 if reuse.disk is not None else store.share_admitted
        part_seed = None if reuse.shared is None else reuse.part_seed(self._seed)
        return WorkerView(halves, store, part_seed)

    def _open_cache(self, reuse: Refurbish, memory: Memory) -> tuple[Split, Store]:
        """The dataset in two, and a cache for the first part: this loader's, or one that it shares."""
        split, several = self._split, rank_and_world()[1] > 1
        halves = cache(split.checked_split)  # asked for once it is decided where to split
        if reuse.shared is None or several:
            split.decide(memory, None if reuse.shared is None else partial(self._split_of_jobs, reuse.shared))

        name = "" if reuse.shared is not None else self._name_for_ranks(reuse, halves)
        kept = kept_generations(reuse.factor, ranks=bool(name), jobs=reuse.shared is not None)

        def make(**given: Any) -> Store:
            return Store(
                len(self.dataset),
                memory=memory,
                disk=reuse.disk,
                codec=reuse.codec,
                fingerprint="" if reuse.disk is None else self._fingerprint(reuse, halves()),
                kept=kept,
                **given,
            )

        def begin(store: Store) -> None:
            if reuse.disk is None:
                seed = reuse.part_seed(self._seed)
                admit(store, halves(), seed, self.planning.costs_of(), stacklevel=_WARN_AT + 3)

        def settle(theirs: Mapping[str, str] | None) -> Mapping[str, str]:
            if not several:
                split.decide(memory, lambda: self._possible_split(theirs))
            return self._about(reuse, halves)

        if reuse.shared is None:
            store = open_for_ranks(name, make, begin)
        else:
            store = open_for_jobs(reuse.shared, make, begin, settle)
        return halves(), store

    def _name_for_ranks(self, reuse: Refurbish, halves: Callable[[], Split]) -> str:
        """The name of the cache that the ranks of this host share; empty if there is one, or they cannot."""
        job = job_of_ranks()
        if not job:
            return ""
        about = self._about(reuse, halves)
        if not about["code"]:
            _log.info("Refurbish: ranks share no cache, since it cannot be told what %r is", self._given)
            return ""
        return host_name("ranks", job, self._seed, *about.values(), self._changes)

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
                f"Refurbish(shared={reuse.shared!r}): it cannot be told whether other jobs have the same "
                f"{type(self._given).__name__}, because it cannot be pickled. Give it an attribute "
                "`fingerprint`, a string that changes with its samples."
            )
        return {
            "samples": str(len(self.dataset)),
            "factor": str(float(reuse.factor)),
            "split": str(split.index),
            "steps": _ADDRESS.sub("", ", ".join(map(repr, split.first_steps()))),
            "codec": repr(reuse.codec),
            "files": "" if found is None or reuse.shared is None else found.files.digest(),
            "code": "" if found is None else found.code,
            "disk": "" if reuse.disk is None else os.path.realpath(reuse.disk),
        }

    def _fingerprint(self, reuse: Refurbish, halves: Split) -> str:
        """What a disk cache must have been made with to be of use."""
        found = part_fingerprint(halves, self._split.first_steps())
        if found is None:
            self._changed = self._changed or os.urandom(8).hex()
            warnings.warn(
                f"Refurbish(disk={str(reuse.disk)!r}): {type(self._given).__name__} cannot be pickled, so it "
                "cannot be told whether a later run has the same samples: none will use this cache again. "
                "Give the dataset an attribute `fingerprint`, a string that changes with its samples.",
                stacklevel=_WARN_AT + 3,
            )
        made_of = "" if found is None else f"{found.code} {found.files.digest()}"
        seed = reuse.part_seed(self._seed)
        made_with = f"{len(self.dataset)} {made_of} {seed} {reuse.codec} {self._changed}"
        made_with += " recorded"  # how the parts of samples of a Compose are cached
        return hashlib.blake2b(made_with.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def iterable_view(self) -> Any:
        """An iterable dataset as workers read it."""
        reuse = self._reuse
        if isinstance(reuse, Echo) and reuse.after != "batch":
            afresh = reuse.after != "augment"
            return EchoStream(self.dataset, reuse.factor, reuse.buffer, self._final_transform, afresh)
        if self._final_transform is not None:
            return FinishedStream(self.dataset, self._final_transform)
        return self.dataset

    @property
    def watched(self) -> tuple[object, ...]:
        """What workers get copies of beside the dataset that was given."""
        split = None if self.worker_view is None else self.worker_view.split
        return self.dataset, self._final_transform, split

    @property
    def splits_samples(self) -> bool:
        """Whether workers load samples in two parts."""
        return self._final_transform is not None or not (self._reuse is None or self.batch_echo is not None)

    @property
    def batch_echo(self) -> Echo | None:
        """How whole batches are repeated; None if they are not."""
        echo = self._reuse
        return echo if isinstance(echo, Echo) and echo.after == "batch" else None

    @property
    def keeps_account(self) -> bool:
        """Whether there is anything to count in the batches that are yielded."""
        return self._reuse is not None or self.redundant is not None

    @property
    def store(self) -> Store | None:
        """The cache, if there is one."""
        return None if self.worker_view is None else self.worker_view.store

    def report(self, epochs: int) -> ReuseReport | None:
        """What was saved in so many epochs, and what it cost; None if nothing is reused, or before it is."""
        if self._reuse is None:
            return None
        return self.accounting.report(self._split, self.store, self._fits, epochs)

    def identity(self) -> dict[str, int | str | None]:
        """What a checkpoint must agree with."""
        reuse, shown = self._reuse, "none"
        if isinstance(reuse, Echo):
            shown = f"Echo(factor={reuse.factor}, after={reuse.after!r}, shuffle={reuse.buffer})"
        elif reuse is not None:
            shared = "" if reuse.shared is None else f", shared={reuse.shared!r}"
            shown = f"Refurbish(factor={reuse.factor}, balance={reuse.balance!r}{shared})"
        duplicates = "" if self.redundant is None else self.redundant.identity
        return {"reuse": shown, "split": self._split.index, "redundancy": duplicates}

    @property
    def last_split(self) -> int:
        """The last split point that the dataset has."""
        return self._split.last

    def resume(self, seed: int, split: int | None) -> None:
        """Take over what a checkpoint says."""
        self.close()
        self._seed, self._split.index = seed, split
        self.planning.follow(seed if self._order_seed is None else self._order_seed)
        if self.redundant is not None:
            self.redundant.reseed(seed)

    def close(self) -> None:
        """Let go of the cache in memory."""
        if self.store is not None:
            self.store.close()
        self.worker_view = None
