"""The position of an iterable dataset as plain data that a checkpoint can hold."""

from __future__ import annotations

import pickle
from typing import Any, TypeAlias

import torch

from rekindle.choose.position import DatasetState, IterablePosition
from rekindle.choose.sampler_generators import checked_generator, checked_generators
from rekindle.core.state_fields import MOST, StateFields, shown
from rekindle.errors import StateError

State: TypeAlias = dict[str, Any]

_MOST_SEED = 2**63 - 1
_PARTS = ("dataset", "iterator", "generators")
_PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor)


def save(position: IterablePosition) -> State:
    """A position for a checkpoint; StateError if a dataset's own state is no plain data."""
    made, datasets = position.made, position.datasets
    return {
        "generator": None if position.generator is None else position.generator.clone(),
        "base_seed": position.base_seed,
        "made": None if made is None else list(made),
        "turn": position.turn,
        "datasets": None if datasets is None else [_saved(one) for one in datasets],
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
    _check_plain(value, "the state_dict() of the dataset")
    return {"state": value, "passes": list(state.passes)}


def load(
    fields: StateFields, workers: object, *, has_generator: bool, is_stateful: bool
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
    datasets = _datasets(saved, workers, is_stateful)
    if saved.get("made") is None:  # Saved between two epochs.
        return IterablePosition(generator, datasets=datasets)
    made, turn = _counts(saved, "made", workers), saved.integer("turn", most=workers - 1)
    base_seed = saved.integer("base_seed", most=_MOST_SEED)
    return IterablePosition(generator, base_seed, made, turn, datasets)


def _datasets(fields: StateFields, workers: int, is_stateful: bool) -> tuple[DatasetState | None, ...] | None:
    if "datasets" not in fields.names() or fields.get("datasets") is None:
        return None
    datasets = fields.get("datasets")
    if not isinstance(datasets, list) or len(datasets) != workers:
        fields.refuse(
            "datasets", f"expected a state for each of {workers} workers, but got {shown(datasets)}"
        )
    path = fields.path("datasets")
    return tuple(
        None if one is None else _loaded(StateFields(one, f"{path}[{worker}]"), is_stateful)
        for worker, one in enumerate(datasets)
    )


def _loaded(saved: StateFields, is_stateful: bool) -> DatasetState:
    passes = _counts(saved, "passes")
    if saved.get("state") is None:
        return DatasetState(None, passes)
    state = saved.inner("state")
    if sorted(state.names()) != sorted(_PARTS):
        saved.refuse("state", f"expected {_PARTS}, but got {state.names()}")
    if state.get("dataset") is not None and not is_stateful:
        raise StateError(
            f"{saved.path('state')}: saved with a dataset that has state_dict and load_state_dict, and this "
            "loader's has none. Make the loader with the same dataset."
        )
    generators = checked_generators(state.inner("generators"))
    value: State = {part: state.get(part) for part in _PARTS} | {"generators": generators}
    try:
        _check_plain(value, saved.path("state"))
    except RecursionError:
        saved.refuse("state", "the dataset's own state is nested too deeply")
    return DatasetState(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), passes)


def _counts(fields: StateFields, name: str, length: int | None = None) -> tuple[int, ...]:
    """A field that is a list of numbers of batches."""
    counts = fields.entries(name, int, length)
    if not counts or not all(0 <= count <= MOST for count in counts):
        fields.refuse(name, f"expected numbers of batches from 0 to {MOST}")
    return tuple(counts)


def _check_plain(value: object, where: str) -> None:
    """StateError unless a value consists of what `torch.load(…, weights_only=True)` reads."""
    if type(value) is dict:
        for key, part in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(part, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for number, part in enumerate(value):  # type: ignore[arg-type]
            _check_plain(part, f"{where}[{number}]")
    elif type(value) not in _PLAIN:
        raise StateError(
            f"iterable: {where} is a {type(value).__module__}.{type(value).__qualname__}, but a checkpoint "
            "holds numbers, strings, bytes and tensors in dicts, lists, tuples. Let state_dict() give those."
        )
