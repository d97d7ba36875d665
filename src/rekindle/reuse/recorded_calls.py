"""What a dataset did with its transform, sample by sample: how often it called it, and where the results are.

The transform is replaced by its first steps, which note every result. These are looked for in the sample, by
identity. So it is known of each sample which of its parts have to be finished, and how: none, if the dataset
did not call its transform; two, if it made two views; an image and its mask together, if it gave both to one
call. What the dataset has made of a result before it returned it cannot be finished: that is an error.

A record is written as text: a tuple of calls, each a form (`ONE`, `SEVERAL` or `NAMED`) and the result as
nested tuples, in which ("@", path) is a part of the sample, ("=", value) a plain value, and ("(", …),
("[", …) and ("{", …) are what Python writes so.
"""

from __future__ import annotations

import ast
import copy
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.prepare.rgb import is_pillow
from rekindle.prepare.third_party_transforms import TakesArrays

ONE, SEVERAL, NAMED = range(3)  # how a transform is called: with one value, several, or values by name

Path: TypeAlias = tuple[Any, ...]  # the indices and keys that lead to a part of a sample
Template: TypeAlias = tuple[Any, ...]
# A call of a transform: its form and its value, or what it returned.
Call: TypeAlias = tuple[int, Sample]
# Steps, as a function of the form of a call and its value: a tuple for `SEVERAL`, a dict for `NAMED`.
Run: TypeAlias = Callable[[int, Sample], Sample]

_PLAIN = (bool, int, float, str, bytes, type(None))


class _Marked:
    """A number or text that a transform returned, to be told from an equal one; what is made of it is not."""

    plain: Callable[[], int | float | str]


class _Int(int, _Marked):
    def plain(self) -> int:
        return int(self)


class _Float(float, _Marked):
    def plain(self) -> float:
        return float(self)


class _Str(str, _Marked):
    __slots__ = ()

    def plain(self) -> str:
        return "".join(self)


_MARKED: dict[type, Callable[[Any], _Marked]] = {int: _Int, float: _Float, str: _Str}


class NotFinishedError(Exception):
    """What the last steps return does not fit where the results of the first ones were."""


class FirstSteps(TakesArrays):
    """Takes the place of a dataset's transform: runs its first steps, and notes what each call returns."""

    def __init__(self, run: Run, takes_arrays: bool) -> None:
        self._run, self.takes_arrays = run, takes_arrays
        self._of_thread = threading.local()
        self._recording = 0  # threads

    def __getstate__(self) -> tuple[Run, bool]:
        return self._run, self.takes_arrays

    def __setstate__(self, state: tuple[Run, bool]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """A context that notes the calls in this thread: their forms and what they returned."""
        calls: list[Call] = []
        self._of_thread.calls = calls
        self._recording += 1
        try:
            yield calls
        finally:
            self._recording -= 1
            self._of_thread.calls = None

    def __call__(self, *values: Sample, **named: Sample) -> Sample:
        calls = getattr(self._of_thread, "calls", None)
        if calls is None and self._recording:
            raise ArgumentError(
                "the dataset calls its transform in a thread of its own, where it cannot be seen for which "
                "sample that is. Call it in `__getitem__` itself, or leave out reuse=."
            )
        form, given = as_form(values, named)
        result = self._run(form, given)
        if calls is None:
            return result
        known = {id(part) for part in _parts_of(given)}
        known.update(id(part) for _, earlier in calls for part in _parts_of(earlier))
        result = _with_identity(result, known)
        if form == ONE and type(result) in _MARKED:
            result = _MARKED[type(result)](result)
        calls.append((form, result))
        return result


def as_form(values: tuple[Sample, ...], named: dict[str, Sample]) -> Call:
    """The form of a call and its value; TypeError for a mixture."""
    if named and not values:
        return NAMED, named
    if named or not values:
        raise TypeError(f"a transform is called with {len(values)} values and {len(named)} by name")
    return (ONE, values[0]) if len(values) == 1 else (SEVERAL, values)


def recorded(sample: Sample, calls: list[Call]) -> tuple[str, Sample]:
    """A record of these calls, and the sample; LookupError if a result is not in the sample as it was."""
    places: dict[int, list[Path]] = {}
    _find_places(sample, (), places)
    record = tuple((form, _template(result, places)) for form, result in calls)
    for _, result in calls:
        if isinstance(result, _Marked):
            (path,) = places[id(result)]
            sample = _replaced(sample, path, 0, result.plain())
    return repr(record), sample


def finished(sample: Sample, record: str, run: Run) -> Sample:
    """The sample with the last steps applied to all that the first ones were; NotFinishedError if not so."""
    for form, template in _parsed(record):
        made = run(form, _filled(template, sample))
        if template[0] == "@":
            sample = _replaced(sample, template[1], 0, made)
        else:
            for path, part in _placed(template, made):
                sample = _replaced(sample, path, 0, part)
    return sample


@lru_cache(maxsize=4096)
def _parsed(record: str) -> tuple[tuple[int, Template], ...]:
    calls: tuple[tuple[int, Template], ...] = ast.literal_eval(record)
    return calls


def _find_places(value: Sample, path: Path, places: dict[int, list[Path]]) -> None:
    """Where everything is in a sample, by identity."""
    kind = type(value)
    if kind in _PLAIN:
        return
    places.setdefault(id(value), []).append(path)
    if kind is dict:
        for key, part in value.items():
            _find_places(part, (*path, key), places)
    elif isinstance(value, list | tuple):
        for key, part in enumerate(value):
            _find_places(part, (*path, key), places)


def _template(result: Sample, places: dict[int, list[Path]]) -> Template:
    kind = type(result)
    if kind in _PLAIN:
        if kind is float and not math.isfinite(result):
            raise LookupError
        return "=", result
    found = places.get(id(result), ())
    if len(found) == 1:
        return "@", found[0]
    if not found and kind is dict:
        return "{", *((key, _template(part, places)) for key, part in result.items())
    if not found and kind in (list, tuple):
        return "[" if kind is list else "(", *(_template(part, places) for part in result)
    raise LookupError


def _filled(template: Template, sample: Sample) -> Sample:
    """The result that a template stands for."""
    sign, *parts = template
    if sign == "@":
        for key in parts[0]:
            sample = sample[key]
        return sample
    if sign == "=":
        return parts[0]
    if sign == "{":
        return {key: _filled(part, sample) for key, part in parts}
    made = [_filled(part, sample) for part in parts]
    return made if sign == "[" else tuple(made)


def _placed(template: Template, made: Sample) -> Iterator[tuple[Path, Sample]]:
    """The parts of a new result, by their places in the sample; NotFinishedError if it is built otherwise."""
    sign, *parts = template
    if sign == "@":
        yield parts[0], made
    elif sign == "=":
        if type(made) is not type(parts[0]) or made != parts[0]:
            raise NotFinishedError(
                f"the last steps change {parts[0]!r} to {made!r}, which is not part of the sample"
            )
    elif sign == "{":
        if type(made) is not dict or made.keys() != {key for key, _ in parts}:
            raise NotFinishedError("the last steps change the keys of what they return")
        for key, part in parts:
            yield from _placed(part, made[key])
    else:
        if not isinstance(made, list | tuple) or len(made) != len(parts):
            raise NotFinishedError("the last steps change the number of values that they return")
        for part, one in zip(parts, made, strict=True):
            yield from _placed(part, one)


def _replaced(sample: Sample, path: Path, depth: int, part: Sample) -> Sample:
    """A copy of a sample with another part in this place."""
    if depth == len(path):
        return part
    key = path[depth]
    if type(sample) is dict:
        return {**sample, key: _replaced(sample[key], path, depth + 1, part)}
    parts = list(sample)
    parts[key] = _replaced(parts[key], path, depth + 1, part)
    if type(sample) is list:
        return parts
    return tuple(parts) if type(sample) is tuple else type(sample)(*parts)  # a named tuple


def _parts_of(value: Sample) -> Iterator[Sample]:
    """What a value consists of, without plain values and the containers themselves."""
    if type(value) is dict:
        for part in value.values():
            yield from _parts_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _parts_of(part)
    elif type(value) not in _PLAIN:
        yield value


def _with_identity(result: Sample, known: set[int]) -> Sample:
    """The same result, but no part of it is one of the known objects: these may be in the sample as well."""
    if type(result) is dict:
        return {key: _with_identity(part, known) for key, part in result.items()}
    if type(result) in (list, tuple):
        return type(result)([_with_identity(part, known) for part in result])
    if id(result) not in known:
        return result
    if isinstance(result, np.ndarray):
        return result.view()
    if is_pillow(result):
        return result.copy()
    return copy.copy(result) if isinstance(result, torch.Tensor) else result
