"""The own state of a map-style dataset in a checkpoint: of the script's object, and of the workers' copies.

As torchdata's StatefulDataLoader has it: without workers the dataset is asked for its state; with workers a
copy's state is the one behind the last of its batches that was yielded. Beyond torchdata, the state of the
script's own object is kept beside those of the copies, which are made of it; and where loading has changed
nothing, it goes into any number of workers.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any, NamedTuple, cast

from rekindle.choose.position import CopyStates, Position
from rekindle.core.interrupts import is_interrupt
from rekindle.core.state_fields import StateFields, shown
from rekindle.errors import StateError
from rekindle.loader.checkpoint import State
from rekindle.loader.epoch_iterator import Progress
from rekindle.loader.plain_state import check_plain, is_same
from rekindle.loader.settings import LoaderSettings
from rekindle.loader.stream_state import MOST_WORKERS
from rekindle.run import MapRunner, Runner
from rekindle.run.dataset_copies import taken

FIELD = "dataset_state"


class Restored(NamedTuple):
    """What a state has of a dataset: `own` for the script's object, `copies` for those of the workers."""

    own: Any = None
    copies: CopyStates | None = None


def begin(settings: LoaderSettings, runner: Runner, position: Position, *, is_new: bool) -> None:
    """Note in a position, where an epoch begins, in which states the workers' copies are, or put them there.

    Workers that live on have theirs. New ones have that of the script's object, unless the position says
    otherwise: it is a checkpoint's, or that of workers which were to persist.
    """
    if settings.num_workers == 0 or not settings.has_state:
        return
    if not settings.takes_states:  # Threads have no copies; what they change is seen in the one object.
        position.copies = (_before_loading(settings.dataset),)
        return
    workers = cast("MapRunner", runner)
    given = position.copies
    if given is None:
        given = (_before_loading(settings.dataset),) * settings.num_workers if is_new else workers.states
    if is_new:
        workers.load_states(given, are_there=position.copies is None)
    position.copies = given


def _before_loading(dataset: object) -> bytes | None:
    """The state that new copies have; None if the dataset can say so only once it was used."""
    state = taken(dataset)
    return state if isinstance(state, bytes) else None


def save(settings: LoaderSettings, progress: Progress, position: Position) -> State:
    """The part of a loader's state that is the dataset's; nothing, if it has none.

    Warns once of what is missing from it: Accelerate asks for a state after every batch.
    """
    if not settings.has_state:
        return {}
    saved: State = {"own": None, "workers": None}
    problem = None
    try:
        saved["own"] = _own(settings.dataset)
    except StateError as error:
        problem = error
    try:
        saved["workers"] = _of_workers(settings, position, saved["own"])
    except StateError as error:
        problem = error
    if problem is not None and saved["workers"] is None and not progress.has_warned:
        progress.has_warned = True
        what = f"{type(settings.dataset).__name__}.state_dict()"
        if saved["own"] is not None:
            what += " in workers, where loading samples may have changed it,"
        warnings.warn(
            f"{FIELD}: what {what} gives is not in the loader's state. {problem} "
            "Or save it in your checkpoint beside the loader's, and load it yourself.",
            stacklevel=4,  # whoever calls `state_dict`
        )
    return {FIELD: saved}


def _own(dataset: Any) -> Any:
    try:
        value = dataset.state_dict()
        check_plain(value, "state_dict()")
        return copy.deepcopy(value)
    except StateError:
        raise
    except Exception as error:  # RecursionError included: a state that contains itself.
        if is_interrupt(error):
            raise
        raise StateError(f"It failed with {type(error).__name__}: {error}.") from error


def _of_workers(settings: LoaderSettings, position: Position, own: Any) -> list[Any] | None:
    """The states of the copies; one, if they are the same; None, if that is the script's own as well."""
    if settings.reuse.batch_echo is not None:
        raise StateError('Echo(after="batch") loads batches again on resume: use after="augment".')
    if settings.chosen_executor == "ray":
        raise StateError("Actors of Ray load any samples at any time: use processes.")
    if position.copies is None:
        return None
    values = []
    for state in position.copies:
        if isinstance(state, str):
            raise StateError(state)
        if state is None:  # Nothing is known of a copy: it is what it was made of.
            values.append(own)
            continue
        value = pickle.loads(state)  # of our own processes
        check_plain(value, "state_dict()")
        values.append(value)
    if not all(is_same(values[0], value) for value in values):
        if not settings.in_order:
            raise StateError("With in_order=False, which worker loads a batch depends on the time.")
        return values
    if is_same(values[0], own):
        return None
    if settings.chosen_executor == "threads":
        raise StateError(
            "Threads have loaded samples ahead of the last batch, and changed it: use processes."
        )
    return values[:1]


def load(fields: StateFields, settings: LoaderSettings, *, same_batches: bool, stacklevel: int) -> Restored:
    """What a state has for this loader's dataset; StateError, naming the field, if it does not fit.

    `same_batches` says that the rest of the epoch is in the batches that it would have been in.
    """
    is_there = FIELD in fields.names() and fields.get(FIELD) is not None
    name = type(settings.dataset).__name__
    if not is_there:
        if settings.has_state:
            warnings.warn(
                f"{FIELD}: the state has nothing of what {name}.state_dict() gives: the dataset stays as it "
                "is. Load its state yourself, if it was saved elsewhere.",
                stacklevel=stacklevel + 1,
            )
        return Restored()
    if not settings.has_state:
        raise StateError(
            f"{FIELD}: saved with a dataset that has state_dict and load_state_dict, and {name} has none. "
            "Make the loader with the same dataset."
        )
    saved = fields.inner(FIELD)
    own, workers = saved.get("own"), saved.get("workers")
    try:
        check_plain(own, saved.path("own"))
        check_plain(workers, saved.path("workers"))
    except RecursionError:
        saved.refuse("own", "the dataset's own state is nested too deeply")
    if workers is None:
        return Restored(copy.deepcopy(own))
    if type(workers) is not list or not 0 < len(workers) <= MOST_WORKERS:
        saved.refuse("workers", f"expected the states of workers, but got {shown(workers)}")
    if len(workers) == 1:
        if settings.chosen_executor != "processes":
            return Restored(copy.deepcopy(workers[0]))
        workers = workers * settings.num_workers
    if len(workers) != settings.num_workers or settings.chosen_executor != "processes":
        raise StateError(
            f"{saved.path('workers')}: {len(workers)} workers have changed their copies of {name}, each in "
            f"its own way, and this loader has num_workers={settings.num_workers}. Make it with num_workers="
            f"{len(workers)} and processes, or save between two epochs."
        )
    if not same_batches:
        raise StateError(
            f"{saved.path('workers')}: workers have changed their copies of {name}, each in its own way, and "
            "with another number of ranks or batch size their batches are others. Resume with the same, or "
            "save between two epochs."
        )
    return Restored(copy.deepcopy(own), tuple(map(_pickled, workers)))


def _pickled(state: Any) -> bytes | None:
    return None if state is None else pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
