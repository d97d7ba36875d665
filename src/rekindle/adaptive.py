"""Between the training loop and a method that chooses samples: feedback in, the next choice out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from rekindle import all_ranks
from rekindle.all_ranks import Findings
from rekindle.choose import Choice, Loaded, Measured, Scores, checked
from rekindle.choose.importance import name_of, parameters_of
from rekindle.counters import Counters, SampleCosts
from rekindle.errors import ArgumentError, FeedbackError, StateError
from rekindle.feedback import Feedback, count_of
from rekindle.run.tickets import Filled, Made
from rekindle.ship.unpack import good_rows
from rekindle.with_redundancy import Redundant


class Adaptive:
    """A method at work on one loader: the scores, this epoch's choice, and the feedback on it so far."""

    def __init__(
        self, method: Any, size: int, seed: int, counters: Counters, redundant: Redundant | None = None
    ) -> None:
        self.redundant = redundant
        self.method = copy.deepcopy(method)  # It may remember things, and be given to other loaders, too.
        self.name = name_of(method)
        self.scores = Scores.unknown(size, seed)
        self.counters = counters
        self.feedback = Feedback()
        self.held: list[Findings] = []  # what a state has asked for before the epoch's end
        self.epoch = -1  # that the choice is for
        self.choice: Choice | None = None
        self.chosen = 0  # samples, in all epochs
        self._waited = self._worked = 0.0  # of the counters' seconds, those taken in

    def choose(self, epoch: int, *, ended: bool = False) -> Choice:
        """The samples of an epoch. `ended` says that the one before it was gone through to its end."""
        if self.choice is None or self.epoch != epoch:
            rank, world = all_ranks.rank_and_world()
            if self.epoch >= 0 or world == 1:  # Before the first epoch ranks do not wait for each other.
                self._take_in(ended)
            planned = self.method.plan(epoch, self.scores)
            ids, weights = checked(planned, len(self.scores), self.name)
            if self.redundant is not None:
                ids, weights = self.redundant.chosen(ids, weights, epoch)
            even_batches = bool(getattr(self.method, "even_batches", False))
            choice = Choice(ids, weights, self.scores.turns[ids], even_batches, rank, world)
            self.choice = choice.shared_evenly(self.scores.seed, epoch)
            self.scores.uses[np.unique(ids)] += 1
            self.scores.turns[np.unique(ids) if self.redundant is None else self.redundant.used(ids)] += 1
            self.epoch = epoch
            self.chosen += len(ids)
        wants = getattr(self.method, "wants_load_times", None)
        self.counters.costs = SampleCosts() if wants is not None and wants(epoch) else None
        return self.choice

    def _take_in(self, ended: bool) -> None:
        """Add what this epoch's feedback says, of all ranks, to the scores."""
        found = all_ranks.put_together(self.found_so_far())
        if ended and not len(found.measured.ids) and getattr(self.method, "needs_feedback", True):
            raise FeedbackError(
                f"importance={self.name} chooses samples by how the model does on them, but an epoch has "
                "ended without a word about that. Call loader.feedback(losses=…), or (logits=…, targets=…), "
                "after each batch, or leave out importance=."
            )
        self.scores.note(self.epoch, found.measured)
        self.scores.note_loads(found.loaded)
        self.scores.wait_seconds += found.wait_seconds
        self.scores.work_seconds += found.work_seconds
        self.held.clear()

    def found_so_far(self) -> Findings:
        """What this rank has found in this epoch; fetches feedback from wherever its tensors are."""
        counters = self.counters
        waited, worked = counters.wait.seconds, counters.consume.seconds
        loaded = Loaded(*(SampleCosts() if counters.costs is None else counters.costs).take())
        new = Findings(self.feedback.take(), loaded, waited - self._waited, worked - self._worked)
        self._waited, self._worked = waited, worked
        self.held = [_joined([*self.held, new])]
        return self.held[0]

    def tell(self, last: Filled | Made | None, losses: Any, logits: Any, targets: Any, ids: Any) -> None:
        """Take a report of the training loop; on the batch handed over last, if there are no `ids`."""
        if ids is not None:
            ids = torch.as_tensor(ids).reshape(-1)
            if ids.is_floating_point() or ids.dtype == torch.bool:
                raise ArgumentError(f"feedback: ids are whole numbers, but got {ids.dtype}")
            if ids.device.type == "cpu" and len(ids):
                lowest, highest = int(ids.min()), int(ids.max())
                if lowest < 0 or highest >= len(self.scores):
                    raise ArgumentError(
                        f"feedback: ids must be from 0 to {len(self.scores) - 1}, got {lowest} to {highest}"
                    )
            self.feedback.add(ids, 0, losses, logits, targets)
            return
        if last is None:
            raise ArgumentError(
                "feedback without ids= is about the batch just yielded, and none has been yet"
            )
        good = good_rows(last)
        of_batch = last.ids if good is None else last.ids[good]
        rows = self.feedback.next_rows(last, len(of_batch), count_of(losses, logits))
        age: Any = 0
        generations = last.order.generations
        if not isinstance(generations, int):  # They count the uses before, as this epoch's choice does.
            ages = np.maximum(self.scores.turns[last.ids] - 1 - generations, 0)
            age = (ages if good is None else ages[good])[rows]
        self.feedback.add(of_batch[rows], age, losses, logits, targets)

    def describe(self) -> dict[str, Any]:
        """What the report says about it."""
        known = int(self.scores.known.sum())
        described = {"method": self.name, "epoch": self.epoch, "samples chosen": 0, "samples scored": known}
        if self.choice is not None:
            described["samples chosen"] = len(self.choice.ids)
        own = getattr(self.method, "describe", None)
        return {**described, **(own() if own is not None else {})}

    def check_position(self, epoch: int, step: int, batch_size: int, drop_last: bool) -> None:
        """StateError unless a loader that stands there can have made this choice."""
        if self.choice is not None and self.epoch == epoch:
            steps = self.choice.steps(batch_size, drop_last)
            if step > steps:
                raise StateError(f"step: {step} batches of an epoch that has {steps}; was the state edited?")
        elif step:
            raise StateError(
                f"importance: the state has samples for epoch {self.epoch}, but stands in epoch {epoch}"
            )

    def copied(self, counters: Counters) -> Adaptive:
        """The same for a copy of the loader, which has counters of its own."""
        self.found_so_far()
        other = copy.copy(self)
        other.method, other.scores = copy.deepcopy((self.method, self.scores))
        other.feedback, other.held, other.counters = Feedback(), list(self.held), counters
        other._waited = other._worked = 0.0
        return other

    @property
    def identity(self) -> dict[str, Any]:
        """What a state must agree with."""
        return {"method": self.name, **parameters_of(self.method)}


def _joined(parts: list[Findings]) -> Findings:
    measured = zip(*(part.measured for part in parts), strict=True)
    loaded = zip(*(part.loaded for part in parts), strict=True)
    return Findings(
        Measured(*(np.concatenate(column) for column in measured)),
        Loaded(*(np.concatenate(column) for column in loaded)),
        sum(part.wait_seconds for part in parts),
        sum(part.work_seconds for part in parts),
    )
