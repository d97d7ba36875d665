"""A method that chooses samples, at work on one loader: feedback in, the next epoch's choice out."""

from __future__ import annotations

import copy
from typing import NamedTuple

from rekindle.choose import distributed
from rekindle.choose.agreement import has_ranks
from rekindle.choose.batch_orders import YieldedBatch
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.importance.epoch_choice import choose_samples
from rekindle.choose.importance.epoch_findings import EpochFindings
from rekindle.choose.importance.feedback_intake import FeedbackIntake
from rekindle.choose.importance.method import (
    EpochPlanner,
    Parameter,
    arrays_read_by,
    as_method,
    name_of,
    parameters_of,
)
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.choose.scores import Findings, Scores
from rekindle.choose.selection import Choice
from rekindle.choose.shard import Shard
from rekindle.core.counters import Counters
from rekindle.errors import FeedbackError


class SessionProgress(NamedTuple):
    """How far a session has got, beside what the method itself remembers."""

    scores: Scores
    epoch: int  # that the choice is for; −1 before the first
    choice: Choice | None
    findings: Findings | None  # of that epoch so far, by this rank


class ImportanceSession:
    """The scores, the current epoch's choice, and what was found in that epoch so far."""

    def __init__(
        self,
        method: EpochPlanner,
        size: int,
        seed: int,
        counters: Counters,
        duplicates: DuplicatePolicy | None = None,
        refresh: RefreshByUse | None = None,
        shard: Shard | None = None,
    ) -> None:
        # A method may remember things, and be given to other loaders as well.
        self.method = as_method(copy.deepcopy(method))
        self.name = name_of(self.method)
        self.duplicates, self.refresh, self.shard = duplicates, refresh, shard
        reads = arrays_read_by(self.method)
        kept = None if reads is None else reads | ({"made", "age"} if refresh is not None else frozenset())
        self.scores = Scores.unknown(size, seed, kept)
        self.epoch = -1
        self.choice: Choice | None = None
        self._collect_from(counters)

    def _collect_from(self, counters: Counters) -> None:
        self.intake = FeedbackIntake(len(self.scores))
        self._findings = EpochFindings(self.intake.feedback, counters)

    def choose(self, epoch: int, *, ended: bool = False) -> Choice:
        """The samples of an epoch. `ended` says that the one before it was iterated to its end."""
        if self.choice is None or self.epoch != epoch:
            # Before the first epoch ranks do not wait for each other.
            if self.epoch >= 0 or not self._exchanges:
                self._update_scores(ended)
            self.choice = choose_samples(
                self.method, epoch, self.scores, self.duplicates, self.refresh, self.shard
            )
            self.epoch = epoch
        self._findings.time_loads(self.method.wants_load_times(epoch))
        return self.choice

    @property
    def _exchanges(self) -> bool:
        """Whether other ranks have feedback on samples of this epoch."""
        return self.shard is not None and self.shard.world > 1 and has_ranks()

    def _update_scores(self, ended: bool) -> None:
        found = self._findings.collect()
        if self._exchanges:
            found = distributed.gathered(found, f"the feedback of epoch {self.epoch}")
        if ended and not len(found.measured.ids) and self.method.needs_feedback:
            raise FeedbackError(
                f"importance={self.name} chooses samples by how the model does on them, but no feedback was "
                f"reported for epoch {self.epoch}. Call loader.feedback(losses=…), or (logits=…, targets=…), "
                "after each batch, or leave out importance=."
            )
        self.scores.update(self.epoch, found)
        self._findings.restart()

    def report_feedback(
        self, last: YieldedBatch | None, losses: object, logits: object, targets: object, ids: object
    ) -> None:
        """Take a report of the training loop; on the batch yielded `last`, if there are no `ids`."""
        self.intake.report(last, self.scores.turns, losses, logits, targets, ids)

    def summary(self) -> dict[str, object]:
        """The report's entry."""
        return {
            "method": self.name,
            "epoch": self.epoch,
            "samples chosen": 0 if self.choice is None else len(self.choice.ids),
            "samples scored": int(self.scores.known.sum()),
            **self.method.describe(),
        }

    @property
    def identity(self) -> dict[str, Parameter]:
        """What a checkpoint must agree with."""
        return {"method": self.name, **parameters_of(self.method)}

    def progress(self) -> SessionProgress:
        """How far the session has got; copies feedback from wherever its tensors are."""
        return SessionProgress(self.scores, self.epoch, self.choice, self._findings.collect())

    def everyones_progress(self) -> SessionProgress:
        """How far all ranks together have got: each must ask, as they exchange what they have found."""
        progress = self.progress()
        if not self._exchanges or progress.findings is None:
            return progress
        what = f"the feedback of epoch {self.epoch} for state_dict(), which every rank must call"
        return progress._replace(findings=distributed.gathered(progress.findings, what))

    def resume(self, progress: SessionProgress) -> None:
        """Continue from there; what was found before is dropped."""
        self.scores, self.epoch, self.choice = progress.scores, progress.epoch, progress.choice
        self._findings.restart(progress.findings)

    def copied(self, counters: Counters) -> ImportanceSession:
        """The same for a copy of the loader, which has counters of its own."""
        other = copy.copy(self)
        other.method, scores = copy.deepcopy((self.method, self.scores))
        other._collect_from(counters)
        other.resume(self.progress()._replace(scores=scores))
        return other
