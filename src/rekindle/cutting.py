"""Where a loader's data set is cut in two: as it was asked for, or as measuring says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.utils.data import Subset

from rekindle import keys
from rekindle.errors import ArgumentError
from rekindle.global_random import STREAMS
from rekindle.reuse import Echo, Refurbish
from rekindle.reuse.choice import choose_cut, known_outcomes, parts_that_can_be_made
from rekindle.reuse.codecs import find_codec
from rekindle.reuse.cuts import (
    BEFORE_DECODING,
    Cut,
    Finished,
    ForeignCut,
    NativeCut,
    can_be_cut,
    cut_foreign,
    described,
    not_cuttable,
)
from rekindle.reuse.diversity import Diversity, refurbished
from rekindle.reuse.layers import Layer, end_of, find_split, layers_of
from rekindle.reuse.store import memory_budget
from rekindle.run.load import generators_kept
from rekindle.run.native import device_steps, for_workers, is_native
from rekindle.same_when_cut import check_cut

_TRIED = 8  # samples, of which one should be fit to judge by


class Cutting:
    """A data set, and where it is cut.

    Attributes:
        dataset: What workers load from.
        place: How many layers come before the cut; None as long as that is not decided.

    """

    def __init__(
        self,
        dataset: Any,
        asked: Refurbish | Echo | None,
        final_transform: Callable[[Any], Any] | None,
    ) -> None:
        self._asked, self._final_transform = asked, final_transform
        self.dataset = for_workers(dataset, without_device_steps=True)
        self._native = is_native(self.dataset) and final_transform is None
        self._on_device = device_steps(dataset)
        self.place: int | None = None
        self.look()

    def look(self) -> None:
        """Find the steps, and the place that was asked for among them; again, if the data set was changed."""
        has_layers = self._final_transform is None and (self._native or can_be_cut(self.dataset))
        self._layers: list[Layer] = layers_of(self.dataset) if has_layers else []
        self._last_place = len(self._layers) if self._on_device is None else self._on_device.layers_before
        self._outcomes: list[float] = []
        asked_for = None if self._asked is None else self._place_asked_for(self._asked)
        if asked_for is not None or (self.place or 0) > self._last_place:
            self.place = asked_for

    def _place_asked_for(self, asked: Refurbish | Echo) -> int | None:
        if self._final_transform is not None or (isinstance(asked, Echo) and asked.after == "batch"):
            return 0
        cuttable = self._native or can_be_cut(self.dataset)
        if isinstance(asked, Refurbish):
            if not cuttable:
                raise not_cuttable(self.dataset, "reuse=Refurbish(…)")
            return None if asked.split == "auto" else self._possible(find_split(self._layers, asked.split))
        if asked.after == "read":
            return BEFORE_DECODING if self._native else 0
        if asked.after == "decode" or not cuttable:
            return 0
        if asked.after == "augment":
            return min(_last_random(self._layers) + 1, self._last_place)
        return self._possible(end_of(self._layers, asked.after))

    def _possible(self, place: int) -> int:
        """A place, if what comes before it is made by workers."""
        if place > self._last_place:
            raise ArgumentError(
                f"{self._asked!r} would keep what {self._layers[self._last_place]} makes, which is left to "
                "the device. Name a step before it, or open the data set with place='cpu'."
            )
        return place

    def decide(self, memory: Any, seed: int) -> None:
        """Measure where to cut, if that was not said or decided before."""
        if self.place is not None:
            return
        assert isinstance(self._asked, Refurbish)
        codec = find_codec(self._asked.codec)
        with generators_kept(STREAMS):
            best = choose_cut(
                self._layers,
                self._cut_at,
                lambda value: codec.pack(value).nbytes,
                self._asked,
                size=len(self.dataset),
                capacity=memory_budget(memory) if self._asked.disk is None else math.inf,
                last=self._last_place,
                seed=seed,
            )
        self.place = best.place

    def cut(self) -> Cut:
        """The data set in two."""
        return self._cut_at(self.place or 0)

    def _cut_at(self, place: int) -> Cut:
        if self._final_transform is not None:
            if isinstance(self._asked, Echo) and self._asked.after == "augment":
                return ForeignCut(Finished(self.dataset, self._final_transform), None)
            return ForeignCut(self.dataset, self._final_transform)
        if self._native:
            return NativeCut(self.dataset, place)
        if can_be_cut(self.dataset):
            return cut_foreign(self.dataset, place)
        return ForeignCut(self.dataset, None)

    def first_steps(self) -> list[str]:
        """The steps before the cut, in words."""
        if self._final_transform is not None:
            return [repr(_transform_of(self.dataset))]
        return [repr(layer.step) for layer in self._layers[: self.place]]

    def check(self) -> None:
        """ArgumentError if a data set gives something else when it is cut."""
        if not self._native and self._final_transform is None and can_be_cut(self.dataset):
            check_cut(self.dataset, self.cut(), f"{self._asked!r}, cut {self.described()}")

    def described(self) -> str:
        """The cut in words."""
        if self._final_transform is not None:
            return "before final_transform"
        return "not decided yet" if self.place is None else described(self._layers, self.place)

    def expected(self, epochs: int) -> Diversity | None:
        """Distinct views a sample, from the formulas; None if it is not known what steps there are."""
        if self._asked is None or self.place is None or self.place < 0 or not self._layers:
            return None
        outcomes = self._known_outcomes()
        uses = epochs * (self._asked.factor if isinstance(self._asked, Echo) else 1)
        return refurbished(math.prod(outcomes), math.prod(outcomes[self.place :]), self._asked.factor, uses)

    def _known_outcomes(self) -> list[float]:
        """How many distinct outcomes each layer has."""
        size = len(self.dataset)
        if not self._outcomes and size:
            some = keys.permutation(size, 0, 0)[:_TRIED].tolist()
            with generators_kept(STREAMS):
                index = next(iter(parts_that_can_be_made(self._cut_at(0), some)), 0)
                self._outcomes = known_outcomes(self._layers, self._cut_at, index)
        return self._outcomes


def _transform_of(dataset: Any) -> Any:
    if isinstance(dataset, Subset):
        return _transform_of(dataset.dataset)
    return getattr(dataset, "transform", None)


def _last_random(layers: list[Layer]) -> int:
    """The last layer that has more than one outcome."""
    for place in range(len(layers) - 1, -1, -1):
        outcomes = layers[place].diversity
        if outcomes is None or outcomes > 1:
            return place
    return len(layers) - 1
