"""Where a loader goes on from a saved state: nothing of it is used before all of it is checked."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from rekindle.choose.importance import session_state
from rekindle.choose.importance.session import ImportanceSession
from rekindle.choose.position import Position
from rekindle.loader import checkpoint, shard_state
from rekindle.loader.epochs import steps_of
from rekindle.loader.settings import LoaderSettings
from rekindle.loader.sharding import LoaderOrder
from rekindle.run import BadSample
from rekindle.run.hugging_face import deals_itself_out
from rekindle.run.stream_reader import is_stateful


class Resumed(NamedTuple):
    """What a loader takes over from a state."""

    position: Position
    bad_samples: list[BadSample]
    importance: ImportanceSession | None


def resumed(
    saved: Any, identity: dict[str, Any], settings: LoaderSettings, order: LoaderOrder, to_load: Any
) -> Resumed:
    """What is in a state for a loader with these settings; StateError, naming the field, if it does not fit.

    `to_load` is what the loader reads of its dataset.
    """
    fields = checkpoint.check_version(saved)
    deals_out = settings.executor != "threads" and deals_itself_out(to_load, settings.reuse.iterable_view())
    may_differ = {"num_workers"} if deals_out else set()
    if order.kind.is_planned and (order.shard is not None or shard_state.FIELD in fields.names()):
        may_differ.add("batch_size")
    checkpoint.check_identity(fields, identity, may_differ)
    position, found = checkpoint.load(
        fields,
        identity,
        has_generator=settings.generator is not None,
        is_stateful=is_stateful(settings.dataset),
        deals_itself_out=deals_out,
    )
    importance = settings.importance
    if importance is not None:
        importance = importance.copied(settings.counters)
        state, worlds = saved.get("importance_state"), shard_state.worlds(fields)
        session_state.load(importance, state, identity["seed"], worlds)
        session_state.check_epoch(importance, position)
    if order.kind.is_planned:
        position = shard_state.load(
            fields,
            position,
            order.layout,
            partial(steps_of, settings, importance),
            whole_batches=settings.reuse.batch_echo is not None,
        )
    if importance is not None and not position.step and position.start is None:
        importance.deal_again()
    return Resumed(position, found, importance)
