"""The life of one loader: whatever a script does with it, in any order, each batch is the one that is due.

The model is two numbers: which epoch is next, and how many of its batches are done. What they are is a
function of the epoch and of the dataset, asked of torch's loader, or of a new one of ours for what is drawn.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.data
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch.utils.data import Dataset

import rekindle as rk
from resumable import through_a_file
from same import same

SEED = 5


class Values(Dataset[Any]):
    """Samples that a script may change, and a draw."""

    def __init__(self, size: int, draws: bool) -> None:
        self.values, self.draws = [0] * size, draws

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        return index, self.values[index], float(torch.rand(())) if self.draws else 0.0


class Life(RuleBasedStateMachine):
    """A loader without workers."""

    workers: tuple[dict[str, Any], ...] = ({},)

    @initialize(
        size=st.integers(1, 9),
        batch_size=st.sampled_from([2, 1, 3, None]),
        drop_last=st.booleans(),
        shuffle=st.booleans(),
        draws=st.booleans(),
        data=st.data(),
    )
    def make(
        self,
        size: int,
        batch_size: int | None,
        drop_last: bool,
        shuffle: bool,
        draws: bool,
        data: st.DataObject,
    ) -> None:
        self.dataset = Values(size, draws)
        self.arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle}
        if batch_size is not None:
            self.arguments["drop_last"] = drop_last
        self.is_torchs = not (shuffle or draws)
        self.options = data.draw(st.sampled_from(self.workers))
        self.loader = rk.DataLoader(self.dataset, seed=SEED, **self.arguments, **self.options)
        self.length = len(torch.utils.data.DataLoader(self.dataset, **self.arguments))
        self.next: tuple[int, int] = (0, 0)  # where the next pass begins: epoch, batches
        self.place = self.next  # where the loader stands: of the pass, if there is one
        self.iterator: Any = None
        self.requested: int | None = None  # by set_epoch, since the last pass began
        self.is_over = self.was_ended = self.is_begun = False
        self.due: list[Any] = []  # the batches of the pass
        self.known: dict[tuple[int, ...], list[Any]] = {}  # by epoch and values
        self.states: list[tuple[Any, tuple[int, int]]] = []

    def batches_of(self, epoch: int) -> list[Any]:
        key = (0 if self.is_torchs else epoch, *self.dataset.values)
        if key not in self.known:
            self.known[key] = self.new_batches_of(epoch)
        return self.known[key]

    def new_batches_of(self, epoch: int) -> list[Any]:
        if self.is_torchs:
            return list(torch.utils.data.DataLoader(self.dataset, **self.arguments))
        fresh = rk.DataLoader(self.dataset, seed=SEED, **self.arguments)
        fresh.set_epoch(epoch)
        return list(fresh)

    @rule()
    def start_a_pass(self) -> None:
        self.iterator = None  # As a loop does that begins: what was left of the last one is dropped.
        self.iterator = iter(self.loader)
        self.place, self.is_over, self.was_ended, self.is_begun = self.next, False, False, True
        self.due = self.batches_of(self.place[0])
        self.next, self.requested = (self.place[0] + 1, 0), None

    @precondition(lambda self: self.iterator is not None)
    @rule(times=st.integers(1, 4))
    def ask(self, times: int) -> None:
        for _ in range(times):
            if self.was_ended:
                with pytest.raises(rk.WorkerError, match="was closed within this epoch"):
                    next(self.iterator)
                continue
            batch = next(self.iterator, None)
            epoch, step = self.place
            if self.is_over or step == len(self.due):
                assert batch is None
                self.is_over, self.is_begun, self.place = True, False, self.next
                continue
            assert same(batch, self.due[step])
            assert (self.loader.batch.epoch, self.loader.batch.step) == self.place
            self.place = (epoch, step + 1)

    @rule()
    def run_a_whole_epoch(self) -> None:
        self.start_a_pass()
        self.ask(len(self.due) + 1 - self.place[1])
        assert self.is_over

    @rule()
    def leave_the_loop(self) -> None:
        self.iterator = None

    @rule()
    def save(self) -> None:
        # Within a pass, or where one was left, a state is of that, whatever the next pass is to be.
        asked_for = not self.is_begun and self.requested not in (None, self.place[0])
        place = (self.requested, 0) if asked_for else self.place
        self.states.append((through_a_file(self.loader.state_dict()), place))

    @precondition(lambda self: self.states)
    @rule(data=st.data(), new=st.booleans())
    def load(self, data: st.DataObject, new: bool) -> None:
        state, place = data.draw(st.sampled_from(self.states))
        if new:
            self.loader.close()
            self.iterator = None
            self.loader = rk.DataLoader(self.dataset, seed=SEED, **self.arguments, **self.options)
        self.loader.load_state_dict(state)
        self.place = self.next = place
        self.requested, self.is_begun = None, False
        self.was_ended = not self.is_over

    @rule(epoch=st.integers(0, 5))
    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)
        self.requested = epoch
        if self.next[0] != epoch:
            self.next = (epoch, 0)

    @precondition(lambda self: self.changes_are_seen)
    @rule(data=st.data(), value=st.integers(1, 9))
    def change_a_sample(self, data: st.DataObject, value: int) -> None:
        index = data.draw(st.integers(0, len(self.dataset) - 1))
        self.dataset.values[index] = value
        if self.iterator is not None and not self.is_over:
            self.due = self.batches_of(self.place[0])

    @property
    def changes_are_seen(self) -> bool:
        """Whether the next batch shows them: not those that workers have loaded, or have copies of."""
        return not self.options or self.iterator is None

    @rule()
    def close(self) -> None:
        self.loader.close()
        self.was_ended = not self.is_over

    @invariant()
    def the_length_is_torchs(self) -> None:
        if hasattr(self, "loader"):
            assert len(self.loader) == self.length

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.loader.close()


class LifeWithWorkers(Life):
    """Threads or processes, which end with a pass or persist."""

    workers = (
        {"num_workers": 1},
        {"num_workers": 2, "executor": "threads"},
        {"num_workers": 2, "executor": "threads", "persistent_workers": True},
    )


class LongLife(Life):
    """Lives that are others on every run."""


# The quick run is the same every time.
TestLife = Life.TestCase
TestLife.settings = settings(max_examples=50, stateful_step_count=20, deadline=None, derandomize=True)
TestLifeWithWorkers = LifeWithWorkers.TestCase
TestLifeWithWorkers.settings = settings(
    max_examples=10,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestLongLife = pytest.mark.slow(LongLife.TestCase)
TestLongLife.settings = settings(max_examples=500, stateful_step_count=30, deadline=None)
