"""Where a loader's dataset is split in two: as it was asked for, or as measuring says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Subset

from rekindle.choose.agreement import decided_by_first_rank
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.errors import ArgumentError
from rekindle.prepare.native import as_native, device_steps, for_workers
from rekindle.prepare.steps.outcomes import Outcomes
from rekindle.reuse import Echo, Refurbish
from rekindle.reuse.cache.codecs import find_codec
from rekindle.reuse.cache.memory_budget import memory_budget
from rekindle.reuse.compose_search import FoundCompose, find_compose
from rekindle.reuse.diversity import Diversity, in_turn, left_by_reuse
from rekindle.reuse.layers import Layer, Transform, end_of, find_split, layers_of
from rekindle.reuse.settings import STAGES
from rekindle.reuse.split_check import check_split
from rekindle.reuse.split_dataset import (
    BEFORE_DECODING,
    Finished,
    NativeSplit,
    Split,
    TorchSplit,
    cannot_split,
    described,
    split_compose,
)
from rekindle.reuse.split_search import SplitSearch


class SplitPoint:
    """A dataset, and where it is split.

    Attributes:
        dataset: What workers load from.
        index: How many layers come before the split; None as long as that is not decided.
        last: The last index at which it can be split.

    """

    def __init__(
        self,
        dataset: Any,
        asked: Refurbish | Echo | None,
        final_transform: Transform | None,
    ) -> None:
        self._asked, self._final_transform = asked, final_transform
        self.dataset: Any = for_workers(dataset)
        self._native = final_transform is None and as_native(self.dataset) is not None
        self._on_device = device_steps(dataset)
        self.index: int | None = None
        self.look()

    def look(self) -> None:
        """Find the steps, and the split that was asked for among them; again, if the dataset was changed."""
        self._found = FoundCompose(None)
        if self._final_transform is None and not self._native:
            self._found = find_compose(self.dataset)
        self._layers: list[Layer] = layers_of(self.dataset if self._native else self._found.compose)
        self.last = len(self._layers) if self._on_device is None else self._on_device.layers_before
        self._outcomes: list[Outcomes] = []
        asked_for = None if self._asked is None else self._index_asked_for(self._asked)
        if asked_for is not None or (self.index or 0) > self.last:
            self.index = asked_for
        self._checked_at: int | None = None
        if self._asked is not None and self._found.compose is not None:
            self._check(self.index or 0)

    def _index_asked_for(self, asked: Refurbish | Echo) -> int | None:
        if self._final_transform is not None or (isinstance(asked, Echo) and asked.after == "batch"):
            return 0
        has_steps = self._native or self._found.compose is not None
        if isinstance(asked, Refurbish):
            if not has_steps:
                raise cannot_split("reuse=Refurbish(…)", self._found.reason)
            return None if asked.split == "auto" else self._possible(find_split(self._layers, asked.split))
        if asked.after == "read":
            return BEFORE_DECODING if self._native else 0
        if asked.after == "decode" or (asked.after in STAGES and not has_steps):
            return 0
        if asked.after == "augment":
            return min(_last_random(self._layers) + 1, self.last)
        return self._possible(end_of(self._layers, asked.after))

    def _possible(self, index: int) -> int:
        """A split point, if workers do what comes before it."""
        if index > self.last:
            raise ArgumentError(
                f"{self._asked!r} would cache what {self._layers[self.last]} makes, which is left to "
                "the device. Name a step before it, or open the dataset with place='cpu'."
            )
        return index

    def decide(self, memory: Any, found: Callable[[], int | None] | None = None) -> None:
        """Find where to split, if that was not given or decided before.

        `found` tells where jobs split with which this one shares a cache; rank 0 asks it.
        """
        if self.index is not None:
            return
        assert isinstance(self._asked, Refurbish)
        # What memory is available changes from run to run: only a number that was given counts.
        limited = self._asked.disk is None and memory != "auto"
        capacity = memory_budget(memory) if limited else math.inf
        with generators_kept(GENERATORS):
            search, asked = self._search(), self._asked

            def choose() -> int:
                theirs = None if found is None else found()
                return search.choose(asked, capacity).index if theirs is None else theirs

            if search.measures or found is not None:
                self.index = decided_by_first_rank("the split point", choose)
            else:
                self.index = choose()

    def _search(self) -> SplitSearch:
        codec = find_codec(self._asked.codec if isinstance(self._asked, Refurbish) else "raw")
        return SplitSearch(
            self._layers,
            self._split_at,
            lambda value: codec.pack(value).nbytes,
            len(self.dataset),
            self.last,
        )

    def split(self) -> Split:
        """The dataset in two."""
        return self._split_at(self.index or 0)

    def _split_at(self, index: int) -> Split:
        if self._final_transform is not None:
            if isinstance(self._asked, Echo) and self._asked.after == "augment":
                return TorchSplit(Finished(self.dataset, self._final_transform), None)
            return TorchSplit(self.dataset, self._final_transform)
        if self._native:
            return NativeSplit(self.dataset, index)
        if self._found.compose is not None:
            return split_compose(self.dataset, self._found, *self._steps_at(index))
        return TorchSplit(self.dataset, None)

    def _steps_at(self, index: int) -> tuple[list[Transform], list[Transform]]:
        """The steps before a split point, and those after it."""
        steps = [layer.step for layer in self._layers]
        return steps[:index], steps[index:]

    def first_steps(self) -> Sequence[object]:
        """The steps before the split."""
        if self._final_transform is not None:
            return [_transform_of(self.dataset)]
        return [layer.step for layer in self._layers[: self.index]]

    def checked_split(self) -> Split:
        """The dataset in two; ArgumentError if that changes what it gives."""
        if self._found.compose is not None:
            self._check(self.index or 0)
        return self.split()

    def _check(self, index: int) -> None:
        """ArgumentError if splitting the Compose here changes what the dataset gives."""
        if self._checked_at == index or (isinstance(self._asked, Echo) and self._asked.after == "batch"):
            return
        wanted = f"{self._asked!r}, split {described(self._layers, index)}"
        check_split(self.dataset, self._found, *self._steps_at(index), wanted)
        self._checked_at = index

    def described(self) -> str:
        """The split point in words."""
        if self._final_transform is not None:
            return "before final_transform"
        return "not decided yet" if self.index is None else described(self._layers, self.index)

    def expected(self, epochs: int) -> Diversity | None:
        """Distinct views a sample, from the formulas; None if it is not known what steps there are."""
        if self._asked is None or self.index is None or self.index < 0 or not self._layers:
            return None
        outcomes = self._known_outcomes()
        uses = epochs * (self._asked.factor if isinstance(self._asked, Echo) else 1)
        first, last = in_turn(outcomes[: self.index]), in_turn(outcomes[self.index :])
        return left_by_reuse(first, last, self._asked.factor, uses)

    def _known_outcomes(self) -> list[Outcomes]:
        """How probable the outcomes of each layer are."""
        if not self._outcomes and len(self.dataset):
            with generators_kept(GENERATORS):
                self._outcomes = self._search().outcomes()
        return self._outcomes


def _transform_of(dataset: object) -> object:
    if isinstance(dataset, Subset):
        return _transform_of(dataset.dataset)
    return getattr(dataset, "transform", None)


def _last_random(layers: list[Layer]) -> int:
    """The last layer that has more than one outcome."""
    for index in range(len(layers) - 1, -1, -1):
        outcomes = layers[index].diversity
        if outcomes is None or outcomes > 1:
            return index
    return len(layers) - 1
