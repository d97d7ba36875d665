"""What any dataset may declare about itself, with attributes of these names.

A declaration is about the dataset's own `__getitem__`, which may do anything. So an attribute that a wrapper
only forwards (`__getattr__`) does not count, nor does one that a subclass inherits from a dataset of ours
whose `__getitem__` it overrides.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import Index
from rekindle.prepare.native import OURS, is_unmodified
from rekindle.prepare.native_images import NativeImages


def releases_gil(dataset: object) -> bool:
    """Whether a dataset declares `releases_gil = True`: nearly all of its work runs without the GIL."""
    return _declares(dataset, "releases_gil")


def draws_nothing(dataset: object) -> bool:
    """Whether a dataset declares `draws_nothing = True`: it never uses the global random generators."""
    return _declares(dataset, "draws_nothing")


def will_need(dataset: object) -> Callable[[Sequence[Index]], None] | None:
    """A dataset's method `will_need(indices)`, called with the samples that will be requested soon; or None.

    A forwarded one counts, too: no sample depends on it.
    """
    try:
        method: Callable[[Sequence[Index]], None] | None = getattr(dataset, "will_need", None)
    except Exception as error:  # A `__getattr__` of the user's: a dataset without this method.
        if is_interrupt(error):
            raise
        return None
    return method


def fingerprint(dataset: object) -> str | None:
    """A dataset's attribute `fingerprint`, a string that changes with its samples; None if it has none."""
    if inspect.getattr_static(dataset, "fingerprint", None) is None:
        return None
    value: object = getattr(dataset, "fingerprint", None)
    if not isinstance(value, str):
        return None
    if isinstance(dataset, NativeImages) and not is_unmodified(dataset):
        return f"{type(dataset).__qualname__} {value}"
    return value


def _declares(dataset: object, name: str) -> bool:
    if isinstance(dataset, NativeImages) and not is_unmodified(dataset):
        return _declared_by_subclass(dataset, name)
    return inspect.getattr_static(dataset, name, None) is not None and bool(getattr(dataset, name))


def _declared_by_subclass(dataset: NativeImages, name: str) -> bool:
    """Whether a subclass of our datasets itself declares this."""
    for kind in type(dataset).__mro__:
        if kind in OURS:
            return False
        if name in vars(kind):
            value = vars(kind)[name]
            return bool(getattr(dataset, name) if isinstance(value, property) else value)
    return False
