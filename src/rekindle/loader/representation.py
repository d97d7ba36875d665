"""A loader in one line: its dataset, and the arguments that are not as they are by default."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sized
from typing import Any

_DATASET_CHARACTERS = 60


def represent(kind: type, dataset: object, values: Mapping[str, Any], constructor: inspect.Signature) -> str:
    """`DataLoader(…)` with those of the `values` that are not the constructor's defaults."""
    shown = [_dataset(dataset)]
    for name, parameter in constructor.parameters.items():
        if name != "dataset" and name in values and _differs(values[name], parameter.default):
            shown.append(f"{name}={_value(values[name])}")
    return f"{kind.__name__}({', '.join(shown)})"


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
