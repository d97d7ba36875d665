"""A method that chooses samples, at work on one loader: feedback in, the next epoch's choice out."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import distributed
from rekindle.choose.agreement import Fact, has_ranks, named_ranks
from rekindle.choose.batch_orders import YieldedBatch
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.duplicates.substitution import SubstitutingRefresh
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
from rekindle.choose.importance.shared_findings import SharedFindings
from rekindle.choose.rank_homes import RankHomes
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.choose.refresh_schedule import Refresh
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
    earlier: Findings | None = (
        None  # and by all ranks before, which saved the state that this one goes on from
    )


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
        schedule: Callable[[], Refresh | None] | None = None,
    ) -> None:
        # A method may remember things, and be given to other loaders as well.
        self.method = as_method(copy.deepcopy(method))
        self.name = name_of(self.method)
        self.duplicates, self.refresh, self.shard, self.schedule = duplicates, refresh, shard, schedule
        reads = arrays_read_by(self.method)
        also = {"made": refresh is not None, "turns": duplicates is not None}
        kept = None if reads is None else reads | {name for name, needed in also.items() if needed}
        self.scores = Scores.unknown(size, seed, kept)
        self.homes: RankHomes | None = None
        self.epoch = -1
        self.choice: Choice | None = None
        self._collect_from(counters)

    def _collect_from(self, counters: Counters) -> None:
        self._shared: SharedFindings | None = None
        self._earlier: Findings | None = None
        self.intake = FeedbackIntake(len(self.scores))
        self._findings = EpochFindings(self.intake.feedback, counters)

    def choose(self, epoch: int, *, ended: bool = False) -> Choice:
        """The samples of an epoch. `ended` says that the one before it was iterated to its end."""
        if self.choice is None or self.epoch != epoch:
            # Before the first epoch ranks do not wait for each other.
            if self.epoch >= 0 or not self._exchanges:
                self._update_scores(ended)
            self.choice = choose_samples(
                self.method, epoch, self.scores, self.duplicates, self.refresh, self.shard,
                self._homes_here(), self._shared_results(),
            )  # fmt: skip
            self.epoch = epoch
        self._findings.time_loads(self.method.wants_load_times(epoch))
        return self.choice

    def _homes_here(self) -> RankHomes | None:
        """Which rank has what is cached, where ranks of this number share samples; at first, none has any."""
        world = 1 if self.shard is None else self.shard.world
        if world == 1 or self.refresh is None:
            self.homes = None
        elif self.homes is None or self.homes.world != world:
            self.homes = RankHomes(len(self.scores), world)
        return self.homes

    def _shared_results(self) -> SubstitutingRefresh | None:
        """When the results are recomputed that near-duplicates share, if they do."""
        found = None if self.schedule is None else self.schedule()
        return found if isinstance(found, SubstitutingRefresh) else None

    def generations_now(self, ids: NDArray[np.int64]) -> NDArray[np.signedinteger]:
        """The generation of each of these samples in the epoch chosen, if it is recomputed in that."""
        shares = self.refresh is not None and self.refresh.shared
        return self.scores.turns[ids] - 1 if shares else self.scores.made[ids]

    def deal_again(self) -> None:
        """Deal the samples of an epoch that has not begun yet to the ranks that there are now."""
        if self.choice is None:
            return
        dealt, homes = self.choice.dealt, self._homes_here()
        if homes is None or self.refresh is None:
            self.choice = self.choice._replace(dealt=None)
        elif dealt is None or dealt.world != homes.world:
            self.choice = self.refresh.deal(
                self.choice, homes, self.epoch, self.scores.seed, self._shared_results()
            )

    def start(self, epoch: int, *, ended: bool = False) -> Choice:
        """The samples of an epoch that begins here, or goes on. All ranks start the same ones."""
        choice = self.choose(epoch, ended=ended)
        if self._exchanges and self._shared is None:
            self._shared = SharedFindings()
        return choice

    def move_to(self, step: int) -> None:
        """Note that batch `step` of the epoch is about to be yielded."""
        if self._shared is not None:
            self._shared.move_to(step, silent=not self.method.needs_feedback)

    @property
    def _exchanges(self) -> bool:
        """Whether other ranks have feedback on samples of this epoch."""
        return self.shard is not None and self.shard.world > 1 and has_ranks()

    def _update_scores(self, ended: bool) -> None:
        found, silent = self._findings.collect(), list[int]()
        if self._exchanges:
            if self._shared is not None:
                self._shared.finish()
            # What was reported before a resume is not known by ranks.
            awaited = ended and self.method.needs_feedback and self._earlier is None
            what = f"the feedback of epoch {self.epoch}"
            found, silent = distributed.gathered(found, what, self.facts(), awaited=awaited)
        if self._earlier is not None:
            found = Findings.of([self._earlier, found])
        if ended and self.method.needs_feedback:
            self._check(found.measured.loss)
        if silent:
            self._check_ranks(silent, found.measured.ids)
        self.scores.update(self.epoch, found)
        self._findings.restart()
        self._earlier = None
        if self._shared is not None:
            self._shared.begin_again()

    def _check(self, losses: NDArray[np.float32]) -> None:
        """Raise FeedbackError if nothing can be learned from the losses of an epoch."""
        if not len(losses):
            raise FeedbackError(
                self._needs(
                    f"no feedback was reported for epoch {self.epoch}. Call loader.feedback(losses=…), "
                    "or (logits=…, targets=…), after each batch, or leave out importance=."
                )
            )
        if not np.isfinite(losses).any():
            raise FeedbackError(
                self._needs(
                    f"all {len(losses)} losses reported for epoch {self.epoch} are NaN or infinite: the "
                    "model has diverged, or something else is reported. Go on from a checkpoint before that, "
                    "with a lower learning rate or gradient clipping, say."
                )
            )

    def _check_ranks(self, silent: list[int], measured: NDArray[np.int64]) -> None:
        """Raise FeedbackError, on all ranks, unless others have reported the samples of the `silent` ones."""
        assert self.choice is not None
        assert self.shard is not None
        world, samples = self.shard.world, len(self.choice.ids)
        if len(np.unique(measured)) > (world - len(silent)) * -(-samples // world):
            return  # More than those others had themselves: they name samples with `ids=`.
        raise FeedbackError(
            self._needs(
                f"no feedback was reported for epoch {self.epoch} by {named_ranks(silent)} of {world}, so "
                "their samples have no new scores. Call loader.feedback() after each batch on every rank."
            )
        )

    def _needs(self, problem: str) -> str:
        return f"importance={self.name} chooses samples by how the model does on them, but {problem}"

    def report_feedback(
        self, last: YieldedBatch | None, losses: object, logits: object, targets: object, ids: object
    ) -> None:
        """Take a report of the training loop; on the batch yielded `last`, if there are no `ids`."""
        self.intake.report(last, self.scores.turns, losses, logits, targets, ids)
        if self._shared is not None:
            self._shared.report(self._findings.take_new())

    def summary(self) -> dict[str, object]:
        """The report's entry."""
        return {
            "method": self.name,
            "epoch": self.epoch,
            "samples chosen": 0 if self.choice is None else len(self.choice.ids),
            "samples scored": int(self.scores.known.sum()),
            **self.method.describe(),
        }

    def facts(self) -> dict[str, Fact]:
        """What all ranks must have in common of the epoch's choice; nothing before the first."""
        if self.choice is None:
            return {}
        return {
            "samples chosen": len(self.choice.ids),
            "choice": zlib.crc32(np.ascontiguousarray(self.choice.ids).data),
        }

    @property
    def identity(self) -> dict[str, Parameter]:
        """What a checkpoint must agree with."""
        return {"method": self.name, **parameters_of(self.method)}

    def progress(self) -> SessionProgress:
        """How far the session has got; copies feedback from wherever its tensors are."""
        return SessionProgress(self.scores, self.epoch, self.choice, self._findings.collect(), self._earlier)

    def everyones_progress(self) -> SessionProgress:
        """How far all ranks together have got, of which any can ask: the findings are those of all.

        RankError if others do not report on what this one has.
        """
        new, own = self._findings.take_new(), self._findings.collect()
        found = own if self._shared is None else self._shared.collect(new, own)
        if self._earlier is not None:
            found = Findings.of([self._earlier, found])
        return SessionProgress(self.scores, self.epoch, self.choice, found)

    def resume(self, progress: SessionProgress) -> None:
        """Continue from there; what was found before is dropped."""
        self.scores, self.epoch, self.choice = progress.scores, progress.epoch, progress.choice
        self._findings.restart(progress.findings)
        self._earlier = progress.earlier

    def copied(self, counters: Counters) -> ImportanceSession:
        """The same for a copy of the loader, which has counters of its own."""
        other = copy.copy(self)
        other.method, scores, other.homes = copy.deepcopy((self.method, self.scores, self.homes))
        other._collect_from(counters)
        other.resume(self.progress()._replace(scores=scores))
        return other
