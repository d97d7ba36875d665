"""The policy for samples that fail to load: `on_error` and `error_budget`, with and without workers.

With "raise", the first failure ends the pass. With "skip", a failed sample is left out of its batch. With
"substitute", another sample of the epoch is loaded in its row, chosen by the batch's keys alone, so that it
is the same on every run and for any number of workers. Where all ranks of a distributed run must have as many
batches, one of which "skip" would leave nothing gets substitutes, too.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import BatchOrder
from rekindle.core import counter_rng
from rekindle.core.printable import printable
from rekindle.core.samples import Index, Sample
from rekindle.errors import BadSamplesError

OnError = Literal["raise", "skip", "substitute"]
_MOST_ATTEMPTS = 16
_SUBSTITUTES = 1 << 62  # from here on, turns are those of substitutes


@dataclass(frozen=True, slots=True)
class FailedSample:
    """Stands in a list of samples for one whose loading raised an exception."""

    error: Exception

    @property
    def reason(self) -> str:
        """The exception in one line, as it can be shown."""
        return printable(traceback.format_exception_only(self.error)[-1].strip())

    def reraise(self, index: Index) -> NoReturn:
        """Raise the exception, with a note that names the sample."""
        self.error.add_note(f"rekindle: while loading sample {index!r}")
        raise self.error


def failed_rows(samples: Sequence[Sample]) -> list[int]:
    """The rows whose samples failed to load."""
    if FailedSample not in {*map(type, samples)}:  # A tenth of the time that it takes to look at each.
        return []
    return [row for row, sample in enumerate(samples) if type(sample) is FailedSample]


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that failed to load, and why."""

    epoch: int
    id: int
    reason: str


class Substitute(NamedTuple):
    """A sample to load in the row of a bad one, in a turn that no other row has."""

    row: int
    index: Index
    id: int
    turn: int


@dataclass(slots=True)
class BatchFailures:
    """The bad samples found for one batch so far, and the ids of those that each row has had."""

    found: list[BadSample] = field(default_factory=list)
    tried: dict[int, list[int]] = field(default_factory=dict)

    def substitutes(self, seed: int, order: BatchOrder, bad: Mapping[int, BadSample]) -> list[Substitute]:
        """What to load next in the rows whose samples are bad; BadSamplesError after 16 attempts."""
        self.found += bad.values()
        chosen = []
        for row in bad:
            tried = self.tried.setdefault(row, [])
            tried.append(bad[row].id)
            chosen.append(_substitute(seed, order, row, tried))
        return chosen


def bad_rows(order: BatchOrder, ids: NDArray[np.int64], reasons: Mapping[int, str]) -> dict[int, BadSample]:
    """The bad samples of a batch by their rows, in order, from why each of them failed."""
    return {row: BadSample(order.epoch, int(ids[row]), reasons[row]) for row in sorted(reasons)}


@dataclass(slots=True)
class BadSamples:
    """The bad samples of a loader so far, and how many there may be.

    `budget` is a fraction of the epoch's samples (of those seen so far, where the epoch has no known length);
    one bad sample is always within it.
    """

    on_error: OnError
    budget: float
    found: list[BadSample] = field(default_factory=list)
    keep_steps: bool = False  # No batch may be lost: other ranks wait for its step.

    @property
    def may_substitute(self) -> bool:
        """Whether some batch may need substitutes."""
        return self.on_error == "substitute" or (self.on_error == "skip" and self.keep_steps)

    def substitutes(self, failed: int, rows: int) -> bool:
        """Whether a batch gets substitutes for its samples that failed, so many of so many."""
        return self.on_error == "substitute" or (self.may_substitute and failed == rows)

    def note(self, bad: BadSample, order: BatchOrder) -> None:
        """Record a bad sample of a batch; BadSamplesError if its epoch then has too many."""
        if all((bad.epoch, bad.id) != (other.epoch, other.id) for other in self.found):
            self.found.append(bad)
        seen = (order.step + 1) * len(order.indices)
        epoch_size = seen if order.plan is None else order.plan.samples
        in_epoch = {other.id for other in self.found if other.epoch == bad.epoch}
        most = max(1, math.floor(self.budget * epoch_size))
        # The substitutes that a rank tried may be bad, too, and more than it has samples of its own.
        if len(in_epoch) > most and self.budget < 1:
            raise BadSamplesError(
                f"{len(in_epoch)} bad samples in epoch {bad.epoch}, more than the {most} that "
                f"error_budget={self.budget} allows of {epoch_size}. The last is sample {bad.id}: "
                f"{bad.reason}. loader.report() lists all of them; fix the data or raise error_budget."
            )


def _substitute(seed: int, order: BatchOrder, row: int, tried: list[int]) -> Substitute:
    """The sample that replaces a bad one, after some that were tried: the same on every run."""
    attempt = len(tried) - 1
    bad, turn = int(order.ids[row]), order.turns if isinstance(order.turns, int) else int(order.turns[row])
    if attempt >= _MOST_ATTEMPTS:
        others = len({*tried} - {bad})
        found = f"the {others} others that were drawn" if others > 1 else "the only other one that was drawn"
        raise BadSamplesError(
            f"no substitute for sample {bad} in epoch {order.epoch}: in {attempt} draws, "
            f"{f'{found} failed as well' if others else 'there was no other sample'}. "
            "Look at the reasons in loader.report()."
        )
    step = counter_rng.Step.SUBSTITUTE + attempt
    draw = int(counter_rng.seeds(seed, bad, turn, step)[0])
    own_turn = _SUBSTITUTES + (draw >> 2)
    if order.plan is not None:
        peer = order.plan.any_sample(draw)
        return Substitute(row, peer, peer, own_turn)
    choice = draw % (len(order.recent) + len(order.indices))
    if choice < len(order.recent):
        index = order.recent[choice]
        return Substitute(row, index, index if type(index) is int else bad, own_turn)
    choice -= len(order.recent)
    return Substitute(row, order.indices[choice], int(order.ids[choice]), own_turn)
