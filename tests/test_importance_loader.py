"""A loader with importance=: the same choice for any number of workers, before and after a resume."""

import logging
import os
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import rekindle as rk
from chosen import LOSSES, METHODS, SIZE, Numbers, NumbersInThreads, learn, make_loader, train
from naming import named
from rekindle.choose import plan_epoch, planned_orders
from rekindle.choose.position import Position
from rekindle.run.in_flight_batch import CollatedBatch
from rekindle.ship import yielded


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


class WithAllScores(rk.SelectiveBackprop):
    """One that may read any of them, `age` as well."""

    def plan(self, epoch, scores):
        return super().plan(epoch, scores)


def refurbished(**arguments):
    method = WithAllScores(keep=0.5, warmup=1)
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
