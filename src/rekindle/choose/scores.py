"""What is known of every sample: how the model did on it last, and what it costs to load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle import keys

_UNKNOWN: dict[str, tuple[type[np.generic], float]] = {
    "loss": (np.float32, np.nan),
    "probability": (np.float32, np.nan),
    "rival": (np.float32, np.nan),
    "correct": (np.int8, -1),
    "epoch": (np.int32, -1),
    "age": (np.int32, -1),
    "count": (np.int32, 0),
    "mean": (np.float64, 0),
    "squares": (np.float64, 0),
    "forgotten": (np.int32, 0),
    "load_seconds": (np.float32, np.nan),
    "nbytes": (np.int64, -1),
    "loads": (np.int32, 0),
    "uses": (np.int64, 0),
    "turns": (np.int64, 0),
}
_LOADS_REMEMBERED = 4


class Measured(NamedTuple):
    """How the model did on some samples: an entry for each; NaN and −1 where it is not known."""

    ids: NDArray[np.int64]
    loss: NDArray[np.float32]
    probability: NDArray[np.float32]
    rival: NDArray[np.float32]
    correct: NDArray[np.int8]
    age: NDArray[np.int32]


class Loaded(NamedTuple):
    """What loading some samples cost: an entry for each."""

    ids: NDArray[np.int64]
    seconds: NDArray[np.float32]
    nbytes: NDArray[np.int64]


@dataclass(slots=True)
class Scores:
    """All that a method may base its choice on. Arrays have one entry a sample.

    Attributes:
        seed: The loader's.
        loss: The loss when it was measured last; NaN if it never was. All that follows is of then, too.
        probability: What the model gave the right class: from logits, or, for plain losses, exp(−loss), which
            takes the loss for a cross-entropy.
        rival: The largest probability of a wrong class; NaN unless logits were given.
        correct: 1 or 0; −1 unless logits were given.
        epoch: When that was; −1 for never.
        age: How often the cached part of the sample's view had been used before then (0: made anew). Reused
            views have lower losses.
        count: In how many epochs it was measured.
        mean, squares: Of its probabilities in these epochs: the mean, and the sum of squared distances to it.
        forgotten: How often it was right in one measurement and wrong in the next.
        load_seconds: What loading it takes, a mean that favours the last four times; NaN if not measured.
        nbytes: How large it is; −1 if not measured.
        loads: How often loading was measured.
        uses: In how many epochs, this one included, it was chosen.
        turns: In how many of them its cached part was used: that of all near-copies that share one.
        wait_seconds, work_seconds: How long the training loops waited for batches and worked on them.

    """

    seed: int
    loss: NDArray[np.float32]
    probability: NDArray[np.float32]
    rival: NDArray[np.float32]
    correct: NDArray[np.int8]
    epoch: NDArray[np.int32]
    age: NDArray[np.int32]
    count: NDArray[np.int32]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    forgotten: NDArray[np.int32]
    load_seconds: NDArray[np.float32]
    nbytes: NDArray[np.int64]
    loads: NDArray[np.int32]
    uses: NDArray[np.int64]
    turns: NDArray[np.int64]
    wait_seconds: float = 0.0
    work_seconds: float = 0.0

    @classmethod
    def unknown(cls, size: int, seed: int) -> Scores:
        """The scores before anything was measured."""
        arrays: dict[str, Any] = {
            name: np.full(size, value, dtype=kind) for name, (kind, value) in _UNKNOWN.items()
        }
        return cls(seed=seed, **arrays)

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which samples were measured at all."""
        return self.epoch >= 0

    @property
    def accuracy(self) -> float:
        """The share that was right when measured last, of those of which it is known; NaN for none."""
        told = self.correct >= 0
        return float(self.correct[told].mean(dtype=np.float64)) if told.any() else float("nan")

    @property
    def mean_loss(self) -> float:
        """The mean of all samples' last losses; NaN if there are none."""
        return float(self.loss[self.known].mean(dtype=np.float64)) if self.known.any() else float("nan")

    @property
    def variance(self) -> NDArray[np.float64]:
        """The variance of each sample's probabilities over the epochs; 0 for fewer than two."""
        return self.squares / np.maximum(self.count - 1, 1)

    def uniforms(self, epoch: int, draw: int = 0) -> NDArray[np.float64]:
        """A random number in [0, 1) for every sample: the same for the same seed, epoch and draw."""
        step = keys.Step.CHOICE + draw
        return keys.uniforms(self.seed, np.arange(len(self)), epoch, step)[:, 0]

    def permutation(self, epoch: int, draw: int = 0) -> NDArray[np.int64]:
        """A random order of all samples: the same for the same seed, epoch and draw."""
        return np.argsort(self.uniforms(epoch, draw), kind="stable")

    def note(self, epoch: int, measured: Measured) -> None:
        """Take in the measurements of an epoch; of several of one sample, the last. Leaves out NaN losses."""
        rows = _last_of_each(measured.ids, np.isfinite(measured.loss))
        ids = measured.ids[rows]
        correct, loss = measured.correct[rows], measured.loss[rows]
        probability = measured.probability[rows]
        probability = np.where(np.isnan(probability), np.exp(-np.maximum(loss, 0)), probability)
        self.forgotten[ids] += (self.correct[ids] == 1) & (correct == 0)
        self.loss[ids], self.probability[ids] = loss, probability
        self.rival[ids], self.correct[ids] = measured.rival[rows], correct
        self.epoch[ids], self.age[ids] = epoch, measured.age[rows]
        self.count[ids] += 1
        before = probability - self.mean[ids]
        self.mean[ids] += before / self.count[ids]
        self.squares[ids] += before * (probability - self.mean[ids])

    def note_loads(self, loaded: Loaded) -> None:
        """Take in what loading samples cost; of several loads of one sample, the last."""
        rows = _last_of_each(loaded.ids, np.isfinite(loaded.seconds))
        ids, seconds = loaded.ids[rows], loaded.seconds[rows]
        self.loads[ids] += 1
        before = np.where(self.loads[ids] == 1, seconds, self.load_seconds[ids])
        share = np.minimum(self.loads[ids], _LOADS_REMEMBERED)
        self.load_seconds[ids] = before + (seconds - before) / share
        self.nbytes[ids] = loaded.nbytes[rows]


def _last_of_each(ids: NDArray[np.int64], good: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The row of each id's last good entry."""
    rows = np.flatnonzero(good)[::-1]
    return rows[np.unique(ids[rows], return_index=True)[1]]


def array_kinds() -> dict[str, np.dtype[Any]]:
    """The names of the arrays of scores and their types: what a state holds of them."""
    return {name: np.dtype(kind) for name, (kind, _) in _UNKNOWN.items()}
