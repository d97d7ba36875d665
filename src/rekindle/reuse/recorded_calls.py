"""What a dataset did with its transform, sample by sample: how often it called it, and where the results are.

The transform is replaced by its first steps, which note every result, and return an `Unfinished` for each of
its values. These are looked for in the sample. So it is known of each sample which of its parts have to be
finished, and how: none, if the dataset did not call its transform; two, if it made two views; an image and
its mask together, if it gave both to one call. What the dataset has made of a result before it returned it
cannot be finished: that is an error.

A record is written as text: a tuple of calls, each a form (`ONE`, `SEVERAL` or `NAMED`) and the result as
nested tuples, in which ("@", path, …) is a part of the sample, ("=", value) a plain value, and ("(", …),
("[", …) and ("{", …) are what Python writes so.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

from rekindle.core.samples import Index, Sample
from rekindle.errors import ArgumentError
from rekindle.prepare.third_party_transforms import TakesArrays
from rekindle.reuse.own_memory import apart_from
from rekindle.reuse.unfinished import (
    PLAIN,
    Recording,
    Unfinished,
    base_of,
    current_recording,
    given_items,
    is_opened,
    items_of,
    of_recording,
    outside_of_samples,
    unfinished,
    value_of,
)

ONE, SEVERAL, NAMED = range(3)  # how a transform is called: with one value, several, or values by name

Path: TypeAlias = tuple[Any, ...]  # the indices and keys that lead to a part of a sample
Template: TypeAlias = tuple[Any, ...]
# A call of a transform: its form and its value, or what it returned.
Call: TypeAlias = tuple[int, Sample]
# Steps, as a function of the form of a call and its value: a tuple for `SEVERAL`, a dict for `NAMED`.
Run: TypeAlias = Callable[[int, Sample], Sample]


_NOT_RETURNED = (
    "leaves out of the sample something that its transform returns, or keeps it in what is no tuple, list or "
    "dict, so the last of its steps cannot be done later"
)
_OF_ANOTHER = (
    "returns what its transform has made before (of a sample that it keeps, say) or outside of "
    "`__getitem__`, so the last of its steps cannot be done later"
)


class NotFinishedError(Exception):
    """What the last steps return does not fit where the results of the first ones were."""


class FirstSteps(TakesArrays):
    """Takes the place of a dataset's transform: runs its first steps, and notes what each call returns."""

    def __init__(self, run: Run, takes_arrays: bool) -> None:
        self._run, self.takes_arrays = run, takes_arrays
        self._recordings: set[Recording] = set()  # of all threads

    def __getstate__(self) -> tuple[Run, bool]:
        return self._run, self.takes_arrays

    def __setstate__(self, state: tuple[Run, bool]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @contextmanager
    def recording(self, index: Index, dataset: object) -> Iterator[Recording]:
        """A context that notes the calls in this thread: their forms and what they returned."""
        with Recording(f"sample {index}: {type(dataset).__name__}") as recording:
            self._recordings.add(recording)
            try:
                yield recording
            finally:
                self._recordings.discard(recording)

    def __call__(self, *values: Sample, **named: Sample) -> Sample:
        recording = current_recording()
        if recording is None:
            self._refuse_other_threads()
            recording = outside_of_samples()
        try:
            form, given = as_form(values, named)
        except TypeError as error:
            raise recording.refused(f"calls its transform in a way that cannot be split: {error}") from None
        if (form == NAMED) != self.takes_arrays:
            names = f"values by name: {', '.join(given)}" if form == NAMED else "values that have no names"
            raise recording.refused(f"calls its transform with {names}, which cannot be split")
        result = apart_from(given, self._run(form, given))
        if form == ONE and type(result) in (int, float, str):
            held: Sample = Unfinished(result, recording)
        else:
            held = unfinished(result, recording)
        recording.calls.append((form, held))
        return held

    def _refuse_other_threads(self) -> None:
        """Refuse the samples that are loaded now: one of them may be waiting for this call."""
        for recording in tuple(self._recordings):
            recording.refusal = recording.refusal or ArgumentError(
                "the dataset calls its transform in a thread of its own, where it cannot be seen for which "
                "sample that is. Call it in `__getitem__` itself, or leave out reuse=."
            )


def as_form(values: tuple[Sample, ...], named: dict[str, Sample]) -> Call:
    """The form of a call and its value; TypeError for a mixture."""
    if named and not values:
        return NAMED, named
    if named or not values:
        raise TypeError(f"a transform is called with {len(values)} values and {len(named)} by name")
    return (ONE, values[0]) if len(values) == 1 else (SEVERAL, values)


def recorded(sample: Sample, recording: Recording) -> tuple[str, Sample]:
    """A record of the calls, and the sample so far; ArgumentError if a result is not in it as it was."""
    places: dict[int, list[Path]] = {}
    sample = _with_values(sample, (), places, recording)
    calls = tuple((form, _template(held, places, recording)) for form, held in recording.calls)
    return repr(calls), sample


def finished(sample: Sample, record: str, run: Run) -> Sample:
    """The sample with the last steps applied to all that the first ones were; NotFinishedError if not so."""
    for form, template in _parsed(record):
        made = run(form, _filled(template, sample))
        for path, part in [*_placed(template, made)]:
            sample = _replaced(sample, path, 0, part)
    return sample


@lru_cache(maxsize=4096)
def _parsed(record: str) -> tuple[tuple[int, Template], ...]:
    calls: tuple[tuple[int, Template], ...] = ast.literal_eval(record)
    return calls


def _with_values(value: Sample, path: Path, places: dict[int, list[Path]], recording: Recording) -> Sample:
    """The sample with the values for what stands for them; `places` has where that was, by identity."""
    kind = type(value)
    if kind is Unfinished:
        if not of_recording(value, recording):
            raise recording.refused(_OF_ANOTHER)
        places.setdefault(id(value), []).append(path)
        return value_of(value)
    if kind in PLAIN:
        return value
    base = base_of(value)
    if base is not None:
        if not of_recording(value, recording):
            raise recording.refused(_OF_ANOTHER)
        places.setdefault(id(value), []).append(path)
    elif not (kind is dict or kind is list or isinstance(value, tuple)):
        return value
    parts = {key: _with_values(part, (*path, key), places, recording) for key, part in items_of(value)}
    if base is None and all(part is parts[key] for key, part in items_of(value)):
        return value
    if base is dict or kind is dict:
        return parts
    return _of_kind(base or kind, parts.values())


def _template(held: Sample, places: dict[int, list[Path]], recording: Recording) -> Template:
    kind = type(held)
    found = places.get(id(held), ())
    if kind is Unfinished:
        if not found:
            raise recording.refused(_NOT_RETURNED)
        return "@", *found
    if kind in PLAIN:
        if kind is float and not math.isfinite(held):
            raise recording.refused(f"has a transform that returns {held}, which cannot be compared")
        return "=", held
    if found and not is_opened(held):
        return "@", *found
    parts = [(key, _template(part, places, recording)) for key, part in given_items(held)]
    if base_of(held) is dict:
        return "{", *parts
    return "[" if base_of(held) is list else "(", *(part for _, part in parts)


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
        if made is None:
            raise NotFinishedError("the last steps return None for what the first ones have made")
        for path in parts:
            yield path, made
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
    return _of_kind(type(sample), parts)


def _of_kind(kind: type, parts: Iterable[Sample]) -> Sample:
    """A list or tuple of these; other types are named tuples."""
    return kind(parts) if kind in (list, tuple) else kind(*parts)
