"""What a stream of Hugging Face's `datasets` does otherwise than torchdata's protocol says."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from rekindle.core.state_fields import MOST_EPOCHS, StateFields
from rekindle.errors import ArgumentError

# Where such a dataset keeps a loaded state. Every later pass of the same epoch would start there again.
_LOADED = "_starting_state_dict"
# Makes the whole stream, of which a worker then takes its part.
_PREPARE = "_prepare_ex_iterable_for_iteration"


def is_hugging_face(dataset: object) -> bool:
    """Whether this is a `datasets.IterableDataset`. It keeps nothing from one pass to the next."""
    if not isinstance(dataset, IterableDataset):  # Others may have a `__getattr__` that raises anything.
        return False
    return hasattr(dataset, _LOADED) and hasattr(dataset, "_ex_iterable")


def load_state(dataset: Any, state: object) -> None:
    """Load a state of such a dataset. In a worker it is that of a part.

    `datasets` loads that into the whole stream, too, before it takes the part. Where the two differ in more
    than their shards, as with `concatenate_datasets`, that fails.
    """
    dataset.load_state_dict(state)
    if get_worker_info() is not None and hasattr(dataset, _PREPARE):
        vars(dataset)[_PREPARE] = partial(_prepared_without_state, dataset)


def _prepared_without_state(dataset: object, *arguments: object, **keywords: object) -> object:
    state = getattr(dataset, _LOADED)
    setattr(dataset, _LOADED, None)
    try:
        return getattr(type(dataset), _PREPARE)(dataset, *arguments, **keywords)
    finally:
        setattr(dataset, _LOADED, state)


def forget_loaded_state(dataset: object) -> None:
    """Let the next pass begin at the beginning; the one that has begun goes on from the state."""
    setattr(dataset, _LOADED, None)
    vars(dataset).pop(_PREPARE, None)


def epoch_of(dataset: object) -> int:
    """The epoch that such a dataset was told, by which it shuffles."""
    return int(dataset.epoch)  # type: ignore[attr-defined]


def follow_epoch(dataset: object, fields: StateFields) -> None:
    """Tell such a dataset the epoch that a checkpoint is of: in any other it would not go on, but begin."""
    if is_hugging_face(dataset) and "dataset_epoch" in fields.names():
        dataset.set_epoch(fields.integer("dataset_epoch", most=MOST_EPOCHS))  # type: ignore[attr-defined]


def deals_itself_out(dataset: object, as_read: object) -> bool:
    """Whether a dataset, read as it is, deals itself out to any number of workers."""
    return dataset is as_read and is_hugging_face(dataset)


def split_for(dataset: object, rank: int, world: int) -> Any:
    """One rank's part of such a dataset, which it deals to that rank's workers; not of a part."""
    if getattr(dataset, "_distributed", None) is not None:
        raise ArgumentError(
            f"shard=({rank}, {world}): the stream is split by split_dataset_by_node already. Leave one of "
            "them out."
        )
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(dataset, rank, world)


def split_again(dataset: Any, rank: int, world: int) -> Any:
    """Another rank's part of such a dataset, of a copy that is one rank's part already."""
    epoch = epoch_of(dataset)
    dataset._distributed = None
    whole = dataset if world == 1 else split_for(dataset, rank, world)
    whole.set_epoch(epoch)
    return whole


def loses_samples(dataset: object) -> bool:
    """Whether the dataset's state is without samples that it has read: then they are skipped instead.

    Those in the buffer of `shuffle`; and, of concatenated streams of which some are read as Arrow tables and
    others are not (after `map`, say), the rest of a table, in a worker that reads only the former.
    """
    found: list[object] = [getattr(dataset, "_ex_iterable", None)]
    while found:
        one = found.pop()
        if hasattr(one, "buffer_size"):
            return True
        members = getattr(one, "ex_iterables", [])
        if len({getattr(member, "iter_arrow", None) is None for member in members}) > 1:
            return True
        found += [*members, *([one.ex_iterable] if hasattr(one, "ex_iterable") else [])]
    return False
