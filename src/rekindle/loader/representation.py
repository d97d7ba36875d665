"""A loader in one line: its dataset, and the arguments that are not as they are by default."""

from __future__ import annotations

import inspect
from collections.abc import Sized
from typing import Any

from torch.utils.data import DataLoader, default_collate, default_convert

from rekindle.choose import OrderKind

_DATASET_CHARACTERS = 60


def represent(
    loader: DataLoader[object], order: OrderKind, prefetch_factor: int | None, constructor: inspect.Signature
) -> str:
    """`DataLoader(…)` with those of its arguments that are not the constructor's defaults."""
    values = _given(loader, order) | {"prefetch_factor": prefetch_factor}
    shown = [_dataset(loader.dataset)]
    for name, parameter in constructor.parameters.items():
        if name != "dataset" and name in values and _differs(values[name], parameter.default):
            shown.append(f"{name}={_value(values[name])}")
    return f"{type(loader).__name__}({', '.join(shown)})"


def _given(loader: DataLoader[object], order: OrderKind) -> dict[str, Any]:
    """The loader's attributes, without those that torch has filled in."""
    values = {**vars(loader), "shuffle": order is OrderKind.SHUFFLED or None}
    if order is not OrderKind.SAMPLER:
        values |= {"sampler": None, "batch_sampler": None}
    if loader.batch_size is not None:
        values["batch_sampler"] = None
    if loader.collate_fn in (default_collate, default_convert):
        values["collate_fn"] = None
    return values


def _differs(value: object, default: object) -> bool:
    return value is not default and not (type(value) is type(default) and value == default)


def _dataset(dataset: object) -> str:
    """A dataset's own text, if it is short; its type and length otherwise."""
    text = repr(dataset)
    if len(text) <= _DATASET_CHARACTERS and "\n" not in text and " object at 0x" not in text:
        return text
    try:
        return f"<{type(dataset).__name__} of {len(dataset):,}>" if isinstance(dataset, Sized) else text
    except TypeError:  # torch's Dataset may define __len__ by raising.
        return f"<{type(dataset).__name__}>"


def _value(value: object) -> str:
    """Functions by their names, all else as it shows itself."""
    return getattr(value, "__qualname__", None) or repr(value)
