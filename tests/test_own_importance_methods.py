"""A user's own method of importance: any object with a plan."""

from dataclasses import dataclass

import numpy as np
import pytest

import rekindle as rk
from chosen import LOSSES, SIZE, make_loader, train

# A user's own method.


class HardHalf:
    """Train on the half with the highest losses, from the second epoch on."""

    def plan(self, epoch, scores):
        if epoch == 0:
            return np.arange(len(scores)), None
        hardest = np.argsort(-scores.loss)[: len(scores) // 2]
        return hardest, np.full(len(hardest), 0.5)


def test_any_object_with_a_plan_is_a_method():
    loader = make_loader(HardHalf(), shuffle=False)
    for rows in loader:
        loader.feedback(LOSSES[rows])
    seen, weights = [], []
    for rows in loader:
        seen += rows.tolist()
        weights += loader.batch.weights.tolist()
        loader.feedback(LOSSES[rows])
    assert seen == np.argsort(-LOSSES.numpy())[:30].tolist()
    assert weights == [0.5] * 30


class Alternating(rk.ImportanceMethod):
    """A subclass with a plan, and nothing else."""

    def plan(self, epoch, scores):
        return np.arange(epoch % 2, len(scores), 2), None


class Counting:
    """Not a subclass, with all the optional parts of one: begins one sample later in each epoch."""

    needs_feedback = False
    even_batches = True

    def __init__(self):
        self.epochs = 0

    def plan(self, epoch, scores):
        self.epochs += 1
        ids = np.arange(self.epochs, len(scores))
        return ids, np.where(ids % 2, 3.0, 1.0)

    def wants_load_times(self, epoch):
        return epoch == 1

    def describe(self):
        return {"epochs planned": self.epochs}

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


def test_a_subclass_needs_no_more_than_a_plan():
    loader = make_loader(Alternating(), shuffle=False)
    seen = []
    for _ in range(2):
        for rows in loader:
            seen += rows.tolist()
            loader.feedback(LOSSES[rows])
    assert seen == [*range(0, SIZE, 2), *range(1, SIZE, 2)]
    state = loader.state_dict()
    assert state["importance_state"]["own"] is None
    resumed = make_loader(Alternating(), shuffle=False)
    resumed.load_state_dict(state)
    assert next(iter(resumed)).tolist() == list(range(0, 16, 2))
    with pytest.raises(TypeError, match="abstract"):
        type("Planless", (rk.ImportanceMethod,), {})()


def test_the_optional_parts_of_an_object_that_is_no_subclass_are_used():
    loader = make_loader(Counting(), shuffle=False)
    for epoch in range(2):
        for step, rows in enumerate(loader):
            if step == 0:
                assert rows[0] == epoch + 1
            assert loader.batch.weights.mean() == pytest.approx(1)
    assert loader.report().importance["epochs planned"] == 3
    loads = loader._parts.importance.scores.loads
    assert loads.sum() == SIZE - 2, "timed in epoch 1 alone"
    resumed = make_loader(Counting(), shuffle=False)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[0] == 3
    assert resumed.report().importance["epochs planned"] == 3


def test_a_state_that_a_method_cannot_load_is_refused():
    class Remembering(HardHalf):
        def state_dict(self):
            return {"half": 1}

    Remembering.__name__ = "HardHalf"
    with pytest.raises(rk.StateError, match="HardHalf has no load_state_dict"):
        make_loader(HardHalf()).load_state_dict(make_loader(Remembering()).state_dict())
    with pytest.raises(rk.StateError, match="HardHalf"):
        make_loader(Remembering()).load_state_dict(make_loader(HardHalf()).state_dict())


def test_a_method_that_plans_nonsense_is_named():
    class Wrong:
        def plan(self, epoch, scores):
            return np.array([SIZE]), None

    with pytest.raises(rk.ArgumentError, match=rf"Wrong\.plan.*{SIZE}"):
        iter(make_loader(Wrong()))


def test_two_loaders_may_share_a_method():
    method = rk.Buckets(warmup=1, rate=0.5, confidence=0)
    first, second = make_loader(method), make_loader(method)
    train(first, 3)
    assert train(second, 2) == train(make_loader(rk.Buckets(warmup=1, rate=0.5, confidence=0)), 2)
    assert method.waiting is None


@dataclass
class FirstOfGroups:
    groups: rk.RedundantGroups
    needs_feedback = False

    def plan(self, epoch, scores):
        return np.flatnonzero(self.groups.numbers() != 0), None


def test_a_state_belongs_to_the_near_duplicates_of_its_method_which_are_shown_in_one_line():
    def loader(pairs):
        groups = rk.RedundantGroups.of(pairs, 8)
        return rk.DataLoader(range(8), 2, seed=1, importance=FirstOfGroups(groups))

    state, other = (loader(pairs).state_dict() for pairs in ([[0, 3], [1, 2]], [[0, 2], [1, 3]]))
    resumed = loader([[0, 3], [1, 2]])
    assert "groups=RedundantGroups(2 groups of 4 samples, of 8)" in repr(resumed)
    resumed.load_state_dict(state)
    with pytest.raises(rk.StateError, match="groups"):
        resumed.load_state_dict(other)
