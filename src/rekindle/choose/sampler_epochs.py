"""The epoch that a script sets in its sampler: `sampler.set_epoch(n)` makes it the loader's next one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from rekindle.choose.partition import layers
from rekindle.choose.planned_sampler import PlannedSampler
from rekindle.core.state_fields import MOST_EPOCHS

Result = TypeVar("Result")


class EpochSampler(Protocol):
    """A sampler with a `set_epoch`, as torch's DistributedSampler has."""

    epoch: int

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""


def epoch_sampler(sampler: object) -> EpochSampler | None:
    """The sampler, or the first one within it, that has a `set_epoch`."""
    for layer in layers(sampler):
        if callable(getattr(layer, "set_epoch", None)) and type(getattr(layer, "epoch", None)) is int:
            found: EpochSampler = layer  # type: ignore[assignment]
            return found
    return None


class SamplerEpoch:
    """Notices which epoch a script set in a sampler, and not what a pass over it made of that itself.

    A sampler whose epoch is never set stays at epoch 0 and says nothing of the loader's epochs.
    """

    def __init__(self, sampler: object = None) -> None:
        self._follow(epoch_sampler(sampler))

    def _follow(self, found: EpochSampler | None) -> None:
        # Not a reference of its own: a sampler may know its loader, which must be able to go.
        self._sampler = None if found is None else weakly(found)
        self._seen = 0

    def follow(self, sampler: object) -> None:
        """Be about this sampler from now on, if it is another one."""
        found = epoch_sampler(sampler)
        if found is not (None if self._sampler is None else self._sampler()):
            self._follow(found)

    def newly_set(self) -> int | None:
        """The epoch, if another one was set in the sampler since this was asked last."""
        now = self._now()
        before, self._seen = self._seen, now
        return now if now != before and 0 <= now <= MOST_EPOCHS else None

    @property
    def epoch(self) -> int | None:
        """The epoch that the sampler is in; None if it has none that a state can hold."""
        now = None if self._sampler is None or self.is_planned else self._now()
        return now if now is not None and 0 <= now <= MOST_EPOCHS else None

    @property
    def is_newly_set(self) -> bool:
        """Whether `newly_set` would give an epoch."""
        return self._now() != self._seen

    def go_back_to(self, epoch: int | None) -> None:
        """Put the sampler into the epoch of a saved state, which is no news."""
        sampler = None if self._sampler is None else self._sampler()
        if sampler is None or epoch is None or self.epoch in (None, epoch):
            return
        self.during(lambda: sampler.set_epoch(epoch))

    @property
    def is_planned(self) -> bool:
        """Whether the sampler is our own, which only frameworks know of, and set."""
        return self._sampler is not None and isinstance(self._sampler(), PlannedSampler)

    def during(self, draw: Callable[[], Result]) -> Result:
        """What drawing from the sampler gives; if that changes its epoch, it is no news."""
        before = self._now()
        try:
            return draw()
        finally:
            now = self._now()
            if now != before:
                self._seen = now

    def _now(self) -> int:
        sampler = None if self._sampler is None else self._sampler()
        if sampler is None:
            return self._seen
        return sampler.epoch_set if isinstance(sampler, PlannedSampler) else sampler.epoch


def weakly(sampler: Result) -> Callable[[], Result | None]:
    """A reference to a sampler that lets it go, if its class has room for that."""
    try:
        return weakref.ref(sampler)
    except TypeError:
        return lambda: sampler
