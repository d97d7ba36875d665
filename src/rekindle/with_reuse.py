"""Reuse in one loader: what was asked for, what was decided, and the cache."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sized
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from rekindle import keys
from rekindle.choose import Choice, EpochPlan, Redundancy, Refresh, plan_echo, plan_epoch
from rekindle.choose.echo import echo_plan, length
from rekindle.cutting import Cutting
from rekindle.errors import ArgumentError
from rekindle.global_random import STREAMS
from rekindle.reuse import Echo, Refurbish, Reused, Store
from rekindle.reuse.choice import parts_that_can_be_made
from rekindle.reuse.cuts import Cut
from rekindle.reuse.data_fingerprint import data_fingerprint
from rekindle.reuse.echo_stream import EchoStream
from rekindle.run.changes import fingerprint
from rekindle.run.load import generators_kept
from rekindle.run.tickets import Filled, Made
from rekindle.ship import fresh_of, ids_of
from rekindle.tune import ReuseReport, Views
from rekindle.with_redundancy import Redundant

_FIXED_COST = 40_000  # what a sample costs beside its decoding, as bytes of a JPEG that take as long
_LARGEST_OF = 8  # samples, by which it is judged how many fit


class Reuse:
    """What a loader reuses of a map-style data set. Made with the loader, decided with its first pass."""

    def __init__(
        self,
        dataset: Any,
        asked: Refurbish | Echo | None,
        final_transform: Callable[[Any], Any] | None,
        memory: Any,
        seed: int,
        redundancy: Redundancy | None = None,
    ) -> None:
        self._given, self.asked, self.seed = dataset, asked, seed
        self.redundant = None if redundancy is None else Redundant(redundancy, len(dataset), seed)
        self._cutting = Cutting(dataset, asked, final_transform)
        self.dataset = self._cutting.dataset
        self._final_transform, self._memory = final_transform, memory
        self.reused: Reused | None = None
        self._looked_like: object = None
        self._changed = ""  # set apart a cache on disk of a data set that was changed within this run
        self._refresh: Refresh | None = None
        self._shared_refresh: Refresh | None = None
        self._costs: NDArray[np.float32] | None = None
        self.share = 1.0  # of the samples that fit the cache
        self._views: Views | None = None

    # What workers get.

    def prepare(self) -> None:
        """Cut the data set and make the cache, if that is to be done; anew if the data set was changed."""
        nothing_to_do = self.asked is None and self._final_transform is None
        if nothing_to_do or isinstance(self.dataset, IterableDataset):
            return
        looks_like = fingerprint(self.dataset)
        is_another = self._looked_like not in (None, looks_like)
        if self.reused is None or is_another:
            self.close()
            if is_another:
                self._cutting.look()
                self._changed = os.urandom(8).hex()  # What has changed may not be seen in another run.
            self._looked_like = looks_like
            self.reused = self._made()

    def _made(self) -> Reused | None:
        asked, cutting = self.asked, self._cutting
        if asked is None or (isinstance(asked, Echo) and asked.after == "batch"):
            return None if self._final_transform is None else Reused(cutting.cut(), None)
        memory = asked.memory if self._memory is None else self._memory
        if isinstance(asked, Echo):
            cutting.check()
            return Reused(cutting.cut(), Store(len(self.dataset), memory=memory))
        cutting.decide(memory, self.seed)
        cutting.check()
        store = Store(
            len(self.dataset),
            memory=memory,
            disk=asked.disk,
            codec=asked.codec,
            fingerprint="" if asked.disk is None else self._fingerprint(asked),
        )
        cut = cutting.cut()
        self._admit(store, cut)
        return Reused(cut, store)

    def _fingerprint(self, asked: Refurbish) -> str:
        """What a cache on disk must have been made with to be of use."""
        steps = self._cutting.first_steps()
        made_with = f"{data_fingerprint(self._given)} {steps} {self.seed} {asked.codec} {self._changed}"
        return hashlib.blake2b(made_with.encode(), digest_size=16).hexdigest()

    def _admit(self, store: Store, cut: Cut) -> None:
        """If not all samples fit, keep those that cost the most to make."""
        size, self.share = len(self.dataset), 1.0
        capacity = store.stats.capacity
        if not size or capacity is None or self._has_disk():
            return
        some = keys.permutation(size, self.seed, 0)[:_LARGEST_OF].tolist()
        with generators_kept(STREAMS):
            largest = max(map(store.nbytes_of, parts_that_can_be_made(cut, some).values()), default=0)
        fit = capacity // max(largest, 1)
        if fit >= size:
            return
        self.share = fit / size
        # Among equals, by chance: the first ones of a folder are all of one class.
        order = keys.permutation(size, self.seed, 0)
        costs = self.costs()
        if costs is not None:
            order = order[np.argsort(-costs[order], kind="stable")]
        wanted = np.zeros(size, dtype=bool)
        wanted[order[:fit]] = True
        store.admit(wanted)
        if not capacity:  # That was the user's wish.
            return
        warnings.warn(
            f"the cache has room for {fit:,} of {size:,} samples ({self.share:.0%}), {largest:,} bytes each: "
            "those that take the longest are kept. Give it more memory, a folder on disk, or a codec.",
            stacklevel=6,
        )

    def _has_disk(self) -> bool:
        return isinstance(self.asked, Refurbish) and self.asked.disk is not None

    # Plans.

    def plan_of(
        self, choice: Choice | None, *, shuffle: bool, batch_size: int, drop_last: bool
    ) -> Callable[[int], EpochPlan]:
        """What plans an epoch: of all samples, or of those that were chosen."""
        plan: Callable[..., EpochPlan] = plan_epoch if choice is None else choice.laid_out
        redundant = self.redundant
        if choice is None and redundant is not None:
            plan = lambda **layout: redundant.choice(layout["epoch"]).laid_out(**layout)  # noqa: E731
        dataset: Any = self.dataset  # Plans outlive a pass, and must not keep the loader alive.
        basic: dict[str, Any] = {
            "seed": self.seed, "shuffle": shuffle, "batch_size": batch_size, "drop_last": drop_last
        }  # fmt: skip
        asked = self.asked
        if isinstance(asked, Echo) and asked.after != "batch":
            factor, buffer = asked.factor, asked.buffer
            return lambda epoch: plan_echo(
                size=len(dataset), epoch=epoch, factor=factor, buffer=buffer, **basic
            )
        if not isinstance(asked, Refurbish):
            return lambda epoch: plan(size=len(dataset), epoch=epoch, **basic)
        balance = asked.balance is not None
        costs = self.costs() if asked.balance == "cost" else None
        return lambda epoch: plan(
            size=len(dataset), epoch=epoch, refresh=self.refresh(), balance=balance, costs=costs, **basic
        )

    def plan_of_sampler(
        self, epoch: int, batch_size: int, drop_last: bool
    ) -> Callable[[NDArray[np.int64]], EpochPlan] | None:
        """What plans an epoch of a user's own sampler; None if it is followed as it is."""
        asked = self.asked
        if not isinstance(asked, Echo):
            return None
        return partial(
            echo_plan, epoch=epoch, seed=self.seed, batch_size=batch_size, drop_last=drop_last,
            factor=asked.factor, buffer=asked.buffer,
        )  # fmt: skip

    def refresh(self) -> Refresh | None:
        """When samples are made anew; those that stand in for each other, together."""
        plain = self._plain_refresh()
        if plain is None or self.redundant is None:
            return plain
        if self._shared_refresh is None:
            self._shared_refresh = self.redundant.refresh(plain)
        return self._shared_refresh

    def _plain_refresh(self) -> Refresh | None:
        if not isinstance(self.asked, Refurbish):
            return None
        size = len(self.dataset)
        if self._refresh is None or self._refresh.size != size:
            self._refresh, self._shared_refresh = Refresh(size, self.asked.factor, self.seed), None
        return self._refresh

    def costs(self) -> NDArray[np.float32] | None:
        """What each sample is predicted to cost, from the length of its file; None if that is not known."""
        if self._costs is None or len(self._costs) != len(self.dataset):
            lengths = getattr(self.dataset, "encoded_lengths", lambda: None)()
            self._costs = None if lengths is None else (lengths + _FIXED_COST).astype(np.float32)
        return self._costs

    def note(self, ready: Filled | Made, batch: Any, uses: NDArray[np.int64] | None) -> None:
        """Keep account of a batch that is handed over, and let go of what was used for the last time.

        `uses` are the samples' own, where a method chooses.
        """
        ids, order = ids_of(ready), ready.order
        if self.redundant is not None:
            self.redundant.note(order, ids, self._plain_refresh(), uses)
        if self.asked is None:
            return
        if self._views is None:
            size = 0 if isinstance(self.dataset, IterableDataset) else len(self.dataset)
            self._views = Views(size, self.seed)
        self._views.note(ids, int(np.count_nonzero(fresh_of(ready))), batch)
        if order.plan is not None and order.plan.last_uses is not None and self.store is not None:
            ended = order.plan.last_uses[order.plan.rows(order.step)]
            self.store.drop(order.ids[ended], before=order.epoch + 1)
        if self.redundant is not None and not self.redundant.removes and self.store is not None:
            self.store.drop(self.redundant.used_up(order), before=order.epoch)

    def steps(self, plain: int, size: int, batch_size: int, drop_last: bool) -> int:
        """How many batches an epoch has, that has `plain` without reuse."""
        if self.redundant is not None:
            return self.redundant.steps(batch_size, drop_last)
        if not isinstance(self.asked, Echo):
            return plain
        if self.asked.after == "batch":
            return length(plain, self.asked.factor)
        full, rest = divmod(length(size, self.asked.factor), batch_size)
        return full + (rest > 0 and not drop_last)

    # State and report.

    def identity(self) -> dict[str, Any]:
        """What a state must agree with."""
        said = "none"
        if isinstance(self.asked, Echo):
            said = (
                f"Echo(factor={self.asked.factor}, after={self.asked.after!r}, shuffle={self.asked.buffer})"
            )
        elif self.asked is not None:
            said = f"Refurbish(factor={self.asked.factor}, balance={self.asked.balance!r})"
        alike = "" if self.redundant is None else self.redundant.identity
        return {"reuse": said, "split": self._cutting.place, "redundancy": alike}

    def report(self, epochs: int) -> ReuseReport | None:
        """What was saved, and what it cost in diversity, in so many epochs; None before the first batch."""
        if self._views is None:
            return None
        views = self._views
        stats = None if self.store is None else self.store.stats
        saved = 0.0
        if stats is not None and stats.misses:
            saved = stats.hits * stats.seconds / stats.misses
        counted = views.counted()
        return ReuseReport(
            cure=repr(self.asked),
            cut=self._cutting.described(),
            fresh_share=views.fresh_share,
            fits=self.share,
            seconds_saved=saved,
            store=stats,
            expected=self._cutting.expected(epochs),
            counted_views=None if counted is None else counted[0],
            watched_views=None if counted is None else counted[1],
        )

    def go_on(self, seed: int, place: int | None) -> None:
        """Take over what a saved state says."""
        self.close()
        self.seed, self._cutting.place, self._refresh = seed, place, None
        if self.redundant is not None:
            self.redundant.follow(seed)

    def stream(self) -> Any:
        """An iterable data set as workers read it."""
        asked = self.asked
        if isinstance(asked, Echo) and asked.after != "batch":
            anew = asked.after != "augment"
            return EchoStream(self.dataset, asked.factor, asked.buffer, self._final_transform, anew)
        if self._final_transform is not None:
            return EchoStream(self.dataset, 1, 0, self._final_transform)
        return self.dataset

    @property
    def repeats_batches(self) -> bool:
        """Whether whole batches come again: what repeats them counts them, so they must be made in order."""
        return isinstance(self.asked, Echo) and self.asked.after == "batch"

    @property
    def store(self) -> Store | None:
        return None if self.reused is None else self.reused.store

    def close(self) -> None:
        """Let go of the cache in memory."""
        if self.reused is not None and self.reused.store is not None:
            self.reused.store.close()
        self.reused = None


def check(reuse: Any, final_transform: Any, order: str, sampler: Any, own_batches: bool) -> None:
    """Find arguments that cannot work before anything starts."""
    if reuse is not None and not isinstance(reuse, Refurbish | Echo):
        raise ArgumentError(f"reuse is {reuse!r}. Give rk.Refurbish(…), rk.Echo(…) or None.")
    if final_transform is not None and not callable(final_transform):
        raise ArgumentError(f"final_transform is {final_transform!r}. Give a function of a sample, or None.")
    if isinstance(reuse, Refurbish) and order == "stream":
        raise ArgumentError(
            "reuse=Refurbish(…) needs samples that can be asked for by index; an IterableDataset has none. "
            "Use rk.Echo(…), which repeats what it gives."
        )
    if isinstance(reuse, Echo) and order == "sampler" and (reuse.after == "batch" or own_batches):
        raise ArgumentError(
            f"reuse={reuse!r} does not go with a batch_sampler, nor with a sampler or a generator if whole "
            'batches are repeated. Repeat samples (after="augment") that a sampler= gives, or use '
            "shuffle=True and seed=."
        )
    if isinstance(reuse, Echo) and order == "sampler" and not isinstance(sampler, Sized):
        raise ArgumentError(
            f"reuse=Echo(…) plans a whole epoch, but {type(sampler).__name__} has no length, so it may never "
            "end. Give the sampler a __len__."
        )
    if isinstance(reuse, Refurbish) and reuse.balance is not None and order in ("sampler", "sequential"):
        how = "shuffle=False" if order == "sequential" else "a sampler"
        warnings.warn(
            f"with {how}, the order is given, so batches cannot be balanced: some have more samples to make "
            "anew than others.",
            stacklevel=4,
        )
