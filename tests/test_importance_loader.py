"""A loader with importance=: the same choice for any number of workers, before and after a resume."""

import copy
import logging
import os
import pickle
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import rekindle as rk
from naming import named
from rekindle.choose import plan_epoch, planned_orders
from rekindle.choose.position import Position
from rekindle.run.in_flight_batch import CollatedBatch
from rekindle.ship import yielded

SIZE = 60
LOSSES = torch.rand(SIZE, generator=torch.Generator().manual_seed(1)) * 3
LOGITS = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(2)) * 2
TARGETS = torch.arange(SIZE) % 4


class Numbers(torch.utils.data.Dataset):
    """Sample i is i: from a Python __getitem__."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


class NumbersInThreads(Numbers):
    releases_gil = True


METHODS = {
    "Buckets": lambda: rk.Buckets(warmup=1, rate=0.1, confidence=0, patience=1),
    "InfoBatch": lambda: rk.InfoBatch(epochs=5),
    "Kakurenbo": lambda: rk.Kakurenbo(epochs=5, confidence=0.3),
    "OnlineBatchSelection": lambda: rk.OnlineBatchSelection(epochs=5),
    "ActiveBias": lambda: rk.ActiveBias(warmup=1),
    "RandomSubset": lambda: rk.RandomSubset(keep=0.4),
}


def make_loader(method, dataset=None, **arguments):
    arguments = {"batch_size": 8, "shuffle": True, "seed": 5, **arguments}
    return rk.DataLoader(dataset or Numbers(), importance=method, **arguments)


def learn(loader, rows):
    """Feedback that depends on the epoch, as that of a model that learns would."""
    loader.feedback(
        logits=LOGITS[rows] * (1 + loader.batch.epoch * rows[:, None] / SIZE), targets=TARGETS[rows]
    )


def train(loader, epochs):
    """What a training loop sees: ids and weights of each batch, in each epoch."""
    seen = []
    for _ in range(epochs):
        batches, length = [], len(loader)
        for rows in loader:
            rows = rows[0] if isinstance(rows, list) else rows
            assert torch.equal(loader.batch.ids, rows)
            batches.append((rows.tolist(), loader.batch.weights.tolist()))
            learn(loader, rows)
        assert len(batches) == length
        seen.append(batches)
    return seen


@pytest.fixture(scope="module")
def references():
    return {name: train(make_loader(make()), 5) for name, make in METHODS.items()}


@pytest.mark.parametrize("name", METHODS)
def test_epochs_differ_and_are_those_of_the_plan(name, references):
    epochs = references[name]
    assert len({str(epoch) for epoch in epochs}) == 5
    if name in ("Buckets", "InfoBatch", "RandomSubset"):
        assert any(sum(len(ids) for ids, _ in epoch) < SIZE for epoch in epochs)
    if name in ("InfoBatch", "ActiveBias"):
        assert any(weight != 1 for epoch in epochs for _, weights in epoch for weight in weights)


@pytest.mark.parametrize("name", ["Buckets", "InfoBatch"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 2},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 2, "dataset": NumbersInThreads()},
        {"num_workers": 3, "executor": "threads", "prefetch_factor": 4},
        {"dataset": TensorDataset(torch.arange(SIZE))},
    ],
    ids=named,
)
def test_the_choice_does_not_depend_on_who_loads(name, arguments, references):
    loader = make_loader(METHODS[name](), **arguments)
    assert train(loader, 5) == references[name]
    loader.close()


def test_active_bias_weights_have_the_mean_one_in_every_batch(references):
    for epoch in references["ActiveBias"]:
        for _, weights in epoch:
            assert np.mean(weights) == pytest.approx(1, abs=1e-5)


def test_workers_stay_alive_from_epoch_to_epoch():
    loader = make_loader(rk.Buckets(warmup=1), num_workers=2)
    workers = []
    for _ in range(3):
        iterator = iter(loader)
        workers.append([worker.pid for worker in iterator._workers])
        for rows in iterator:
            learn(loader, rows)
    loader.close()
    assert workers[0] == workers[1] == workers[2]


def test_the_next_epoch_is_under_way_when_one_has_ended():
    loader = make_loader(rk.Buckets(warmup=1, rate=0.2, confidence=0), num_workers=1)
    train(loader, 2)
    assert loader._epochs._idle.is_ahead_at(Position(epoch=2))
    assert len(loader) == -(-(SIZE - 24) // 8)
    loader.close()


class Deadly(Numbers):
    """Kills the first worker that loads sample 7 for the third time."""

    def __init__(self, marker):
        self.marker, self.loads = marker, 0

    def __getitem__(self, index):
        if index == 7:
            self.loads += 1
            if self.loads == 3 and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_killed_worker_changes_no_score_and_no_choice(tmp_path, references):
    deadly = Deadly(tmp_path / "killed")
    loader = make_loader(METHODS["InfoBatch"](), deadly, num_workers=1, persistent_workers=True)
    assert train(loader, 5) == references["InfoBatch"]
    assert (tmp_path / "killed").exists()
    assert loader.report().replaced_workers == 1
    loader.close()


def test_scores_tell_the_age_of_the_view_that_they_were_measured_on():
    loader = make_loader(rk.Uniform())
    loader._parts.importance.scores.turns[:] = 5
    plan = plan_epoch(size=SIZE, epoch=6, seed=0, shuffle=False, batch_size=8, drop_last=False)
    order = next(iter(planned_orders(plan)))._replace(generations=4 - np.arange(8) % 3)
    loader._parts.importance.report_feedback(
        yielded(CollatedBatch(order, order.ids, None, bad=[2])), torch.ones(7), None, None, None
    )
    taken = loader._parts.importance.intake.feedback.take()
    assert taken.ids.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert taken.age.tolist() == [0, 1, 0, 1, 2, 0, 1]


# Together with reuse.


COMPUTED: list[int] = []  # Not in the dataset: one that changes is not reused.


class Drawn(Numbers):
    """Sample i with a number that is drawn when it is computed."""

    def __getitem__(self, index):
        COMPUTED.append(index)
        return index, torch.rand(())


def refurbished(**arguments):
    method = rk.SelectiveBackprop(keep=0.5, warmup=1)
    return make_loader(
        method, Drawn(), reuse=rk.Refurbish(factor=2), final_transform=lambda sample: sample, **arguments
    )


def test_what_is_cached_ages_by_uses_and_not_by_epochs():
    loader = refurbished()
    COMPUTED.clear()
    fresh: dict[int, list[bool]] = {index: [] for index in range(SIZE)}
    numbers: dict[int, list[float]] = {index: [] for index in range(SIZE)}
    for _ in range(12):
        for rows, drawn in loader:
            for index, is_fresh, number in zip(
                rows.tolist(), loader.batch.fresh.tolist(), drawn.tolist(), strict=True
            ):
                fresh[index].append(is_fresh)
                numbers[index].append(number)
            loader.feedback(LOSSES[rows])
    assert len({len(uses) for uses in fresh.values()}) > 3, "some are used more often than others"
    for index in range(SIZE):
        computed = np.flatnonzero(fresh[index])
        assert computed[0] == 0
        assert (np.diff(computed) <= 3).all(), "results are used twice on average, one more at the most"
        assert len(set(numbers[index])) == len(computed)
    # Eight are computed to measure their size, and one per epoch to find out whether it draws numbers.
    recomputed = sum(map(sum, fresh.values()))
    assert recomputed <= len(COMPUTED) <= recomputed + 8 + 12
    uses = sum(map(len, fresh.values())) - SIZE
    assert recomputed - SIZE == uses // 2, "of all uses after the first, every other one recomputes"
    assert {0, 1} <= set(loader._parts.importance.scores.age.tolist()) <= {0, 1, 2}


def test_refurbished_and_chosen_samples_resume_exactly():
    def _reported(loader, batch):
        loader.feedback(LOSSES[batch[0]])
        return batch

    def epochs(loader, count):
        return [
            [(rows.tolist(), drawn.tolist())
             for rows, drawn in (_reported(loader, batch) for batch in loader)]
            for _ in range(count)
        ]  # fmt: skip

    reference = epochs(refurbished(), 6)
    first = refurbished()
    assert epochs(first, 2) == reference[:2]
    iterator = iter(first)
    for _ in range(2):
        _reported(first, next(iterator))
    state = first.state_dict()
    second = refurbished(num_workers=2, multiprocessing_context="fork")
    second.load_state_dict(state)
    assert epochs(second, 4) == [reference[2][2:], *reference[3:]]
    second.close()


# Missing feedback.


def test_missing_feedback_is_an_error_after_the_first_epoch_that_names_method_and_epoch():
    loader = make_loader(rk.InfoBatch(epochs=3))
    with pytest.raises(
        rk.FeedbackError,
        match=r"importance=InfoBatch.*no feedback was reported for epoch 0.*loader\.feedback",
    ):
        for _ in loader:
            pass
    workers = make_loader(rk.Buckets(), num_workers=1)
    with pytest.raises(rk.FeedbackError, match="Buckets"):
        for _ in workers:
            pass


def test_missing_feedback_in_a_later_epoch_is_an_error_as_well():
    loader = make_loader(rk.InfoBatch(epochs=3))
    train(loader, 1)
    with pytest.raises(rk.FeedbackError, match="epoch 1"):
        list(loader)


def test_looking_at_a_first_batch_is_no_error():
    loader = make_loader(rk.InfoBatch(epochs=5))
    next(iter(loader))
    assert len(train(loader, 2)) == 2


def test_methods_that_need_no_feedback_get_along_without():
    for method in (rk.Uniform(), rk.RandomSubset(keep=0.5)):
        loader = make_loader(method)
        assert len([list(loader) for _ in range(3)]) == 3


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


# What cannot be combined.


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"dataset": Stream(), "shuffle": None}, "IterableDataset"),
        ({"sampler": range(4), "shuffle": None}, "sampler="),
        ({"batch_sampler": [[1, 2]], "shuffle": None, "batch_size": 1}, "batch_sampler="),
        ({"generator": torch.Generator()}, "generator="),
        ({"reuse": rk.Echo(factor=2)}, "Echo"),
        ({"method": rk.Buckets}, "plan"),
        ({"method": "BS-random"}, "plan"),
    ],
)
def test_what_cannot_be_combined_with_importance_is_refused_at_construction(arguments, word):
    arguments = dict(arguments)
    method = arguments.pop("method", rk.Buckets())
    with pytest.raises(rk.ArgumentError, match=word):
        make_loader(method, **arguments)


# Resume.


@pytest.mark.parametrize(
    ("name", "epochs"), [("Buckets", 3), ("InfoBatch", 2), ("ActiveBias", 2), ("OnlineBatchSelection", 2)]
)
def test_a_state_taken_at_any_batch_resumes_exactly(name, epochs, references, tmp_path):
    reference = references[name][:epochs]
    loader = make_loader(METHODS[name]())
    states = [(0, 0, loader.state_dict())]
    for epoch in range(epochs):
        for step, rows in enumerate(loader):
            learn(loader, rows)
            states.append((epoch, step + 1, loader.state_dict()))
        states.append((epoch + 1, 0, loader.state_dict()))
    torch.save([state for *_, state in states], tmp_path / "states.pt")
    saved = torch.load(tmp_path / "states.pt", weights_only=True)
    for (epoch, step, _), state in zip(states, saved, strict=True):
        if epoch == epochs:
            continue
        resumed = make_loader(METHODS[name]())
        resumed.load_state_dict(state)
        assert len(resumed) == len(reference[epoch])
        rest = []
        for rows in resumed:
            rest.append((rows.tolist(), resumed.batch.weights.tolist()))
            learn(resumed, rows)
        assert [rest, *train(resumed, epochs - epoch - 1)] == [
            reference[epoch][step:],
            *reference[epoch + 1 :],
        ]


def test_a_state_resumes_with_workers(references):
    loader = make_loader(METHODS["Buckets"]())
    train(loader, 1)
    iterator = iter(loader)
    learn(loader, next(iterator))
    resumed = make_loader(METHODS["Buckets"](), num_workers=2, persistent_workers=True)
    resumed.load_state_dict(loader.state_dict())
    rest = []
    for rows in resumed:
        rest.append((rows.tolist(), resumed.batch.weights.tolist()))
        learn(resumed, rows)
    assert [rest, *train(resumed, 3)] == [references["Buckets"][1][1:], *references["Buckets"][2:]]
    resumed.close()


def test_a_state_does_not_change_what_goes_on(references):
    loader = make_loader(METHODS["Buckets"]())
    seen = []
    for rows in loader:
        seen.append((rows.tolist(), loader.batch.weights.tolist()))
        learn(loader, rows)
        loader.state_dict()
    assert [seen, *train(loader, 4)] == references["Buckets"]


def _damaged():
    good = make_loader(METHODS["Buckets"]())
    train(good, 2)
    state = good.state_dict()
    own = state["importance_state"]

    def changed(**fields):
        return {**state, "importance_state": {**own, **fields}}

    yield "importance", {**state, "importance": "InfoBatch"}
    yield "importance", {**state, "importance": ""}
    yield "importance", {key: value for key, value in state.items() if key != "importance_state"}
    yield "importance", {**state, "importance_state": 5}
    yield "rate", changed(method={**own["method"], "rate": 0.2})
    yield "loss", changed(scores={**own["scores"], "loss": own["scores"]["loss"][:-1]})
    yield "loads", changed(scores={**own["scores"], "loads": own["scores"]["loads"].float()})
    yield "rival", changed(scores={key: value for key, value in own["scores"].items() if key != "rival"})
    yield "ids", changed(ids=own["ids"] + SIZE)
    yield "weights", changed(weights=own["weights"][:-1])
    yield "epoch", changed(epoch=-1)
    yield "epoch", changed(epoch="two")
    yield "seconds", changed(seconds=[1.0])
    yield "measured", {**state, "importance_state": {k: v for k, v in own.items() if k != "measured"}}
    yield "loaded", changed(loaded=None)
    yield "ranks", changed(world=2)
    yield "own", changed(own=None)
    yield "waiting", changed(own={**own["own"], "waiting": own["own"]["waiting"][:-1]})
    yield "waiting", changed(own={**own["own"], "waiting": own["own"]["waiting"].float()})
    yield "stage", changed(own={**own["own"], "stage": 9})
    yield "waiting", changed(own={"stage": 1})
    yield "step", {**state, "step": 99}


def test_a_state_that_does_not_fit_is_refused_by_name():
    for word, state in _damaged():
        loader = make_loader(METHODS["Buckets"]())
        with pytest.raises(rk.StateError, match=word):
            loader.load_state_dict(state)
        assert len(train(loader, 1)[0]) == 8, "a refused state changes nothing"
    plain = rk.DataLoader(Numbers(), batch_size=8, shuffle=True, seed=5)
    with pytest.raises(rk.StateError, match="importance"):
        plain.load_state_dict(state)


def test_copies_and_pickles_keep_what_was_learnt(references):
    loader = make_loader(METHODS["Buckets"]())
    train(loader, 2)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert train(other, 3) == references["Buckets"][2:]
    assert train(loader, 3) == references["Buckets"][2:]


# The report.


def test_the_report_says_how_samples_are_chosen(tmp_path, caplog):
    loader = make_loader(rk.Buckets(warmup=2, rate=0.1, confidence=0))
    with caplog.at_level(logging.INFO, "rekindle"):
        train(loader, 3)
    report = loader.report()
    summary = report.to_dict()["importance"]
    assert summary["method"] == "Buckets"
    assert summary["samples scored"] == SIZE
    assert summary["samples chosen"] == SIZE - summary["waiting"]
    assert summary["waiting"] > 0
    assert "importance: method Buckets" in str(report).replace("\n", " ")
    report.to_html(tmp_path / "report.html")
    assert "sampling out" in (tmp_path / "report.html").read_text() or "re-sampling" in str(summary["stage"])
    assert "bottleneck=" in caplog.text
    assert rk.DataLoader(Numbers()).report().to_dict()["importance"] is None
