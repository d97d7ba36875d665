"""The order that a user's own sampler gives, exactly as torch would follow it, and resumable."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.choose.orders import BatchOrder, EndOfEpoch
from rekindle.choose.planned_sampler import tell_epoch
from rekindle.global_random import STREAMS


class SamplerOrders:
    """An epoch of a sampler (or batch sampler) that is not ours; an iterator of orders.

    Torch's order depends on the generators at the moment an epoch begins, so what they were is kept, and a
    resumed epoch begins from there: the sampler's indices are drawn again and those that were used already
    are passed over, without loading a sample. A sampler with `state_dict` and `load_state_dict` is resumed
    by these instead.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        batched: bool,
        epoch: int,
        generator: torch.Generator | None,
        base_seed: int | None = None,
        resume: dict[str, Any] | None = None,
    ) -> None:
        """`base_seed` is what persistent workers were seeded with already: torch draws no other."""
        tell_epoch(sampler, epoch)
        self._sampler: Any = sampler
        self._batched, self._epoch = batched, epoch
        self._ended = False
        self._stateful = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
        if resume is None:
            self._step = self._seen = 0
            self._start = _generators(generator)
            self._draws_seed = base_seed is None
            self._iterator, drawn = self._begin(generator)
            self.base_seed = drawn if base_seed is None else base_seed
        else:
            self._step, self._seen = resume["step"], resume["seen"]
            self._start, self.base_seed = resume["start"], resume["base_seed"]
            self._draws_seed = resume["draws_seed"]
            self._iterator = self._resume(resume["sampler"], generator)
        # What resuming after so many batches takes, for all that are not handed over yet.
        self._after: dict[int, tuple[int, Any]] = {}
        self._remember()

    def _begin(self, generator: torch.Generator | None) -> tuple[Iterator[Any], int]:
        """A new pass over the sampler, drawing from the generators what torch draws, in its order."""
        iterator = iter(self._sampler)
        if not self._draws_seed:
            return iterator, 0
        return iterator, int(torch.empty((), dtype=torch.int64).random_(generator=generator))

    def _resume(self, state: Any, generator: torch.Generator | None) -> Iterator[Any]:
        if self._stateful and state is not None:
            self._sampler.load_state_dict(state)
            return iter(self._sampler)
        now = _generators(generator)
        _set_generators(self._start, generator)
        iterator, _ = self._begin(generator)
        for _ in islice(iterator, self._step):
            pass
        if generator is None:  # The global ones are not ours to move; the loader's own goes on from here.
            _set_generators(now, generator)
        return iterator

    def _remember(self) -> None:
        state = copy.deepcopy(self._sampler.state_dict()) if self._stateful else None
        self._after[self._step] = self._seen, state

    def resume_after(self, steps: int) -> dict[str, Any]:
        """What it takes to go on after so many batches of this epoch."""
        seen, state = self._after[steps]
        return {
            "step": steps,
            "seen": seen,
            "start": self._start,
            "base_seed": self.base_seed,
            "draws_seed": self._draws_seed,
            "sampler": state,
        }

    def forget_before(self, steps: int) -> None:
        """Promise not to ask about fewer batches than these."""
        self._after = {step: what for step, what in self._after.items() if step >= steps}

    def __iter__(self) -> SamplerOrders:
        return self

    def __next__(self) -> BatchOrder | EndOfEpoch:
        if self._ended:
            raise StopIteration
        try:
            drawn = next(self._iterator)
        except StopIteration:
            self._ended = True
            return EndOfEpoch(self._epoch)
        indices = list(drawn) if self._batched else [drawn]
        plain = all(type(index) is int for index in indices)
        ids = _as_integers(indices, self._seen)
        order = BatchOrder(self._epoch, self._step, indices, ids, plain)
        self._step += 1
        self._seen += len(indices)
        self._remember()
        return order


def _as_integers(indices: list[Any], seen: int) -> NDArray[np.int64]:
    try:
        return np.fromiter(map(operator.index, indices), dtype=np.int64, count=len(indices))
    except (TypeError, OverflowError):
        return np.arange(seen, seen + len(indices), dtype=np.int64)


def _generators(generator: torch.Generator | None) -> dict[str, torch.Tensor]:
    if generator is not None:
        return {"generator": generator.get_state()}
    return {stream.name: stream.save_tensor() for stream in STREAMS}


def _set_generators(states: dict[str, torch.Tensor], generator: torch.Generator | None) -> None:
    if generator is not None:
        generator.set_state(states["generator"])
        return
    for stream in STREAMS:
        stream.restore_tensor(states[stream.name])
