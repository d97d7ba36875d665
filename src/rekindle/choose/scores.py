"""What is known of every sample: how the model did on it last, and what it costs to load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.keyed_permutation import Permutation, keyed_permutation

_LOADS_REMEMBERED = 4
STRETCH = 1 << 16  # samples that stay in the processor's cache while something is computed of them
MANY = 1 << 23  # things from which on compiling the loop over their order pays
_ALWAYS_KEPT = frozenset({"loss", "epoch", "uses"})
_COUNTED_IN_16_BITS = 32_000
_Number = TypeVar("_Number", bound=np.number)
# What arrays take where a method says which ones it reads: few bytes a sample.
_COMPACT: dict[str, type[np.number]] = {
    **dict.fromkeys(("epoch", "age", "count", "forgotten", "uses", "turns", "made"), np.int16),
    **dict.fromkeys(("mean", "squares", "nbytes"), np.float32),
    "load_seconds": np.float16,
    "loads": np.uint8,
}
_LARGEST = {"load_seconds": 60_000.0, "loads": 255}  # that these can hold; it stands for all that is larger


def stretches(size: int) -> Iterator[slice]:
    """All samples, some at a time: what is computed of them on the way takes no memory for each.

    >>> [(part.start, part.stop) for part in stretches(100_000)]
    [(0, 65536), (65536, 100000)]
    """
    return (slice(start, min(start + STRETCH, size)) for start in range(0, size, STRETCH))


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


class Findings(NamedTuple):
    """What was measured in an epoch: how the model did, what loading cost, how the loop spent its time."""

    measured: Measured
    loaded: Loaded
    wait_seconds: float
    work_seconds: float

    @classmethod
    def of(cls, parts: Sequence[Findings]) -> Findings:
        """Findings of one epoch, in the order in which they were made."""
        measured = zip(*(part.measured for part in parts), strict=True)
        loaded = zip(*(part.loaded for part in parts), strict=True)
        return cls(
            Measured(*(np.concatenate(column) for column in measured)),
            Loaded(*(np.concatenate(column) for column in loaded)),
            sum(part.wait_seconds for part in parts),
            sum(part.work_seconds for part in parts),
        )


@dataclass(slots=True)
class Scores:
    """All that a method may base its choice on. Arrays have one entry per sample.

    Attributes:
        seed: The loader's.
        loss: The loss when it was measured last; NaN if it never was. All that follows is of then, too.
        probability: That of the right class: from logits, or, for plain losses, exp(−loss), which takes the
            loss for a cross-entropy.
        rival: The largest probability of a wrong class; NaN unless logits were given.
        correct: 1 or 0; −1 unless logits were given.
        epoch: When that was; −1 for never.
        age: How often the cached part of the sample's view had been used before then (0: recomputed). Reused
            views have lower losses.
        count: In how many epochs it was measured.
        mean, squares: Of its probabilities in these epochs: the mean, and the sum of squared distances to it.
        forgotten: How often it was right in one measurement and wrong in the next.
        load_seconds: How long loading takes, a mean that favours the last four times; NaN if not measured.
        nbytes: How large it is; −1 if not measured.
        loads: How often loading was measured.
        uses: In how many epochs, this one included, it was chosen.
        turns: In how many of them its cached part was used: that of all near-duplicates that share one.
        made: How often it had been chosen before its cached part was computed last; −1 for never.
        wait_seconds, work_seconds: How long the training loops waited for batches and worked on them.
        kept: The arrays that are kept, for a method that reads no others; None for all. The others take no
            memory, and have the values of samples that were never measured. Those that are kept are then
            compact: counts have 16 bits until one needs more, `loads` goes up to 255, means and sizes are
            32-bit floats, times to load 16-bit ones; and `turns` is `uses`, unless it is kept by its name.

    """

    seed: int
    loss: NDArray[np.float32]
    probability: NDArray[np.float32]
    rival: NDArray[np.float32]
    correct: NDArray[np.int8]
    epoch: NDArray[np.signedinteger]
    age: NDArray[np.signedinteger]
    count: NDArray[np.signedinteger]
    mean: NDArray[np.floating]
    squares: NDArray[np.floating]
    forgotten: NDArray[np.signedinteger]
    load_seconds: NDArray[np.floating]
    nbytes: NDArray[np.number]
    loads: NDArray[np.integer]
    uses: NDArray[np.signedinteger]
    turns: NDArray[np.signedinteger]
    made: NDArray[np.signedinteger]
    wait_seconds: float = 0.0
    work_seconds: float = 0.0
    kept: frozenset[str] | None = None

    @classmethod
    def unknown(cls, size: int, seed: int, kept: frozenset[str] | None = None) -> Scores:
        """The scores before anything was measured."""
        kept = None if kept is None else kept | _ALWAYS_KEPT

        def full(name: str, value: float, dtype: type[_Number]) -> NDArray[_Number]:
            if kept is None:
                return np.full(size, value, dtype=dtype)
            one = cast("NDArray[_Number]", np.asarray(value, dtype=_COMPACT.get(name, dtype)))
            return np.full(size, one) if name in kept else np.broadcast_to(one, size)

        uses = full("uses", 0, np.int32)
        return cls(
            kept=kept,
            seed=seed,
            loss=full("loss", np.nan, np.float32),
            probability=full("probability", np.nan, np.float32),
            rival=full("rival", np.nan, np.float32),
            correct=full("correct", -1, np.int8),
            epoch=full("epoch", -1, np.int32),
            age=full("age", -1, np.int32),
            count=full("count", 0, np.int32),
            mean=full("mean", 0, np.float64),
            squares=full("squares", 0, np.float64),
            forgotten=full("forgotten", 0, np.int32),
            load_seconds=full("load_seconds", np.nan, np.float32),
            nbytes=full("nbytes", -1, np.int64),
            loads=full("loads", 0, np.int32),
            uses=uses,
            turns=full("turns", 0, np.int32) if kept is None or "turns" in kept else uses,
            made=full("made", -1, np.int32),
        )

    def __len__(self) -> int:
        return len(self.loss)

    def arrays(self) -> dict[str, NDArray[np.number]]:
        """All arrays by name, themselves and not copies: what a checkpoint holds of scores."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def make_room(self, count: int) -> None:
        """Let counts have 32 bits if this one, or one that is there, is about to need more than 16."""
        small = [
            (name, array)
            for name, array in self.arrays().items()
            if array.dtype == np.int16 and array.flags.writeable
        ]
        if max([count, *(int(array.max(initial=0)) for _, array in small)]) < _COUNTED_IN_16_BITS:
            return
        shared = self.turns is self.uses
        for name, array in small:
            setattr(self, name, array.astype(np.int32))
        if shared:
            self.turns = self.uses

    def restore(self, name: str, values: NDArray[np.number]) -> None:
        """Set one of the arrays that are kept, as far as it can hold these values."""
        kind = getattr(self, name).dtype
        if kind == np.int16:
            self.make_room(int(values.max(initial=0)))
        elif kind == _COMPACT.get(name) and name in _LARGEST:
            values = np.minimum(values, _LARGEST[name])
        getattr(self, name)[:] = values

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which samples were measured at all."""
        return self.epoch >= 0

    @property
    def accuracy(self) -> float:
        """The share that was right when measured last, among those with logits; NaN for none."""
        with_logits = right = 0
        for part in stretches(len(self)):
            if self._keeps("correct"):
                correct = self.correct[part]
                with_logits += int(np.count_nonzero(correct >= 0))
                right += int(np.count_nonzero(correct == 1))
            else:
                with_logits += int(np.count_nonzero(self.rival[part] >= 0))
                right += int(np.count_nonzero(self.probability[part] > self.rival[part]))
        return right / with_logits if with_logits else float("nan")

    @property
    def mean_loss(self) -> float:
        """The mean of all samples' last losses; NaN if there are none."""
        total, count = 0.0, 0
        for part in stretches(len(self)):
            known = self.loss[part][self.epoch[part] >= 0]
            total, count = total + float(known.sum(dtype=np.float64)), count + len(known)
        return total / count if count else float("nan")

    def last_losses(self, part: slice) -> NDArray[np.float32]:
        """The last losses of some samples; infinite where none is known."""
        return np.where(self.epoch[part] >= 0, self.loss[part], np.float32(np.inf))

    @property
    def variance(self) -> NDArray[np.floating]:
        """The variance of each sample's probabilities over the epochs; 0 for fewer than two."""
        found: NDArray[np.floating] = self.squares / np.maximum(self.count - 1, 1)
        return found

    def uniforms(
        self, epoch: int, draw: int = 0, ids: NDArray[np.integer] | None = None
    ) -> NDArray[np.float64]:
        """A random number in [0, 1) for every sample: the same for the same seed, epoch and draw.

        With `ids`, those of these samples alone.
        """
        step, count = counter_rng.Step.CHOICE + draw, len(self) if ids is None else len(ids)
        drawn = np.empty(count)
        for part in stretches(count):
            samples = np.arange(part.start, part.stop) if ids is None else ids[part]
            drawn[part] = counter_rng.uniforms(self.seed, samples, epoch, step)[:, 0]
        return drawn

    def order(self, epoch: int, size: int, draw: int = 0) -> Permutation:
        """A random order of `size` things, as a function: the same for the same seed, epoch and draw.

        Those whose place in it is below n are n of them, drawn without replacement.
        """
        order = keyed_permutation(
            size, counter_rng.base(self.seed, counter_rng.Step.CHOICE_ORDER + draw, epoch)
        )
        if size < MANY:
            return order
        from rekindle.core.permutation_kernel import CompiledPermutation

        return CompiledPermutation(order)

    def permutation(self, epoch: int, draw: int = 0) -> NDArray[np.int64]:
        """A random order of all samples: the same for the same seed, epoch and draw."""
        return np.argsort(self.uniforms(epoch, draw), kind="stable")

    def update(self, epoch: int, findings: Findings) -> None:
        """Take in all that was measured in an epoch."""
        self.note(epoch, findings.measured)
        self.note_loads(findings.loaded)
        self.wait_seconds += findings.wait_seconds
        self.work_seconds += findings.work_seconds

    def note(self, epoch: int, measured: Measured) -> None:
        """Take in the measurements of an epoch: of several of one sample, the last; no NaN losses."""
        self.make_room(epoch)
        rows = _last_of_each(measured.ids, np.isfinite(measured.loss))
        ids = measured.ids[rows]
        loss = self.loss[ids] = measured.loss[rows]
        self.epoch[ids] = epoch
        if self._keeps("correct"):
            correct = measured.correct[rows]
            if self._keeps("forgotten"):
                self.forgotten[ids] += (self.correct[ids] == 1) & (correct == 0)
            self.correct[ids] = correct
        if self._keeps("rival"):
            self.rival[ids] = measured.rival[rows]
        if self._keeps("age"):
            self.age[ids] = measured.age[rows]
        if self._keeps("probability") or self._keeps("mean"):
            probability = measured.probability[rows]
            probability = np.where(np.isnan(probability), np.exp(-np.maximum(loss, 0)), probability)
            self._note_probability(ids, probability)

    def _note_probability(self, ids: NDArray[np.int64], probability: NDArray[np.float32]) -> None:
        if self._keeps("probability"):
            self.probability[ids] = probability
        if self._keeps("mean"):
            self.count[ids] += 1
            mean = self.mean[ids].astype(np.float64)  # rounded once it is stored
            before = probability - mean
            mean += before / self.count[ids]
            self.mean[ids] = mean
            self.squares[ids] += before * (probability - mean)

    def _keeps(self, name: str) -> bool:
        return self.kept is None or name in self.kept

    def note_loads(self, loaded: Loaded) -> None:
        """Take in what loading samples cost; of several loads of one sample, the last."""
        if not self._keeps("loads"):
            return
        rows = _last_of_each(loaded.ids, np.isfinite(loaded.seconds))
        ids, seconds = loaded.ids[rows], loaded.seconds[rows]
        loads = self.loads[ids].astype(np.int32) + 1
        before = np.where(loads == 1, seconds, self.load_seconds[ids])
        mean = before + (seconds - before) / np.minimum(loads, _LOADS_REMEMBERED)
        if self.kept is not None:
            loads = np.minimum(loads, _LARGEST["loads"])
            mean = np.minimum(mean, _LARGEST["load_seconds"])
        self.loads[ids], self.load_seconds[ids] = loads, mean
        self.nbytes[ids] = loaded.nbytes[rows]


def _last_of_each(ids: NDArray[np.int64], good: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The row of each id's last good entry."""
    rows = np.flatnonzero(good)[::-1]
    return rows[np.unique(ids[rows], return_index=True)[1]]
