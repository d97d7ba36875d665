"""Where all ranks together stand in an epoch, as plain data: a state goes on with any number of ranks.

Every rank saves the same, so one rank's state is enough. What is counted are the samples that all ranks
together have had; how an epoch is laid out follows from the ranks and the batch size that it began with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from rekindle.choose.position import Position
from rekindle.choose.shard import EpochLayout, EpochStart
from rekindle.core.state_fields import MOST, MOST_RANKS, StateFields
from rekindle.errors import StateError

FIELD = "shard"
_MOST_BATCH = 2**40

StepsOf: TypeAlias = Callable[[int, EpochLayout, EpochStart | None], int]  # of an epoch, laid out so


class _Saved(NamedTuple):
    """The layout that a state was saved with, and where the epoch had been begun, or gone on, with it."""

    layout: EpochLayout
    start: EpochStart | None  # None: at its beginning
    rank: int | None = None  # whose position it is; None: that of all

    @property
    def begun(self) -> EpochStart:
        """Where the epoch was begun or gone on."""
        return EpochStart(self.layout) if self.start is None else self.start


def save(layout: EpochLayout, position: Position, rank: int | None = None) -> dict[str, Any]:
    """What a state holds of a position of these ranks, beside the epoch and the step.

    With a `rank`, it is the position of that one alone: with `in_order=False`, others are at other batches.
    """
    start = position.start or EpochStart(layout)
    own = {} if rank is None or not (position.step or position.ahead) else {"rank": rank}
    return own | {
        "world": layout.world,
        "begun_world": start.layout.world,
        "begun_batch_size": start.layout.batch_size,
        "offset": start.offset,
    }


def load(
    fields: StateFields,
    position: Position,
    layout: EpochLayout,
    steps_of: StepsOf,
    *,
    whole_batches: bool,
    rank: int = 0,
) -> Position:
    """The position for ranks with this layout, from that of the ranks that saved the state.

    StateError if there is none: beyond the epoch's end, or where `whole_batches` are repeated by other ranks,
    or the position is that of another `rank` alone.
    """
    saved = _load(fields)
    if saved.layout == layout and saved.rank not in (None, rank):
        raise StateError(
            f"{FIELD}.rank: saved within an epoch by rank {saved.rank}, this is rank {rank}. With "
            "in_order=False each rank is at other batches: save and load the state of each, or save between "
            "two epochs."
        )
    _check_steps(position, steps_of(position.epoch, saved.layout, saved.start))
    if saved.layout == layout:
        position.start = saved.start
        return position
    unordered = position.ahead or saved.rank is not None
    for name, problem in (("ahead", unordered and "in_order=False"), ("step", whole_batches and "Echo")):
        if problem and (position.step or position.ahead):
            raise StateError(
                f"{name}: saved within an epoch by one of {saved.layout.world} ranks with batches of "
                f"{saved.layout.batch_size}; with {problem}, it goes on only with as many ranks and that "
                f"batch size, but here are {layout.world} with batches of {layout.batch_size}. Use those, or "
                "save between two epochs."
            )
    consumed = saved.begun.consumed(position.step, saved.layout)
    if not consumed:  # Nothing of it was seen: it begins as if it were begun here.
        return Position(position.epoch)
    start = EpochStart.after(consumed, saved.begun.layout, layout)
    at_start = start.layout == layout and not start.offset
    return Position(position.epoch, start.first_step, start=None if at_start else start)


def layout_of(fields: StateFields) -> EpochLayout:
    """How the ranks that saved a state share their epochs."""
    return _load(fields).layout


def worlds(fields: StateFields) -> tuple[int, ...]:
    """How many ranks a state is of: those that saved it, and those that its epoch was begun by."""
    saved = _load(fields)
    return tuple(dict.fromkeys([saved.layout.world, saved.begun.layout.world]))


def _check_steps(position: Position, steps: int) -> None:
    """StateError unless a position can be one in an epoch of so many batches."""
    if position.step > steps:
        raise StateError(f"step: {position.step} batches of an epoch that has {steps}; was the state edited?")
    if position.ahead and not position.step < min(position.ahead) <= max(position.ahead) < steps:
        raise StateError(
            f"ahead: expected batches after {position.step} of an epoch that has {steps}; "
            "was the state edited?"
        )


def _load(fields: StateFields) -> _Saved:
    """What a state holds; one without this is that of a process alone."""
    batch_size = fields.get("batch_size")
    if batch_size is not None:  # None is what a loader has that makes no batches: one sample a step.
        batch_size = fields.integer("batch_size", least=1, most=_MOST_BATCH)
    if FIELD not in fields.names():
        return _Saved(EpochLayout(1, batch_size or 1), None)
    saved = fields.inner(FIELD)
    own = EpochLayout(saved.integer("world", least=1, most=MOST_RANKS), batch_size or 1)
    begun = EpochLayout(
        saved.integer("begun_world", least=1, most=MOST_RANKS),
        saved.integer("begun_batch_size", least=1, most=_MOST_BATCH),
    )
    offset = saved.integer("offset", most=MOST)
    rank = saved.integer("rank", most=own.world - 1) if "rank" in saved.names() else None
    return _Saved(own, None if begun == own and not offset else EpochStart(begun, offset), rank)
