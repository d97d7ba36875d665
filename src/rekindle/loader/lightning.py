"""Lightning keeps the states of loaders in its checkpoints: this has ours resumed after an epoch as well.

Lightning loads such a state only within an epoch. After its ordinary checkpoints, at the end of one, a loader
begins anew: with the order and the augmentation of epoch 0. And a checkpoint that is saved at the last batch
(`ModelCheckpoint(every_n_train_steps=…)`) has the loader behind that batch, but Lightning behind the epoch:
it would take the rest of the old epoch for the next one. Of several loaders (`CombinedLoader`), one may then
have more to give, or have come to its end long before.

And it asks for the number of batches once: an epoch of `importance=` with more would be cut off, and one with
fewer would end without its validation.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

from rekindle.choose.sampler_epochs import epoch_sampler
from rekindle.errors import StateError
from rekindle.loader.checkpoint import State

if TYPE_CHECKING:
    from rekindle.loader.dataloader import DataLoader

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_PATCHED = "_rekindle_loads_states"
_ENDLESS = float("inf")
Lightnings: TypeAlias = Any  # modules, loops and loaders of Lightning's, by their private names


def install() -> None:
    """Teach Lightning's fit loop to resume our loaders; does nothing the second time."""
    for package in _PACKAGES:
        loops: Lightnings = sys.modules.get(f"{package}.loops.fit_loop")
        if hasattr(loops, "_FitLoop") and not hasattr(loops._FitLoop, _PATCHED):
            _patch(loops._FitLoop)
            _patch_epochs(loops)


def _patch_epochs(loops: Lightnings) -> None:
    loop, stage = loops._TrainingEpochLoop, loops.RunningStage.TRAINING
    on_run_start = loop.on_run_start

    def on_run_start_with_lengths(self: Lightnings, data_fetcher: Lightnings) -> None:
        on_run_start(self, data_fetcher)  # which asks the loaders for iterators
        fit, trainer = self.trainer.fit_loop, self.trainer
        combined = fit._combined_loader
        chosen = [number for number, loader in enumerate(combined.flattened) if _chooses(loader)]
        if not chosen or combined.limits is None:
            return
        for number in chosen:
            length = len(combined.flattened[number])
            combined.limits[number] = loops._parse_num_batches(stage, length, trainer.limit_train_batches)
        batches = loops.sized_len(combined)
        if batches is None:
            return
        fit.max_batches = data_fetcher.length = batches
        if isinstance(trainer.val_check_interval, float) and trainer.val_check_batch is not None:
            trainer.val_check_batch = max(1, int(batches * trainer.val_check_interval))

    loop.on_run_start = on_run_start_with_lengths


def _chooses(loader: object) -> bool:
    from rekindle.loader.dataloader import DataLoader

    return isinstance(loader, DataLoader) and loader.importance is not None


def _patch(loop: Lightnings) -> None:
    load = loop._load_combined_loader_states

    def load_combined_loader_states(self: Lightnings) -> None:
        states, within_an_epoch = self._combined_loader_states_to_load, self.restarting
        load(self)
        if states and self._combined_loader is not None:
            _resume(self, states, is_loaded=within_an_epoch)
            self._combined_loader_states_to_load = []

    loop._load_combined_loader_states = load_combined_loader_states
    setattr(loop, _PATCHED, True)


def _resume(loop: Lightnings, states: list[State], *, is_loaded: bool) -> None:
    """Load the states of our loaders, unless Lightning did, and begin another pass if its epoch is over."""
    from rekindle.loader.dataloader import DataLoader

    combined = loop._combined_loader
    limits = combined.limits or [_ENDLESS] * len(combined.flattened)
    lengths = [_length(loader, limit) for loader, limit in zip(combined.flattened, limits, strict=True)]
    stateful = [
        (loader, length)
        for loader, length in zip(combined.flattened, lengths, strict=True)
        if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    ]
    if len(stateful) != len(states):
        return
    done = loop.epoch_loop.batch_progress.current.processed
    # Without a length, Lightning has asked for one batch more, and got the end.
    is_over = done >= (min(lengths) if combined._mode == "min_size" else max(lengths))
    for (loader, length), state in zip(stateful, states, strict=True):
        if not isinstance(loader, DataLoader):
            continue
        if not is_loaded and not _load(loader, state, loop.epoch_progress.current.processed):
            continue
        position = loader._progress.position
        epoch, begun = position.epoch, position.step + len(position.ahead)
        if is_over and begun:
            iter(loader)  # and drop it, as Lightning does with an epoch that is over
            epoch += 1
        elif combined._mode == "max_size" and not is_over and not begun and done >= length:
            loader._epochs.sits_out = True  # It was at its end, and has no batch while the others go on.
        if callable(getattr(epoch_sampler(loader._sampler_to_set), "set_epoch", None)):
            loader.set_epoch(epoch)  # Lightning tells the sampler only after it has called `iter`.


def _length(loader: object, limit: float) -> float:
    """How many batches a loader has in an epoch of Lightning's."""
    try:
        return min(limit, len(loader))  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return _ENDLESS


def _load(loader: DataLoader[object], state: State, epoch: int) -> bool:
    """Load a state; if it does not fit, say so: between two epochs, another loader may go on from there."""
    try:
        loader.load_state_dict(state)
    except StateError as error:
        warnings.warn(
            f"the loader's state in Lightning's checkpoint does not fit this loader, which begins epoch "
            f"{epoch} without it. {error}",
            stacklevel=2,
        )
        loader.set_epoch(epoch)
        return False
    return True
