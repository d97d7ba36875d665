"""What `native=` makes of a dataset: its native equivalent where there is one."""

from __future__ import annotations

import logging
from typing import Any, Literal

from rekindle.errors import ArgumentError
from rekindle.prepare.native import as_native
from rekindle.prepare.translate import translated

Native = bool | Literal["auto"]

_LOGGER = logging.getLogger("rekindle")


def dataset_to_load(dataset: object, native: Native) -> Any:
    """What workers load from: the dataset, or its native equivalent, which follows changes of the dataset.

    ArgumentError if it must have one and has none.
    """
    if not isinstance(native, bool) and native != "auto":
        raise ArgumentError(f'native must be True, False or "auto", but got {native!r}')
    if native is False or as_native(dataset) is not None:
        return dataset
    name = type(dataset).__name__
    try:
        found = translated(dataset)
    except ArgumentError as error:
        if native is True:
            raise ArgumentError(f"native=True: {error}") from None
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:-1])
        _LOGGER.info("native='auto': %s is loaded as it is: %s", name, reasons)
        return dataset
    if native == "auto":
        _LOGGER.info("native='auto': %s is loaded natively, by %s", name, _in_one_line(found.transform))
    return found


def _in_one_line(transform: Any) -> str:
    return ", ".join(type(step).__name__ for step in transform.transforms)
