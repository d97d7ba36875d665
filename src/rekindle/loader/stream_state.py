"""The position of an iterable dataset as plain data that a checkpoint can hold."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from rekindle.choose.position import DatasetState, IterablePosition
from rekindle.choose.sampler_generators import checked_generator, checked_generators
from rekindle.core.state_fields import MOST, MOST_RANKS, StateFields, shown
from rekindle.errors import StateError
from rekindle.loader.plain_state import check_plain
from rekindle.run.resumed_parts import RESUMED, Part, dealt, dealt_to_ranks

State: TypeAlias = dict[str, Any]

_MOST_SEED = 2**63 - 1
MOST_WORKERS = 2**16
_PARTS = ("dataset", "iterator", "generators")
_OF_STREAM = "iterable: "
_MOST_PARTS = 4096  # that a state holds so that others can go on: in an epoch of many worlds, they multiply
_MOST_TIMES = 64  # that one epoch is gone on with by other ranks: a limit of recursion


def save(position: IterablePosition) -> State:
    """A position for a checkpoint; StateError if a dataset's own state is no plain data."""
    made, datasets = position.made, position.datasets
    return {
        "generator": None if position.generator is None else position.generator.clone(),
        "base_seed": position.base_seed,
        "made": None if made is None else list(made),
        "turn": position.turn,
        "datasets": None if datasets is None else [_saved(one) for one in datasets],
        **({} if position.begun is None else {"begun": pickle.loads(position.begun)}),
    }


def _saved(state: DatasetState | None) -> State | None:
    if state is None:
        return None
    if isinstance(state.value, str):
        raise StateError(
            f"iterable: state_dict() of the dataset failed with {state.value}. Mend it, or remove its "
            "state_dict and load_state_dict: the samples used are then skipped on resume."
        )
    value = None if state.value is None else pickle.loads(state.value)  # of our own processes
    check_plain(value, "the state_dict() of the dataset", _OF_STREAM)
    derived = {"derived": True} if state.derived else {}
    return {"state": value, "passes": list(state.passes)} | derived


def load(
    fields: StateFields,
    workers: object,
    batch_size: int,
    *,
    has_generator: bool,
    is_stateful: bool,
    deals_itself_out: bool,
) -> IterablePosition | None:
    """The position in a checkpoint; StateError, naming the field, if this loader cannot go on from it."""
    if fields.get("iterable") is None:
        return None
    if not isinstance(workers, int):
        fields.refuse("iterable", "this loader has no IterableDataset, but the state has a position in one")
    saved = fields.inner("iterable")
    generator = None
    if saved.get("generator") is not None:
        generator = checked_generator(saved, "generator")
    elif has_generator:
        saved.refuse("generator", "this loader has a generator, but the state of one is missing")
    before = fields.integer("num_workers", most=MOST_WORKERS) if deals_itself_out else workers
    readers = max(1, before)
    datasets = _datasets(saved, readers, is_stateful, deals_itself_out)
    if saved.get("made") is None:  # Saved between two epochs: such a dataset keeps nothing.
        return IterablePosition(generator, datasets=datasets if before == workers else None)
    made, turn = _counts(saved, "made", readers), saved.integer("turn", most=readers - 1)
    base_seed = saved.integer("base_seed", most=_MOST_SEED)
    begun = _begun(saved) if "begun" in saved.names() and deals_itself_out else None
    position = IterablePosition(generator, base_seed, made, turn, datasets, begun=begun)
    if before == workers:
        return position
    drop_last = fields.boolean("drop_last")
    return going_on(position, parts_of(position, before, batch_size, drop_last=drop_last), max(1, workers))


def parts_of(
    position: IterablePosition,
    before: int,
    batch_size: int,
    rank: int = 0,
    world: int = 0,
    *,
    drop_last: bool,
) -> list[Part]:
    """What so many workers `before`, of such a rank, have left of their parts of a stream."""
    incomplete = 0 if drop_last else batch_size - 1  # what the last batch of a part may be short of
    made = position.made or ()
    parts: list[Part] = []
    for worker in range(len(made)):
        value, passes, is_derived = position.dataset(worker)
        saved = pickle.loads(value) if isinstance(value, bytes) and len(passes) == 1 else {}
        skip = passes[-1] * batch_size
        if RESUMED in (saved.get("iterator") or ()):  # Dealt before; taken behind every batch, so skip is 0.
            parts += saved["iterator"][RESUMED]
        else:
            whose = {"rank": rank, "world": world, "worker": worker, "workers": before}
            parts.append(
                cast("Part", {**whose, "state": saved.get("dataset"), "skip": skip, "first": 0, "every": 1})
            )
            if is_derived:
                parts[-1]["least"] = max(0, skip - incomplete)
    return parts


def derived(
    position: IterablePosition, rank: int, world: int, before: int, batch_size: int, *, drop_last: bool
) -> IterablePosition | None:
    """Where a rank of a `world` stands that is in step with one at this position, with `before` workers.

    It is behind as many batches of its own part. None if the position does not say where that is.
    """
    made = position.made or ()
    whose = _parts_begun(position, rank, world)
    if not _in_step(position, range(len(made)) if whose is None else [w for w, of in enumerate(whose) if of]):
        return None
    if whose is None:
        states = tuple(DatasetState(None, (batches,), derived=True) for batches in made)
        return None if _is_dealt_again(position) else replace(position, datasets=states)
    incomplete = 0 if drop_last else batch_size - 1  # what the last batch of a part may be short of
    parts: list[list[Part]] = [
        [
            {
                "rank": rank, "world": world, "worker": worker, "workers": before, "state": None, "of": of,
                "skip": batches * batch_size, "first": 0, "every": 1,
                "least": max(0, batches * batch_size - incomplete),
            }
        ]
        for worker, (batches, of) in enumerate(zip(made, whose, strict=True))
    ]  # fmt: skip
    return replace(position, datasets=tuple(map(_reading, parts)))


def _in_step(position: IterablePosition, active: Sequence[int]) -> bool:
    """Whether the workers that had samples have taken turns so far, as they do while all have some left."""
    made = position.made or ()
    batches, workers = sum(made), len(made)
    turn = (active[(batches - 1) % len(active)] + 1) % workers if batches and active else 0
    counts = {worker: (batches - at + len(active) - 1) // len(active) for at, worker in enumerate(active)}
    return position.turn == turn and all(one == counts.get(worker, 0) for worker, one in enumerate(made))


def _parts_begun(position: IterablePosition, rank: int, world: int) -> list[list[Part]] | None:
    """What each worker of a rank began to read in an epoch that others had begun; None if nobody had."""
    if position.begun is None:
        return None
    return dealt(dealt_to_ranks(pickle.loads(position.begun), rank, world), len(position.made or ()))


def _is_dealt_again(position: IterablePosition) -> bool:
    """Whether workers read what others had left, not parts of their own."""
    values = (position.dataset(worker).value for worker in range(len(position.made or ())))
    return any(RESUMED in (pickle.loads(one)["iterator"] or ()) for one in values if isinstance(one, bytes))


def going_on(
    position: IterablePosition, parts: list[Part], workers: int, all_parts: list[Part] | None = None
) -> IterablePosition:
    """A position from which so many workers read these parts, of `all_parts` that all ranks have."""
    is_kept = all_parts is not None and _number_of(all_parts) <= _MOST_PARTS
    begun = pickle.dumps(all_parts, pickle.HIGHEST_PROTOCOL) if is_kept else None
    datasets = tuple(map(_reading, dealt(parts, workers)))
    return replace(position, made=(0,) * workers, turn=0, datasets=datasets, begun=begun)


def _number_of(parts: list[Part]) -> int:
    """How many parts these are, with those within them."""
    return sum(1 + _number_of(part.get("of", [])) for part in parts)


def _reading(parts: list[Part]) -> DatasetState:
    """The state of a worker's dataset that reads these parts."""
    state = {"dataset": None, "iterator": {RESUMED: parts}, "generators": {}}
    return DatasetState(pickle.dumps(state, pickle.HIGHEST_PROTOCOL))


def _datasets(
    fields: StateFields, workers: int, is_stateful: bool, deals_itself_out: bool
) -> tuple[DatasetState | None, ...] | None:
    if "datasets" not in fields.names() or fields.get("datasets") is None:
        return None
    datasets = fields.get("datasets")
    if not isinstance(datasets, list) or len(datasets) != workers:
        fields.refuse(
            "datasets", f"expected a state for each of {workers} workers, but got {shown(datasets)}"
        )
    path = fields.path("datasets")
    return tuple(
        None if one is None else _loaded(StateFields(one, f"{path}[{worker}]"), is_stateful, deals_itself_out)
        for worker, one in enumerate(datasets)
    )


def _loaded(saved: StateFields, is_stateful: bool, deals_itself_out: bool) -> DatasetState:
    passes = _counts(saved, "passes")
    if saved.get("state") is None:
        derived = "derived" in saved.names() and saved.boolean("derived")
        return DatasetState(None, passes, derived)
    state = saved.inner("state")
    if sorted(state.names()) != sorted(_PARTS):
        saved.refuse("state", f"expected {_PARTS}, but got {state.names()}")
    if state.get("dataset") is not None and not is_stateful:
        raise StateError(
            f"{saved.path('state')}: saved with a dataset that has state_dict and load_state_dict, and this "
            "loader's has none. Make the loader with the same dataset."
        )
    if deals_itself_out and state.get("iterator") is not None:
        _check_parts(state.inner("iterator"))
    generators = checked_generators(state.inner("generators"))
    value: State = {part: state.get(part) for part in _PARTS} | {"generators": generators}
    try:
        check_plain(value, saved.path("state"), _OF_STREAM)
    except RecursionError:
        saved.refuse("state", "the dataset's own state is nested too deeply")
    return DatasetState(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), passes)


def _begun(saved: StateFields) -> bytes:
    """The parts of all ranks with which an epoch was gone on."""
    _check_parts(StateFields({RESUMED: saved.get("begun")}, saved.path("begun")))
    return pickle.dumps(saved.get("begun"), pickle.HIGHEST_PROTOCOL)


def _check_parts(fields: StateFields, depth: int = 0) -> None:
    """StateError unless this is what `ResumedParts.state_dict` gave."""
    for number, part in enumerate(fields.entries(RESUMED, dict)):
        one = StateFields(part, f"{fields.path(RESUMED)}[{number}]")
        one.integer("worker", most=max(0, one.integer("workers", most=MOST_WORKERS) - 1))
        one.integer("rank", most=max(0, one.integer("world", most=MOST_RANKS) - 1))
        one.integer("skip")
        one.integer("first")
        if "least" in one.names():
            one.integer("least", most=part["skip"])
        one.integer("every", least=1)
        if one.get("state") is not None:
            one.inner("state")
        if "of" in one.names():
            if depth == _MOST_TIMES:
                one.refuse("of", f"an epoch that was gone on with more than {_MOST_TIMES} times")
            _check_parts(StateFields({RESUMED: one.get("of")}, one.path("of")), depth + 1)


def _counts(fields: StateFields, name: str, length: int | None = None) -> tuple[int, ...]:
    """A field that is a list of numbers of batches."""
    counts = fields.entries(name, int, length)
    if not counts or not all(0 <= count <= MOST for count in counts):
        fields.refuse(name, f"expected numbers of batches from 0 to {MOST}")
    return tuple(counts)
