"""The public names of the package, and under which of them an object is documented."""

from __future__ import annotations

import re

import rekindle
from rekindle import transforms

TOP = [name for name in rekindle.__all__ if name != "transforms"]
STEPS = list(transforms.__all__)

# As prose writes them: `rk.open`, `rekindle.open`, `rk.transforms.Resize`, `T.Resize`, `Buckets.preset("…")`.
_WRITTEN = re.compile(
    r"(?P<module>(?:rk|rekindle)\.(?:transforms\.)?|T\.|)(?P<name>[A-Za-z]\w*)(?P<member>\.[a-z]\w*)?(?:\(.*\))?",
    re.S,
)


def documented_as(written: str) -> str | None:
    """The full name of the public object that a piece of code names; None if it names none.

    >>> documented_as("rk.Refurbish(factor=3)"), documented_as("T.Resize"), documented_as("loader.report()")
    ('rekindle.Refurbish', 'rekindle.transforms.Resize', None)
    """
    if written in ("rk.transforms", "rekindle.transforms"):
        return "rekindle.transforms"
    found = _WRITTEN.fullmatch(written)
    if found is None:
        return None
    module, name, member = found["module"], found["name"], found["member"] or ""
    if name in STEPS and module not in ("rk.", "rekindle."):
        home, thing = "rekindle.transforms", getattr(transforms, name)
    elif name in TOP and module in ("", "rk.", "rekindle."):
        home, thing = "rekindle", getattr(rekindle, name)
    else:
        return None
    return f"{home}.{name}{member}" if not member or hasattr(thing, member[1:]) else None


def claims_to_be_public(written: str) -> bool:
    """Whether a piece of code says by its prefix that it is a public name."""
    return re.match(r"(rk|rekindle)\.[A-Za-z]\w*(\.[A-Za-z]\w*)?(\(|$)", written) is not None
