"""Bucket sampling: easy samples wait, and come back when training stagnates (IOWA)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.duplicates.groups_file import RedundantGroups
from rekindle.choose.duplicates.representatives import GroupIndex
from rekindle.choose.importance.criteria import CRITERIA, importance
from rekindle.choose.importance.method import ImportanceMethod, MethodState, Planned, name_of
from rekindle.choose.importance.parameter_checks import (
    any_known,
    check_one_of,
    checked_integer,
    checked_probability,
    checked_share,
    require_logits,
)
from rekindle.choose.importance.systematic_sampling import are_lowest, share_of
from rekindle.choose.sample_ids import ids_where
from rekindle.choose.scores import MANY, Scores
from rekindle.core.state_fields import StateFields, shown
from rekindle.errors import ArgumentError

_log = logging.getLogger("rekindle")
_BOUND_BY_LOADING = 0.25  # the share of the loop's time spent waiting
_STAGES = ("regular training", "sampling out", "re-sampling")


class BucketsState(TypedDict):
    """What `Buckets` remembers from epoch to epoch."""

    waiting: NDArray[np.bool_] | None
    stage: int
    decided: str
    best: float
    epochs_without_gain: int


@dataclass
class Buckets(ImportanceMethod):
    """Moves the least important samples, a few per epoch, to a waiting bucket.

    Hu et al.: "IOWA: An I/O-Aware Adaptive Sampling Framework for Deep Learning". Stage 1 trains on
    everything and profiles. In stage 2, each epoch moves the least important samples from the
    in-process bucket to the waiting bucket. In stage 3, when training has stagnated for `patience` epochs,
    random ones come back. Training stagnates when accuracy (loss, where accuracy is not known) over all
    samples, each as it was measured last, does not improve by `min_gain`.

    Args:
        warmup: For how many epochs all samples are used.
        rate: The share of all samples that an epoch moves out.
        most_waiting: The share that waits at most.
        confidence: How probable the right class has to be for a sample to be moved out. Our addition: a model
            that has not learnt much yet keeps the samples that it needs, so less is saved then. 0 moves the
            least important whatever they are, as published and as the presets do.
        recall: "random" brings samples back, None does not.
        recall_rate: The share of all samples brought back at a time.
        patience: After how many epochs without a gain they are brought back.
        min_gain: What counts as one: in accuracy, or relative in loss.
        bottleneck: "cpu" scores by the model alone, "io" also by what loading costs. "auto" decides before
            the last warm-up epoch: "io" if the training loop has waited for more than a quarter of its time.
            The decision is logged, and saved in checkpoints.
        entropy: The model's score that counts in both cases: "cross_entropy" (−log2 P), which is ours, or
            "cross_entropy_of_iowa" (−P · log2 P), as published and as the presets have it: very hard samples
            look unimportant.
        criteria: Which scores count, instead of those of the bottleneck: some of "cross_entropy",
            "cross_entropy_of_iowa", "margin" and "io". Several are combined as the mean of their
            percentiles, "io" counting for half.
        alpha: How the time to load counts against the size, in "io".
        groups: The near-duplicates, as `rekindle.find_redundancy` returns them; or for each sample the number
            of the group that it is in, or −1.
        copies: "remove" trains on one random member of each group per epoch; "repeat" substitutes it for the
            others.

    "io" makes the plan depend on a clock: two runs with the same feedback may choose differently. A resumed
    run does not, because the measurements are in the checkpoint.

    Weakness: waiting samples are not corrected for, so the model sees a harder distribution than it will be
    tested on; wrong labels stay in process for ever.

    """

    reads = frozenset({"probability", "rival", "load_seconds", "nbytes", "loads"})
    warmup: int = 5
    rate: float = 0.05
    most_waiting: float = 0.5
    confidence: float = 0.9
    recall: Literal["random"] | None = "random"
    recall_rate: float = 0.1
    patience: int = 3
    min_gain: float = 0.001
    bottleneck: Literal["auto", "cpu", "io"] = "auto"
    entropy: Literal["cross_entropy", "cross_entropy_of_iowa"] = "cross_entropy"
    criteria: tuple[str, ...] | None = None
    alpha: float = 0.5
    groups: RedundantGroups | NDArray[np.int64] | None = None
    copies: Literal["remove", "repeat"] | None = None

    stage: int = field(default=1, init=False, repr=False)
    waiting: NDArray[np.bool_] | None = field(default=None, init=False, repr=False)
    decided: str = field(default="", init=False, repr=False)  # which bottleneck there is
    best: float = field(default=-np.inf, init=False, repr=False)  # accuracy, or minus the loss
    epochs_without_gain: int = field(default=0, init=False, repr=False)
    _index: GroupIndex | None = field(default=None, init=False, repr=False, compare=False)  # of `groups`

    def __post_init__(self) -> None:
        self.warmup = checked_integer("warmup", self.warmup, 1)
        self.patience = checked_integer("patience", self.patience, 1)
        for name in ("rate", "most_waiting", "recall_rate", "min_gain", "alpha"):
            setattr(self, name, checked_share(name, getattr(self, name), zero=True))
        self.confidence = checked_probability("confidence", self.confidence)
        check_one_of("recall", self.recall, ("random", None))
        check_one_of("bottleneck", self.bottleneck, ("auto", "cpu", "io"))
        check_one_of("entropy", self.entropy, ("cross_entropy", "cross_entropy_of_iowa"))
        check_one_of("copies", self.copies, ("remove", "repeat", None))
        if self.most_waiting == 1:
            raise ArgumentError("most_waiting must be below 1, or no samples are left to train on; got 1")
        if (self.groups is None) != (self.copies is None):
            raise ArgumentError(
                "groups= and copies= must be given together: the near-duplicates, and what to do with them"
            )
        if isinstance(self.groups, RedundantGroups):
            self.groups = self.groups.numbers()
        elif self.groups is not None:
            self.groups = np.asarray(self.groups, dtype=np.int64)
        if self.criteria is not None:
            given: object = self.criteria  # A single name is taken as well.
            self.criteria = (given,) if isinstance(given, str) else tuple(self.criteria)
            for name in self.criteria:
                check_one_of("criteria", name, CRITERIA)
            if not self.criteria:
                raise ArgumentError(f"criteria must name some of {CRITERIA}, but got none")

    @classmethod
    def preset(cls, name: str, **parameters: object) -> Buckets:
        """One of IOWA's variants by name, as published; `parameters` override those of the variant.

        "BS-norecall", "BS-random", "BS-random-RRemove" and "BS-random-RRepeat"; the last two need `groups`.
        All score by −P · log2 P, and move the least important out however unsure the model is of them: what
        `Buckets()` does otherwise by default is ours.

        >>> Buckets.preset("BS-norecall", rate=0.1).recall is None
        True
        """
        check_one_of("name", name, tuple(PRESETS))
        if "copies" in PRESETS[name] and parameters.get("groups") is None:
            raise ArgumentError(f"{name} needs groups=, as rekindle.find_redundancy returns them")
        combined: dict[str, Any] = {**PRESETS[name], **parameters}
        return cls(**combined)

    def wants_load_times(self, epoch: int) -> bool:
        """True where loading costs count."""
        if self.criteria is not None:
            return "io" in self.criteria
        return self.bottleneck == "io" or (self.decided == "io" and epoch >= self.warmup - 1)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The samples in process; near-duplicates as `copies` says."""
        index = self._group_index(len(scores))
        if self.waiting is None:
            self.waiting = np.zeros(len(scores), dtype=bool)
        if not self.decided and epoch >= self.warmup - 1:
            self.decided = self._bottleneck(scores)
        if epoch >= self.warmup:
            self._move(epoch, scores, self.waiting)
        ids = ids_where(~self.waiting)
        if index is not None and epoch >= self.warmup:
            present = ids.astype(np.int64)
            representatives = index.representatives(present, scores.uniforms(epoch, draw=2))
            ids = representatives if self.copies == "repeat" else ids[ids == representatives]
        return ids, None

    def _group_index(self, size: int) -> GroupIndex | None:
        if self._index is None and isinstance(self.groups, np.ndarray):
            if self.groups.shape != (size,):
                raise ArgumentError(
                    f"groups must have a number for each of the {size} samples, but the shape is "
                    f"{self.groups.shape}"
                )
            self._index = GroupIndex.of(self.groups)
        return self._index

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
        if self._stagnates(scores) and self.recall is not None and waiting.any():
            self.stage, self.epochs_without_gain = 3, 0
            candidates = np.flatnonzero(waiting)
            places = scores.order(epoch, len(candidates)).forward(np.arange(len(candidates)))
            waiting[candidates[places < share_of(size, self.recall_rate)]] = False
            return
        self.stage = 2
        room = int(self.most_waiting * size) - int(np.count_nonzero(waiting))
        count = max(0, min(share_of(size, self.rate), room))
        able = 0

        def keep_the_others(part: slice, values: NDArray[np.float32]) -> None:
            nonlocal able
            if size >= MANY:
                from rekindle.choose.importance import compiled_criteria

                of_part = scores.probability[part], waiting[part]
                able += compiled_criteria.keep_the_others(values, *of_part, self.confidence)
                return
            may_wait = scores.probability[part] >= np.float32(self.confidence)
            may_wait &= ~waiting[part]
            may_wait &= np.isfinite(values)
            able += int(np.count_nonzero(may_wait))
            np.putmask(values, ~may_wait, np.float32(np.inf))

        found = importance(scores, self._criteria(scores), self.alpha, keep_the_others)
        waiting |= are_lowest(
            lambda part: found.rounded[part],
            size,
            min(count, able),
            lambda ids: scores.uniforms(epoch, draw=1, ids=ids),
            found.exactly,
            found.levels,
        )

    def _stagnates(self, scores: Scores) -> bool:
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
            return (self.entropy,)
        logits = any_known(scores.rival)
        return (self.entropy, "margin", "io") if logits else (self.entropy, "io")

    def describe(self) -> dict[str, object]:
        """The stage, how many samples wait, and the bottleneck."""
        waiting = 0 if self.waiting is None else int(self.waiting.sum())
        return {
            "stage": f"{self.stage}: {_STAGES[self.stage - 1]}",
            "waiting": waiting,
            "bottleneck": self.decided or "not known yet",
        }

    def state_dict(self) -> BucketsState:
        """What it remembers from epoch to epoch."""
        return {
            "waiting": None if self.waiting is None else self.waiting.copy(),
            "stage": self.stage,
            "decided": self.decided,
            "best": self.best,
            "epochs_without_gain": self.epochs_without_gain,
        }

    def load_state_dict(self, state: MethodState) -> None:
        """Continue from a saved state; StateError if it is not valid."""
        fields = StateFields(state, "importance_state.own")
        waiting, decided = fields.get("waiting"), fields.get("decided")
        if waiting is not None and (not isinstance(waiting, np.ndarray) or waiting.dtype != np.bool_):
            fields.refuse("waiting", f"expected an array of booleans, but got {shown(waiting)}")
        if waiting is not None and waiting.sum() > int(self.most_waiting * len(waiting)):
            fields.refuse("waiting", f"more samples wait than most_waiting={self.most_waiting} allows")
        if type(decided) is not str or decided not in ("", "cpu", "io", "auto"):
            fields.refuse("decided", f"expected a bottleneck, but got {shown(decided)}")
        stage, without_gain = fields.integer("stage", 1, len(_STAGES)), fields.integer("epochs_without_gain")
        best = fields.get("best")
        if type(best) is not float:
            fields.refuse("best", f"expected a float, but got {shown(best)}")
        self.waiting = None if waiting is None else waiting.copy()
        self.stage, self.decided, self.best = stage, decided, best
        self.epochs_without_gain = without_gain


class _Preset(TypedDict, total=False):
    confidence: float
    entropy: Literal["cross_entropy_of_iowa"]
    recall: None
    copies: Literal["remove", "repeat"]


_PUBLISHED: _Preset = {"confidence": 0, "entropy": "cross_entropy_of_iowa"}
PRESETS: dict[str, _Preset] = {
    "BS-norecall": {**_PUBLISHED, "recall": None},
    "BS-random": _PUBLISHED,
    "BS-random-RRemove": {**_PUBLISHED, "copies": "remove"},
    "BS-random-RRepeat": {**_PUBLISHED, "copies": "repeat"},
}
