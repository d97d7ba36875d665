"""Bucket sampling: easy samples wait outside, and come back when training stands still (IOWA)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.criteria import CRITERIA, importance
from rekindle.choose.importance.draws import lowest, share_of
from rekindle.choose.importance.method import (
    Planned,
    check_one_of,
    check_share,
    check_whole,
    name_of,
    require_logits,
)
from rekindle.choose.importance.redundant import CopyMode, check_groups, without_copies
from rekindle.choose.redundant_groups import RedundantGroups
from rekindle.choose.scores import Scores
from rekindle.errors import ArgumentError, StateError

_log = logging.getLogger("rekindle")
_BOUND_BY_LOADING = 0.25  # the part of the loop's time that is spent waiting
_STAGES = ("regular training", "sampling out", "re-sampling")


@dataclass
class Buckets:
    """Moves the least important samples, a few an epoch, to a bucket where they wait.

    Hu et al.: "IOWA: An I/O-Aware Adaptive Sampling Framework for Deep Learning". Stage 1 trains on
    everything and profiles. In stage 2, each epoch moves the least important samples from the bucket in
    process to the one that waits. In stage 3, when training has stood still for `patience` epochs, random
    ones come back. Training stands still when neither accuracy (loss, where accuracy is not known) over all
    samples, each as it was measured last, has become better by `min_gain`.

    Args:
        warmup: For how many epochs everything is used.
        rate: The share of all samples that an epoch moves out.
        most_waiting: The share that waits at most.
        confidence: How probable the right class has to be for a sample to be moved out. Ours: it keeps a
            model that has not learnt much yet from losing samples that it needs, so less is saved then. 0
            moves the least important whatever they are, as published.
        recall: "random" brings samples back, None never does.
        recall_rate: The share of all samples that is brought back at a time.
        patience: After how many epochs without a gain.
        min_gain: What counts as one: in accuracy, or relative in loss.
        bottleneck: "cpu" scores by the model alone, "io" also by what loading costs. "auto" decides before
            the last warm-up epoch: "io" if the training loop has waited for more than a quarter of its time.
            It is logged, and kept in the state.
        criteria: Which scores count, instead of those of the bottleneck: some of "cross_entropy" (−log2 P),
            "cross_entropy_of_iowa" (−P · log2 P, as published: very hard samples look unimportant), "margin"
            and "io". Several are combined as the mean of their percentiles, "io" counting for half.
        alpha: How the time to load counts against the size, in "io".
        groups: The near-copies, as `rekindle.find_redundancy` gives them; or for each sample the number of
            the group that it is in, or −1.
        copies: "remove" trains on one random member of a group an epoch; "repeat" has it stand in for the
            others.

    "io" lets a clock into the plan: two runs with the same feedback may choose differently. A run that is
    resumed does not, because what was measured is in the state.

    Weakness: what waits is not corrected for, so the model sees a harder distribution than it will be tested
    on; wrong labels stay in process for ever.

    """

    warmup: int = 5
    rate: float = 0.05
    most_waiting: float = 0.5
    confidence: float = 0.9
    recall: Literal["random"] | None = "random"
    recall_rate: float = 0.1
    patience: int = 3
    min_gain: float = 0.001
    bottleneck: Literal["auto", "cpu", "io"] = "auto"
    criteria: tuple[str, ...] | None = None
    alpha: float = 0.5
    groups: RedundantGroups | NDArray[np.int64] | None = None
    copies: CopyMode | None = None

    stage: int = field(default=1, init=False)
    waiting: NDArray[np.bool_] | None = field(default=None, init=False, repr=False)
    decided: str = field(default="", init=False)  # the bottleneck that was found
    best: float = field(default=-np.inf, init=False)  # accuracy, or minus the loss
    epochs_without_gain: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_whole("warmup", self.warmup, 1)
        check_whole("patience", self.patience, 1)
        for name in ("rate", "most_waiting", "confidence", "recall_rate", "min_gain", "alpha"):
            check_share(name, getattr(self, name), zero=True)
        check_one_of("recall", self.recall, ("random", None))
        check_one_of("bottleneck", self.bottleneck, ("auto", "cpu", "io"))
        check_one_of("copies", self.copies, ("remove", "repeat", None))
        if self.most_waiting == 1:
            raise ArgumentError("most_waiting=1 would leave nothing to train on")
        if (self.groups is None) != (self.copies is None):
            raise ArgumentError("groups= and copies= belong together: which samples are alike, and what then")
        if isinstance(self.groups, RedundantGroups):
            self.groups = self.groups.numbers()
        elif self.groups is not None:
            self.groups = np.asarray(self.groups, dtype=np.int64)
        if self.criteria is not None:
            given: Any = self.criteria
            self.criteria = (given,) if isinstance(given, str) else tuple(given)
            for name in self.criteria:
                check_one_of("criteria", name, CRITERIA)
            if not self.criteria:
                raise ArgumentError(f"criteria must name some of {CRITERIA}, but got none")

    @classmethod
    def preset(cls, name: str, **parameters: Any) -> Buckets:
        """One of IOWA's variants by its name, with other parameters where they are given.

        "BS-norecall", "BS-random", "BS-random-RRemove" and "BS-random-RRepeat"; the last two need `groups`.

        >>> Buckets.preset("BS-norecall", rate=0.1).recall is None
        True
        """
        check_one_of("name", name, tuple(PRESETS))
        chosen = PRESETS[name]
        if "copies" in chosen and parameters.get("groups") is None:
            raise ArgumentError(f"{name} needs groups=, such as rekindle.find_redundancy gives them")
        return cls(**{**chosen, **parameters})

    def wants_load_times(self, epoch: int) -> bool:
        """Whether the loading of samples is to be timed, one by one, in this epoch."""
        if self.criteria is not None:
            return "io" in self.criteria
        return self.bottleneck == "io" or (self.decided == "io" and epoch >= self.warmup - 1)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The samples in process; those of a group as `copies` says."""
        if self.waiting is None:
            self.waiting = np.zeros(len(scores), dtype=bool)
            if self.groups is not None:
                check_groups(self.groups, len(scores))
        if not self.decided and epoch >= self.warmup - 1:
            self.decided = self._bottleneck(scores)
        if epoch >= self.warmup:
            self._move(epoch, scores, self.waiting)
        ids = np.flatnonzero(~self.waiting)
        if isinstance(self.groups, np.ndarray) and self.copies is not None and epoch >= self.warmup:
            ids = without_copies(ids, self.groups, scores.uniforms(epoch, draw=2), self.copies)
        return ids, None

    def _bottleneck(self, scores: Scores) -> str:
        if self.bottleneck != "auto" or self.criteria is not None:
            return self.bottleneck
        total = scores.wait_seconds + scores.work_seconds
        waited = scores.wait_seconds / total if total else 0.0
        decided = "io" if waited > _BOUND_BY_LOADING else "cpu"
        _log.info(
            "%s: the training loop waited for %.0f %% of its time; bottleneck=%r from here on",
            name_of(self), 100 * waited, decided,
        )  # fmt: skip
        return decided

    def _move(self, epoch: int, scores: Scores, waiting: NDArray[np.bool_]) -> None:
        size = len(scores)
        if self._stands_still(scores) and self.recall is not None and waiting.any():
            self.stage, self.epochs_without_gain = 3, 0
            there = np.flatnonzero(waiting)
            order = np.argsort(scores.uniforms(epoch)[there], kind="stable")
            waiting[there[order[: share_of(size, self.recall_rate)]]] = False
            return
        self.stage = 2
        room = int(self.most_waiting * size) - int(waiting.sum())
        count = max(0, min(share_of(size, self.rate), room))
        inside = np.flatnonzero(~waiting)
        values = importance(scores, self._criteria(scores), self.alpha)[inside]
        may_wait = np.isfinite(values) & (scores.probability[inside] >= self.confidence)
        inside, values = inside[may_wait], values[may_wait]
        waiting[inside[lowest(values, count, scores.uniforms(epoch, draw=1)[inside])]] = True

    def _stands_still(self, scores: Scores) -> bool:
        accuracy = scores.accuracy
        now = -scores.mean_loss if np.isnan(accuracy) else accuracy
        needed = self.min_gain * abs(self.best) if np.isnan(accuracy) else self.min_gain
        if not np.isfinite(self.best) or now > self.best + needed:
            self.best, self.epochs_without_gain = now, 0
        else:
            self.epochs_without_gain += 1
        return self.epochs_without_gain >= self.patience

    def _criteria(self, scores: Scores) -> tuple[str, ...]:
        if self.criteria is not None:
            if "margin" in self.criteria:
                require_logits(self, scores.rival, "the margin between classes")
            return self.criteria
        if self.decided != "io":
            return ("cross_entropy",)
        logits = bool(np.isfinite(scores.rival).any())
        return ("cross_entropy", "margin", "io") if logits else ("cross_entropy", "io")

    def describe(self) -> dict[str, Any]:
        """Where it stands, for the report."""
        waiting = 0 if self.waiting is None else int(self.waiting.sum())
        return {
            "stage": f"{self.stage}: {_STAGES[self.stage - 1]}",
            "waiting": waiting,
            "bottleneck": self.decided or "not known yet",
        }

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from epoch to epoch."""
        return {
            "waiting": None if self.waiting is None else self.waiting.copy(),
            "stage": self.stage,
            "decided": self.decided,
            "best": self.best,
            "epochs_without_gain": self.epochs_without_gain,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; StateError if that cannot be."""
        waiting = state["waiting"]
        if waiting is not None and (not isinstance(waiting, np.ndarray) or waiting.dtype != np.bool_):
            raise StateError(f"importance: waiting must tell for each sample yes or no, but is {waiting!r}")
        if state["stage"] not in (1, 2, 3) or state["decided"] not in ("", "cpu", "io", "auto"):
            raise StateError(
                f"importance: no such stage {state['stage']!r} or bottleneck {state['decided']!r}"
            )
        if type(state["best"]) is not float or type(state["epochs_without_gain"]) is not int:
            raise StateError(f"importance: best is {state['best']!r}, which is no number; was it edited?")
        self.waiting = None if waiting is None else waiting.copy()
        self.stage, self.decided, self.best = state["stage"], state["decided"], state["best"]
        self.epochs_without_gain = state["epochs_without_gain"]


PRESETS: dict[str, dict[str, Any]] = {
    "BS-norecall": {"recall": None},
    "BS-random": {},
    "BS-random-RRemove": {"copies": "remove"},
    "BS-random-RRepeat": {"copies": "repeat"},
}
