"""What `native=` makes of a dataset: its native equivalent where there is one."""

from __future__ import annotations

import logging
from typing import Any, Literal, NamedTuple

from rekindle.errors import ArgumentError
from rekindle.prepare.native import as_native
from rekindle.prepare.translate import translated

Native = bool | Literal["auto"]

_LOGGER = logging.getLogger("rekindle")


class ToLoad(NamedTuple):
    """What workers load from, and what `native="auto"` came to: empty if that was not given."""

    dataset: Any
    outcome: str = ""


def dataset_to_load(dataset: object, native: Native) -> ToLoad:
    """The dataset, or its native equivalent, which follows changes of the dataset.

    ArgumentError if it must have one and has none.
    """
    if not isinstance(native, bool) and native != "auto":
        raise ArgumentError(f'native must be True, False or "auto", but got {native!r}')
    if native is False or as_native(dataset) is not None:
        return ToLoad(dataset)
    name = type(dataset).__name__
    try:
        found = translated(dataset)
    except ArgumentError as error:
        if native is True:
            raise ArgumentError(f"native=True: {error}") from None
        lines = [line.strip() for line in str(error).splitlines()]
        reasons = "; ".join(lines[1:-1] or lines)
        return _logged(ToLoad(dataset, f"{name} is loaded as it is: {reasons}"))
    if native is True:
        return ToLoad(found)
    return _logged(ToLoad(found, f"{name} is loaded natively, by {_in_one_line(found.transform)}"))


def _logged(chosen: ToLoad) -> ToLoad:
    _LOGGER.info("native='auto': %s", chosen.outcome)
    return chosen


def _in_one_line(transform: Any) -> str:
    return ", ".join(type(step).__name__ for step in transform.transforms)
