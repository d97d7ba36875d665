"""Whether a data set that is cut at its Compose gives the same samples as it does in one piece."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch.utils.data import Subset

from rekindle import keys
from rekindle.errors import ArgumentError
from rekindle.global_random import STREAMS
from rekindle.reuse.cuts import Cut
from rekindle.reuse.diversity import view_hash
from rekindle.run.load import generators_kept

_TRIED = 8  # samples, of which one should be fit to judge by


def check_cut(dataset: Any, cut: Cut, wanted: str) -> None:
    """ArgumentError, which says what was `wanted`, if one sample shows that the cut changes the data."""
    for index in keys.permutation(len(dataset), 0, 0)[:_TRIED].tolist():
        same = _same(_copied(dataset), cut, index)
        if same:
            return
        if same is not None:
            raise ArgumentError(
                f"{wanted}: {type(dataset).__name__} gives something else then. Its `transform` must work on "
                "the first part of a sample and on nothing else (not on two views, or in a dict). Move what "
                "is to be done anew each time out of the data set, into DataLoader(final_transform=…)."
            )


def _same(dataset: Any, cut: Any, index: int) -> bool | None:
    """Whether a sample is the same, cut or not; None if it cannot be made, or is another each time."""
    with generators_kept(STREAMS):
        states = [stream.save() for stream in STREAMS]

        def drawn_alike(make: Callable[[], Any]) -> bytes:
            for stream, state in zip(STREAMS, states, strict=True):
                stream.restore(state)
            return view_hash(make())

        try:
            whole = drawn_alike(lambda: dataset[index])
            if drawn_alike(lambda: dataset[index]) != whole:
                return None
        except Exception:  # Workers will tell.
            return None
        try:
            return drawn_alike(lambda: cut.finish(cut.partial(index))) == whole
        except Exception:
            return False


def _copied(dataset: Any) -> Any:
    """A shallow copy: a file that is opened with the first sample is not passed on to workers."""
    if isinstance(dataset, Subset):
        return Subset(_copied(dataset.dataset), dataset.indices)
    return copy.copy(dataset)
