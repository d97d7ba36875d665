"""What a checkpoint holds of an importance session: scores, the epoch's choice, feedback not taken in yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Parameter, name_of
from rekindle.choose.importance.session import ImportanceSession, SessionProgress
from rekindle.choose.position import Position
from rekindle.choose.rank_homes import Dealt, RankHomes, shares_of
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.choose.sample_ids import as_ids
from rekindle.choose.scores import Findings, Loaded, Measured, Scores
from rekindle.choose.selection import Choice
from rekindle.choose.shard import ONE_RANK, Shard
from rekindle.core.state_fields import MOST, MOST_EPOCHS, MOST_RANKS, StateFields, shown
from rekindle.errors import StateError

_Scalar = TypeVar("_Scalar", bound=np.generic)
# What arrays have in a checkpoint, whatever they take in memory; others as they are.
_SAVED_AS: dict[str, np.dtype[np.number]] = {
    **dict.fromkeys(("uses", "turns", "nbytes"), np.dtype(np.int64)),
    **dict.fromkeys(("epoch", "age", "count", "forgotten", "loads", "made"), np.dtype(np.int32)),
    **dict.fromkeys(("mean", "squares"), np.dtype(np.float64)),
    "load_seconds": np.dtype(np.float32),
}


class ImportanceState(TypedDict):
    """Numbers, strings and tensors, in dictionaries and lists."""

    method: dict[str, Parameter]  # its name and parameters
    scores: dict[str, torch.Tensor]
    seconds: list[float]  # waiting and working, as in the scores
    epoch: int
    world: int
    ids: torch.Tensor | None
    weights: torch.Tensor | None
    even_batches: bool
    dealt: dict[str, Any] | None  # to which ranks, where they keep what is cached
    homes: dict[str, Any] | None  # which rank has what
    measured: dict[str, torch.Tensor]  # in this epoch so far, as are those that follow
    loaded: dict[str, torch.Tensor]
    open_seconds: list[float]
    own: object  # what the method itself remembers


def save(session: ImportanceSession) -> ImportanceState:
    """The state of a session, with the feedback of all ranks: any of them may ask."""
    scores, epoch, choice, found, _ = session.everyones_progress()
    assert found is not None
    return {
        "method": session.identity,
        "scores": {
            name: _tensor(array.astype(_SAVED_AS.get(name, array.dtype))) for name, array in _kept(scores)
        },
        "seconds": [scores.wait_seconds, scores.work_seconds],
        "epoch": epoch,
        "world": 1 if choice is None else choice.world,
        "ids": None if choice is None else _tensor(choice.ids.astype(np.int64)),
        "weights": None if choice is None else _tensor(choice.weights),
        "even_batches": choice is not None and choice.even_batches,
        "dealt": None if choice is None or choice.dealt is None else _saved_ranks(choice.dealt),
        "homes": None if session.homes is None else _saved_ranks(session.homes),
        "measured": {name: _tensor(array) for name, array in found.measured._asdict().items()},
        "loaded": {name: _tensor(array) for name, array in found.loaded._asdict().items()},
        "open_seconds": [found.wait_seconds, found.work_seconds],
        "own": _as_tensors(session.method.state_dict()),
    }


def _saved_ranks(of: Dealt | RankHomes) -> dict[str, Any]:
    return {"world": of.world, "ranks": _tensor(of.ranks.astype(np.int32))}


def load(session: ImportanceSession, state: object, seed: int, worlds: Collection[int] = (1,)) -> None:
    """Continue a session from a saved state; StateError, naming the field, if the state does not fit.

    `worlds` are the numbers of ranks that the state may be of. What they had found in the epoch so far, each
    rank here knows then: at its end, what these have found is added.
    """
    fields = StateFields(state, "importance_state")
    here, saved = session.identity, fields.get("method")
    if not _is_same(saved, here):
        raise StateError(
            f"importance: the checkpoint was saved with {_described(saved)}, this loader has {here!r}. "
            "Create the loader with the same importance=, or do not load this checkpoint."
        )
    size = len(session.scores)
    scores = _scores(fields, Scores.unknown(size, seed, session.scores.kept))
    choice = _choice(fields, scores, session.refresh, session.shard or ONE_RANK, worlds)
    measured, loaded = _measured(fields.inner("measured"), size), _loaded(fields.inner("loaded"), size)
    wait_seconds, work_seconds = fields.seconds("open_seconds", 2)
    epoch = fields.integer("epoch", least=-1, most=MOST_EPOCHS)
    if (epoch == -1) != (choice is None):
        fields.refuse("epoch", f"a choice of samples for epoch {epoch}")
    homes = _homes(fields, size)
    _load_own(session.method, fields, size)
    earlier = Findings(measured, loaded, wait_seconds, work_seconds)
    session.homes = homes
    session.resume(SessionProgress(scores, epoch, choice, None, earlier))


def check_epoch(session: ImportanceSession, position: Position) -> None:
    """StateError if a position is within an epoch that the session has no choice for."""
    has_choice = session.choice is not None and session.epoch == position.epoch
    if not has_choice and (position.step or position.ahead):
        raise StateError(
            f"importance: the checkpoint has samples for epoch {session.epoch}, but its position is in epoch "
            f"{position.epoch}"
        )


def _kept(scores: Scores) -> list[tuple[str, NDArray[np.number]]]:
    """The arrays that hold something, by name."""
    return [(name, array) for name, array in scores.arrays().items() if array.flags.writeable]


def _scores(fields: StateFields, scores: Scores) -> Scores:
    saved = fields.inner("scores")
    for name, array in _kept(scores):
        values = _checked(saved, name, _SAVED_AS.get(name, array.dtype), len(scores))
        if name == "turns" and scores.turns is scores.uses and (values != scores.uses).any():
            saved.refuse("turns", "expected those of scores.uses, as no near-duplicates share results")
        scores.restore(name, values)
    known = scores.known
    for name, array in _kept(scores):
        if name in ("loss", "probability") and (np.isfinite(array) != known).any():
            saved.refuse(name, "expected a number for each sample that was measured, and NaN for all others")
    if (scores.squares > scores.count + 1).any():
        saved.refuse("squares", "larger than the squares of so many probabilities can be")
    if (scores.made >= scores.uses).any():
        saved.refuse("made", "expected earlier uses of the samples, as scores.uses counts them")
    scores.wait_seconds, scores.work_seconds = fields.seconds("seconds", 2)
    return scores


def _choice(
    fields: StateFields,
    scores: Scores,
    refresh: RefreshByUse | None,
    shard: Shard,
    worlds: Collection[int],
) -> Choice | None:
    turns = scores.turns
    if fields.get("ids") is None:
        return None
    ids = _ids(fields, len(turns))
    if not len(ids):
        fields.refuse("ids", "a choice of no samples")
    if (turns[ids] < 1).any():
        fields.refuse("ids", "samples are chosen that were never used, by scores.turns")
    weights = fields.array("weights", np.dtype(np.float32), len(ids), within="samples are chosen")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        fields.refuse("weights", "some are negative or not finite")
    if (world := fields.integer("world", least=1)) not in worlds:
        raise StateError(
            f"importance: the samples were chosen for {world} ranks, but the position is that of "
            f"{' or '.join(map(str, worlds))}; was the state edited?"
        )
    is_reused = refresh is not None and not refresh.shared
    cached = scores.made[ids].astype(np.int64) if is_reused else None
    return Choice(
        as_ids(ids, len(turns)),
        weights,
        None if refresh is None else turns[ids].astype(np.int64) - 1,
        fields.boolean("even_batches"),
        shard.rank,
        shard.world,
        cached,
        _dealt(fields, len(ids), worlds),
    )


def _dealt(fields: StateFields, rows: int, worlds: Collection[int]) -> Dealt | None:
    """To which ranks the rows of a choice were dealt: evenly, the first ones get what is left over."""
    if fields.get("dealt") is None:
        return None
    world, ranks = _ranks(fields.inner("dealt"), rows, "samples are chosen")
    if world not in worlds:
        fields.refuse("dealt", f"samples were dealt to {world} ranks, but there were {worlds}")
    counts = np.bincount(ranks[ranks >= 0], minlength=world)
    if (counts != shares_of(int(counts.sum()), world)).any():
        fields.refuse("dealt", "the ranks do not have equally many samples")
    return Dealt(world, ranks)


def _homes(fields: StateFields, size: int) -> RankHomes | None:
    """Which rank had what; another number of ranks begins without."""
    if fields.get("homes") is None:
        return None
    world, ranks = _ranks(fields.inner("homes"), size, "samples are there")
    homes = RankHomes(size, world)
    homes.ranks[:] = ranks
    return homes


def _ranks(fields: StateFields, length: int, within: str) -> tuple[int, NDArray[np.int32]]:
    world = fields.integer("world", least=2, most=MOST_RANKS)
    ranks = fields.array("ranks", np.dtype(np.int32), length, within=within)
    if len(ranks) and not -1 <= ranks.min() <= ranks.max() < world:
        fields.refuse("ranks", f"expected numbers from -1 to {world - 1}")
    return world, ranks


def _measured(fields: StateFields, size: int) -> Measured:
    ids = _ids(fields, size)
    return Measured(
        ids=ids,
        loss=fields.array("loss", np.dtype(np.float32), len(ids)),  # Those that are not finite do not count.
        probability=_checked(fields, "probability", np.dtype(np.float32), len(ids)),
        rival=_checked(fields, "rival", np.dtype(np.float32), len(ids)),
        correct=_checked(fields, "correct", np.dtype(np.int8), len(ids)),
        age=_checked(fields, "age", np.dtype(np.int32), len(ids)),
    )


def _loaded(fields: StateFields, size: int) -> Loaded:
    ids = _ids(fields, size)
    seconds = _checked(fields, "load_seconds", np.dtype(np.float32), len(ids), "seconds")
    return Loaded(ids, seconds, _checked(fields, "nbytes", np.dtype(np.int64), len(ids)))


def _load_own(method: ImportanceMethod, fields: StateFields, size: int) -> None:
    name = name_of(method)
    try:
        own = _as_arrays(fields.get("own"))
    except (RecursionError, RuntimeError, TypeError) as error:
        fields.refuse("own", f"{name} cannot use the state that was saved: {type(error).__name__}")
    if own is None and method.state_dict() is None:
        return
    if not isinstance(own, dict):
        fields.refuse("own", f"expected the state that {name} saved as its own, but got {shown(own)}")
    for key, value in own.items():
        if isinstance(value, np.ndarray) and value.ndim and len(value) != size:
            fields.refuse(f"own.{shown(key)}", f"{len(value)} entries, but there are {size} samples")
    try:
        method.load_state_dict(own)
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"importance: {name} cannot use the state that was saved: {error!r}") from error


def _ids(fields: StateFields, size: int) -> NDArray[np.int64]:
    ids = fields.array("ids", np.dtype(np.int64))
    if len(ids) and not (ids.min() >= 0 and ids.max() < size):
        fields.refuse("ids", f"they range from {ids.min()} to {ids.max()}, but there are {size} samples")
    return ids


class _Range(NamedTuple):
    least: float
    most: float
    or_nan: bool = False  # for what is not known


_PROBABILITY = _Range(0, 1.001, or_nan=True)  # with what rounding adds
_SECONDS = _Range(0, float(np.finfo(np.float32).max), or_nan=True)
_COUNT = _Range(0, MOST_EPOCHS)
# What is within these can be computed with: nothing overflows, no weight becomes NaN.
_RANGES = {
    "loss": _Range(-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max), or_nan=True),
    "probability": _PROBABILITY,
    "rival": _PROBABILITY,
    "correct": _Range(-1, 1),
    "epoch": _Range(-1, MOST_EPOCHS),
    "age": _Range(-1, MOST_EPOCHS),
    "count": _COUNT,
    "mean": _Range(0, 1.001),
    "squares": _Range(0, MOST_EPOCHS),
    "forgotten": _COUNT,
    "load_seconds": _SECONDS,
    "nbytes": _Range(-1, MOST),
    "loads": _COUNT,
    "uses": _COUNT,
    "turns": _COUNT,
    "made": _Range(-1, MOST_EPOCHS),
}


def _checked(
    fields: StateFields, kind: str, dtype: np.dtype[_Scalar], length: int, name: str = ""
) -> NDArray[_Scalar]:
    """A field of this kind with a number for each of so many samples, all of them in its range."""
    name, (least, most, or_nan) = name or kind, _RANGES[kind]
    array = fields.array(name, dtype, length, within="samples are there")
    numbers: NDArray[Any] = array
    right = (numbers >= least) & (numbers <= most)
    if not (right | np.isnan(numbers) if or_nan else right).all():
        fields.refuse(name, f"expected numbers from {least:g} to {most:g}" + or_nan * " or NaN")
    return array


def _is_same(saved: object, here: object) -> bool:
    """Whether a saved value is this plain one; never compares anything else."""
    if isinstance(here, dict):
        return (
            type(saved) is dict
            and _is_same(list(saved), list(here))
            and _is_same([*saved.values()], [*here.values()])
        )
    if isinstance(here, list):
        return type(saved) is list and len(saved) == len(here) and all(map(_is_same, saved, here))
    if type(saved) not in (bool, int, float, str, type(None)) or isinstance(saved, bool) != isinstance(
        here, bool
    ):
        return False
    return saved == here


def _described(saved: object) -> str:
    """The parameters of a method in a message."""
    if not isinstance(saved, dict):
        return shown(saved)
    return "{" + ", ".join(f"{shown(name)}: {shown(value)}" for name, value in saved.items()) + "}"


def _tensor(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def _as_tensors(own: object) -> object:
    if isinstance(own, Mapping):
        return {name: _as_tensors(value) for name, value in own.items()}
    return _tensor(own) if isinstance(own, np.ndarray) else own


def _as_arrays(own: object) -> object:
    if isinstance(own, dict):
        return {name: _as_arrays(value) for name, value in own.items()}
    if not isinstance(own, torch.Tensor):
        return own
    if own.dim() and not own.is_contiguous():
        raise TypeError("a tensor without numbers of its own")
    return own.detach().cpu().numpy().copy()
