"""What happens to samples that cannot be made: `on_error` and its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from rekindle import keys
from rekindle.choose import BatchOrder
from rekindle.errors import BadSamplesError

OnError = Literal["raise", "skip", "substitute"]
_MOST_ATTEMPTS = 16


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be made, and why."""

    epoch: int
    id: int
    reason: str


@dataclass(slots=True)
class BadSamples:
    """The samples passed over so far, and how many may be.

    `budget` is a share of the epoch's samples (of those seen so far, where the epoch has no known length);
    one bad sample is always within it.
    """

    on_error: OnError
    budget: float
    found: list[BadSample] = field(default_factory=list)

    def note(self, bad: BadSample, order: BatchOrder) -> None:
        """Record a bad sample of a batch; BadSamplesError if that is one too many in its epoch."""
        if all((bad.epoch, bad.id) != (other.epoch, other.id) for other in self.found):
            self.found.append(bad)
        seen = (order.step + 1) * len(order.indices)
        epoch_size = seen if order.peers is None else len(order.peers)
        in_epoch = {other.id for other in self.found if other.epoch == bad.epoch}
        most = max(1, math.floor(self.budget * epoch_size))
        if len(in_epoch) > most:
            raise BadSamplesError(
                f"{len(in_epoch)} bad samples in epoch {bad.epoch}, more than the {most} that "
                f"error_budget={self.budget} allows of {epoch_size}. The last is sample {bad.id}: "
                f"{bad.reason}. loader.report() lists all of them; mend the data or raise error_budget."
            )


def substitute(seed: int, order: BatchOrder, bad: int, attempt: int) -> tuple[Any, int]:
    """The index and id of the sample that stands in for a bad one: the same on every run."""
    if attempt >= _MOST_ATTEMPTS:
        raise BadSamplesError(
            f"no substitute for sample {bad} in epoch {order.epoch}: {attempt} others failed as well. "
            "Look at the reasons in loader.report()."
        )
    step = keys.Step.SUBSTITUTE + attempt
    draw = int(keys.seeds(seed, bad, order.epoch, step)[0])
    if order.peers is not None:
        peer = int(order.peers[draw % len(order.peers)])
        return peer, peer
    place = draw % (len(order.recent) + len(order.indices))
    if place < len(order.recent):
        index = order.recent[place]
        return index, index if type(index) is int else bad
    place -= len(order.recent)
    return order.indices[place], int(order.ids[place])
