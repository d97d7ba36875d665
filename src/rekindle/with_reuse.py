"""Reuse in one loader: what was asked for, what was decided, and the cache."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from rekindle import keys
from rekindle.choose import Choice, EpochPlan, Redundancy, Refresh, plan_echo, plan_epoch
from rekindle.choose.echo import echo_plan, length
from rekindle.errors import ArgumentError
from rekindle.global_random import STREAMS
from rekindle.reuse import Echo, Refurbish, Reused, Store
from rekindle.reuse.choice import choose_cut, known_outcomes, parts_that_can_be_made
from rekindle.reuse.codecs import find_codec
from rekindle.reuse.cuts import (
    BEFORE_DECODING,
    Cut,
    Finished,
    ForeignCut,
    NativeCut,
    can_be_cut,
    cut_foreign,
    described,
    not_cuttable,
)
from rekindle.reuse.data_fingerprint import data_fingerprint
from rekindle.reuse.diversity import Diversity, refurbished
from rekindle.reuse.echo_stream import EchoStream
from rekindle.reuse.layers import Layer, find_split, layers_of
from rekindle.reuse.store import memory_budget
from rekindle.run.changes import fingerprint
from rekindle.run.load import generators_kept
from rekindle.run.native import device_steps, for_workers, is_native
from rekindle.run.tickets import Filled, Made
from rekindle.ship import BatchInfo
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
        self.dataset = for_workers(dataset, without_device_steps=True)
        self._final_transform, self._memory = final_transform, memory
        self._native = is_native(self.dataset) and final_transform is None
        self.layers: list[Layer] = layers_of(self.dataset) if final_transform is None else []
        on_device = device_steps(dataset)
        self._last_place = len(self.layers) if on_device is None else on_device.layers_before
        self.place: int | None = None if asked is None else self._place_asked_for(asked)
        self.reused: Reused | None = None
        self._looked_like: object = None
        self._refresh: Refresh | None = None
        self._shared_refresh: Refresh | None = None
        self._costs: NDArray[np.float32] | None = None
        self.share = 1.0  # of the samples that fit the cache
        self._outcomes: list[float] = []
        self._views: Views | None = None

    # Where the cut is.

    def _place_asked_for(self, asked: Refurbish | Echo) -> int | None:
        """The cut, if it was said where it is; None if it is to be measured."""
        if self._final_transform is not None or (isinstance(asked, Echo) and asked.after == "batch"):
            return 0
        cuttable = self._native or can_be_cut(self.dataset)
        if isinstance(asked, Refurbish):
            if not cuttable:
                raise not_cuttable(self.dataset, "reuse=Refurbish(…)")
            return None if asked.split == "auto" else self._found(asked.split)
        if asked.after == "read":
            return BEFORE_DECODING if self._native else 0
        if asked.after == "decode" or not cuttable:
            return 0
        if asked.after == "augment":
            return min(_last_random(self.layers) + 1, self._last_place)
        return self._found(asked.after, after=1)

    def _found(self, step: int | str, after: int = 0) -> int:
        """The cut before this step, or so many steps after it."""
        place = find_split(self.layers, step) + after
        if place > self._last_place:
            raise ArgumentError(
                f"{self.asked!r} would keep what {self.layers[self._last_place]} makes, which is left to the "
                "device. Name a step before it, or open the data set with place='cpu'."
            )
        return place

    def _cut_at(self, place: int) -> Cut:
        if self._final_transform is not None:
            if isinstance(self.asked, Echo) and self.asked.after == "augment":
                return ForeignCut(Finished(self.dataset, self._final_transform), None)
            return ForeignCut(self.dataset, self._final_transform)
        if self._native:
            return NativeCut(self.dataset, place)
        if can_be_cut(self.dataset):
            return cut_foreign(self.dataset, place)
        return ForeignCut(self.dataset, None)

    def _decide(self, memory: Any) -> int:
        assert isinstance(self.asked, Refurbish)
        codec = find_codec(self.asked.codec)
        with generators_kept(STREAMS):
            best = choose_cut(
                self.layers,
                self._cut_at,
                lambda value: codec.pack(value).nbytes,
                self.asked,
                size=len(self.dataset),
                capacity=memory_budget(memory) if self.asked.disk is None else math.inf,
                last=self._last_place,
                seed=self.seed,
            )
        return best.place

    # What workers get.

    def prepare(self) -> None:
        """Cut the data set and make the cache, if that is to be done; anew if the data set was changed."""
        nothing_to_do = self.asked is None and self._final_transform is None
        if nothing_to_do or isinstance(self.dataset, IterableDataset):
            return
        looks_like = fingerprint(self.dataset)
        if self.reused is None or looks_like != self._looked_like:
            self.close()
            self._looked_like = looks_like
            self.reused = self._made()

    def _made(self) -> Reused | None:
        if self.asked is None:
            return Reused(self._cut_at(0), None)
        if isinstance(self.asked, Echo):
            if self.asked.after == "batch":
                return None if self._final_transform is None else Reused(self._cut_at(0), None)
            assert self.place is not None
            memory = self.asked.memory if self._memory is None else self._memory
            return Reused(self._cut_at(self.place), Store(len(self.dataset), memory=memory))
        memory = self.asked.memory if self._memory is None else self._memory
        size = len(self.dataset)
        if self.place is None:
            self.place = self._decide(memory)
        store = Store(
            size,
            memory=memory,
            disk=self.asked.disk,
            codec=self.asked.codec,
            fingerprint=self._fingerprint(),
        )
        cut = self._cut_at(self.place)
        self._admit(store, cut)
        return Reused(cut, store)

    def _fingerprint(self) -> str:
        """What a cache on disk must have been made with to be of use."""
        assert isinstance(self.asked, Refurbish)
        assert self.place is not None
        if self.asked.disk is None:
            return ""
        steps = [repr(layer.step) for layer in self.layers[: self.place]]
        made_with = f"{data_fingerprint(self._given)} {steps} {self.seed} {self.asked.codec}"
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
            factor, buffer = asked.factor, asked.shuffle
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
            factor=asked.factor, buffer=asked.shuffle,
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
        info, order = BatchInfo(ready), ready.order
        ids = info.ids.numpy()
        if self.redundant is not None:
            self.redundant.note(order, ids, self._plain_refresh(), uses)
        if self.asked is None:
            return
        if self._views is None:
            size = 0 if isinstance(self.dataset, IterableDataset) else len(self.dataset)
            self._views = Views(size, self.seed)
        self._views.note(ids, int(info.fresh.sum()), batch)
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
                f"Echo(factor={self.asked.factor}, after={self.asked.after!r}, shuffle={self.asked.shuffle})"
            )
        elif self.asked is not None:
            said = f"Refurbish(factor={self.asked.factor}, balance={self.asked.balance!r})"
        alike = "" if self.redundant is None else self.redundant.identity
        return {"reuse": said, "split": self.place, "redundancy": alike}

    def described_cut(self) -> str:
        """The cut in words."""
        if self._final_transform is not None:
            return "before final_transform"
        return "not decided yet" if self.place is None else described(self.layers, self.place)

    def _known_outcomes(self) -> list[float]:
        """How many distinct outcomes each layer has."""
        if not self._outcomes and self.layers and len(self.dataset):
            with generators_kept(STREAMS):
                self._outcomes = known_outcomes(self.layers, self._cut_at, 0)
        return self._outcomes

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
            cut=self.described_cut(),
            fresh_share=views.fresh_share,
            fits=self.share,
            seconds_saved=saved,
            store=stats,
            expected=self._expected(epochs),
            counted_views=None if counted is None else counted[0],
            watched_views=None if counted is None else counted[1],
        )

    def _expected(self, epochs: int) -> Diversity | None:
        """Distinct views a sample, from the formulas; None if it is not known what steps there are."""
        if self.asked is None or self.place is None or self.place < 0 or not self.layers:
            return None
        outcomes = self._known_outcomes()
        uses = epochs * (self.asked.factor if isinstance(self.asked, Echo) else 1)
        return refurbished(math.prod(outcomes), math.prod(outcomes[self.place :]), self.asked.factor, uses)

    def go_on(self, seed: int, place: int | None) -> None:
        """Take over what a saved state says."""
        self.close()
        self.seed, self.place, self._refresh = seed, place, None
        if self.redundant is not None:
            self.redundant.follow(seed)

    def stream(self) -> Any:
        """An iterable data set as workers read it."""
        asked = self.asked
        if isinstance(asked, Echo) and asked.after != "batch":
            anew = asked.after != "augment"
            return EchoStream(self.dataset, asked.factor, asked.shuffle, self._final_transform, anew)
        if self._final_transform is not None:
            return EchoStream(self.dataset, 1, 0, self._final_transform)
        return self.dataset

    @property
    def store(self) -> Store | None:
        return None if self.reused is None else self.reused.store

    def close(self) -> None:
        """Let go of the cache in memory."""
        if self.reused is not None and self.reused.store is not None:
            self.reused.store.close()
        self.reused = None


def check(reuse: Any, final_transform: Any, order: str, own_batches: bool) -> None:
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
    if isinstance(reuse, Refurbish) and reuse.balance is not None and order in ("sampler", "sequential"):
        how = "shuffle=False" if order == "sequential" else "a sampler"
        warnings.warn(
            f"with {how}, the order is given, so batches cannot be balanced: some have more samples to make "
            "anew than others.",
            stacklevel=4,
        )


def _last_random(layers: list[Layer]) -> int:
    """The last layer that has more than one outcome."""
    for place in range(len(layers) - 1, -1, -1):
        outcomes = layers[place].diversity
        if outcomes is None or outcomes > 1:
            return place
    return len(layers) - 1
