"""The first steps of a Compose that is the user's own: done by its own code, which is seen to go on in order.

Its last steps are replaced by some that do nothing but note that they were called, in their turn, with what
was made before them, which is an `Unfinished`. If its code does all of them, one after the other, and nothing
else, they can be done later; if it skips one, tries again or looks at an image, for one sample in a hundred,
that sample is refused. Torchvision's Compose and ours are known to do nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rekindle.core.analysis.object_state import is_library, mro_of, vars_of
from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.reuse.compose_search import Compose
from rekindle.reuse.layers import Transform
from rekindle.reuse.recorded_calls import NAMED, SEVERAL
from rekindle.reuse.unfinished import (
    Recording,
    base_of,
    current_recording,
    given_items,
    is_as_given,
    outside_of_samples,
    unfinished,
)

_CODE = ("__call__", "forward")


def runs_own_code(compose: Compose) -> bool:
    """Whether it is a script that says how the steps are applied, and no library."""
    for name in _CODE:
        found = next((vars_of(kind)[name] for kind in mro_of(type(compose)) if name in vars_of(kind)), None)
        if found is not None and not is_library(getattr(found, "__module__", None)):
            return True
    return False


class StepsByOwnCode:
    """The first steps of a Compose, as its own code does them; `later` is how many come after them."""

    def __init__(self, compose: Compose, first: Sequence[Transform], later: int) -> None:
        self._compose = _with_steps(compose, [])
        self._first, self._later = list(first), later

    def __call__(self, form: int, value: Sample) -> Sample:
        if form == NAMED:
            raise TypeError(f"a Compose is called with values by name: {', '.join(value)}")
        values = value if form == SEVERAL else (value,)
        if not self._later:
            return _with_steps(self._compose, self._first)(*values)
        with _within_compose(type(self._compose).__name__) as recording:
            turn = _Turn(self._first, self._later, recording)
            if not self._first:
                turn.begin_later(value)
                values = turn.held_values() if form == SEVERAL else (turn.held,)
            turn.expect(len(turn.steps), (_with_steps(self._compose, turn.steps)(*values),))
        return turn.made


@contextmanager
def _within_compose(name: str) -> Iterator[Recording]:
    """A recording of what the code of a Compose does; what is refused is refused of the sample."""
    sample = current_recording() or outside_of_samples()
    with Recording(f"{sample.who}, in the code of its {name},") as recording:
        try:
            yield recording
        finally:
            sample.refusal = sample.refusal or recording.refusal


class _Turn:
    """One call of a Compose.

    Attributes:
        steps: What it is given for its steps.
        made: What the first steps have returned.
        held: What stands for that.

    """

    def __init__(self, first: Sequence[Transform], later: int, recording: Recording) -> None:
        self._recording, self._done, self._last_of_first = recording, 0, len(first) - 1
        self.made: Sample = None
        self.held: Sample = None
        self.steps = [self._doing(number, step) for number, step in enumerate(first)]
        self.steps += [self._noting(number) for number in range(len(first), len(first) + later)]

    def begin_later(self, made: Sample) -> None:
        """What is done to this is done later."""
        self.made, self.held = made, unfinished(made, self._recording, plain=False)

    def held_values(self) -> tuple[Sample, ...]:
        """What stands for each of several values."""
        return tuple(part for _, part in given_items(self.held))

    def expect(self, number: int, values: tuple[Sample, ...]) -> None:
        """Refuse the sample unless it is this step's turn, and its arguments are what was made before it."""
        flat = values[0] if len(values) == 1 else values
        if self._done != number or not self._is_held(flat):
            raise self._refused()

    def _is_held(self, value: Sample) -> bool:
        if not is_as_given(self.held):
            return False
        if value is self.held:
            return True
        if base_of(self.held) not in (list, tuple) or not isinstance(value, list | tuple):
            return False
        parts = self.held_values()
        return len(value) == len(parts) and all(
            one is part for one, part in zip(list(value), parts, strict=True)
        )

    def _doing(self, number: int, step: Transform) -> Callable[..., Sample]:
        def do(*values: Sample) -> Sample:
            if self._done != number:
                raise self._refused()
            made = step(*values)
            self._done += 1
            if number < self._last_of_first:
                return made
            self.begin_later(made)
            return self.held

        return do

    def _noting(self, number: int) -> Callable[..., Sample]:
        def note(*values: Sample) -> Sample:
            self.expect(number, values)
            self._done += 1
            self.begin_later(self.made)  # Another one stands for what this step will make of it.
            return self.held

        return note

    def _refused(self) -> ArgumentError:
        return self._recording.refused(
            "does not do all of its steps, one after the other, and nothing else, so the last of them cannot "
            "be done later"
        )


def _with_steps(compose: Compose, steps: Sequence[Transform]) -> Compose:
    part = copy.copy(compose)
    part.transforms = type(compose.transforms)(steps)
    return part
