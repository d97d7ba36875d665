"""Where a loader goes on from a saved state: nothing of it is used before all of it is checked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from rekindle.choose import OrderKind
from rekindle.choose.importance import session_state
from rekindle.choose.importance.session import ImportanceSession
from rekindle.choose.position import IterablePosition, Position
from rekindle.choose.seeding import before_an_epoch
from rekindle.errors import StateError
from rekindle.loader import checkpoint, dataset_state, shard_state, stream_ranks
from rekindle.loader.epoch_iterator import Progress
from rekindle.loader.epochs import Epochs, steps_of
from rekindle.loader.passes import Passes
from rekindle.loader.settings import LoaderSettings
from rekindle.loader.sharding import LoaderOrder
from rekindle.run import BadSample
from rekindle.run.hugging_face import deals_itself_out, epoch_of, is_hugging_face
from rekindle.run.stream_reader import is_stateful, with_state_before
from rekindle.ship import BatchInfo


class Resumed(NamedTuple):
    """What a loader takes over from a state."""

    position: Position
    bad_samples: list[BadSample]
    importance: ImportanceSession | None
    own_state: Any  # of a map-style dataset: what to load into the script's object, unless it is None


def batch_info(progress: Progress, passes: Passes) -> BatchInfo:
    """What the batch that the training loop has consists of; AttributeError if that cannot be said."""
    why = passes.why_unknown("loader.batch")
    if progress.current is None:
        why = "loader.batch describes the batch just yielded, and none has been yet"
    if progress.current is None or why is not None:
        raise AttributeError(why)
    return BatchInfo(progress.current)


def one_position(progress: Progress, passes: Passes) -> Position:
    """How far the loader has got; StateError if passes of several threads go on."""
    why = passes.why_unknown("state_dict()") if passes.going_on() else None
    if why is not None:
        raise StateError(why)
    return progress.position


def between_epochs(
    position: Position,
    sampler: object,
    settings: LoaderSettings,
    epochs: Epochs,
) -> Position:
    """The position before an epoch: what it will draw from, and the state of a dataset that is read here."""
    generator = settings.generator
    kept = partial(epochs.sampler_memory.between, sampler, generator, stacklevel=4)
    seeds = epochs.worker_seeds(settings)
    position = before_an_epoch(position, settings.order, sampler, generator, seeds, kept)
    if settings.order is not OrderKind.ITERABLE or settings.num_workers > 0:
        return position
    known = position.iterable or IterablePosition()
    with_state = with_state_before(known, settings.reuse.iterable_view())
    return position if with_state is known else replace(position, iterable=with_state)


def state_at(
    position: Position, settings: LoaderSettings, order: LoaderOrder, progress: Progress
) -> checkpoint.State:
    """What a checkpoint holds of a loader that stands at a position."""
    found, in_order = settings.bad_samples.found, settings.in_order or not settings.num_workers
    seen = found[: len(found) - progress.unseen_bad]
    saved = checkpoint.save(checkpoint.identity(settings), position, seen, order, in_order=in_order)
    if settings.importance is not None:
        saved["importance_state"] = session_state.save(settings.importance)
    if is_hugging_face(settings.dataset):
        saved["dataset_epoch"] = epoch_of(settings.dataset)
    return saved | dataset_state.save(settings, progress, position)


def one_state(saved: Any, settings: LoaderSettings, to_load: object) -> Any:
    """The state that a loader goes on from: the one given, or made of those of a stream's ranks."""
    can_deal_again = settings.executor != "threads" and deals_itself_out(
        to_load, settings.reuse.iterable_view()
    )
    shard, workers, is_own = settings.shard, settings.num_workers, is_stateful(settings.dataset)
    if not isinstance(saved, list | tuple):
        if settings.order is not OrderKind.ITERABLE or not stream_ranks.is_of_another(saved, shard):
            return saved
        same = stream_ranks.for_same_ranks(saved, shard, is_stateful=is_own)
        if same is not None or not can_deal_again:
            return same or saved
    elif not can_deal_again:
        raise StateError(
            f"expected what state_dict() gives, but got a list of {len(saved)}: that is for a stream of "
            "Hugging Face's datasets, read by processes. Of a map-style dataset, one rank's state is "
            "enough; of any other stream, give each rank its own."
        )
    return stream_ranks.for_rank(saved, shard, workers, is_stateful=is_own)


def resumed(
    saved: Any,
    identity: dict[str, Any],
    settings: LoaderSettings,
    order: LoaderOrder,
    to_load: object,
    *,
    stacklevel: int,
) -> Resumed:
    """What is in a state for a loader with these settings; StateError, naming the field, if it does not fit.

    `to_load` is what the loader reads of its dataset. `stacklevel` calls up is who is warned.
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
    _check_dataset_state(position, settings)
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
            rank=0 if order.shard is None else order.shard.rank,
        )
        checkpoint.check_order_seed(fields, position, order, identity["seed"])
    if importance is not None and not position.step and position.start is None:
        importance.deal_again()
    same_batches = (
        not position.step or not order.kind.is_planned or shard_state.layout_of(fields) == order.layout
    )
    own, position.copies = dataset_state.load(
        fields, settings, same_batches=same_batches, stacklevel=stacklevel + 1
    )
    return Resumed(position, found, importance, own)


def _check_dataset_state(position: Position, settings: LoaderSettings) -> None:
    """StateError if the dataset has moved on in this process, and the state cannot put it back."""
    dataset, iterable = settings.dataset, position.iterable
    is_moved = settings.num_workers == 0 and settings.counters.batches > 0
    if (
        settings.order is not OrderKind.ITERABLE
        or not is_moved
        or not is_stateful(dataset)
        or is_hugging_face(dataset)
    ):
        return
    if iterable is None or iterable.datasets in (None, (None,)):
        raise StateError(
            f"iterable: the state has nothing of the state_dict() of {type(dataset).__name__}, from which "
            "this loader has read already. Load it into a new loader, with a new dataset."
        )
