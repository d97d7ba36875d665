"""What the targets of `feedback(logits=…, targets=…)` may be, and that nothing else is taken for them."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import rekindle as rk
from rekindle.choose import target_classes
from rekindle.choose.feedback import Feedback
from scored import Recorded

SIZE, CLASSES = 48, 5
INPUTS = torch.arange(SIZE, dtype=torch.float32)
TARGETS = torch.arange(SIZE) % CLASSES
LOGITS = torch.randn(SIZE, CLASSES, generator=torch.Generator().manual_seed(0))
LOSSES = cross_entropy(LOGITS, TARGETS, reduction="none")


def make_loader():
    data = TensorDataset(INPUTS, TARGETS)
    return rk.DataLoader(data, batch_size=10, shuffle=True, seed=3, importance=Recorded())


def scores_after(report):
    """The scores after an epoch in which `report` was called with each batch."""
    loader = make_loader()
    for inputs, _ in loader:
        report(loader, inputs.long())
    return loader._parts.importance.scores


def test_mixed_labels_count_as_the_one_that_weighs_most():
    soft = torch.nn.functional.one_hot(TARGETS, CLASSES) * 0.7 + 0.06
    scores = scores_after(lambda loader, rows: loader.feedback(logits=LOGITS[rows], targets=soft[rows]))
    assert scores.loss == pytest.approx(LOSSES.numpy(), rel=1e-5)


@pytest.mark.parametrize(
    ("logits", "targets", "words"),
    [
        ((10, 5), torch.ones(10), r"targets of shape \(10,\) \(float32\)\. Give classes as integers"),
        ((10, 5), torch.full((10,), 0.9), "shares of the classes, and have the logits' shape"),
        ((10, 5), torch.rand(10, 3), r"logits of shape \(10, 5\) .* targets of shape \(10, 3\)"),
        ((10, 5), torch.rand(10, 1), r"logits of shape \(10, 5\) .* targets of shape \(10, 1\)"),
        ((10, 5), torch.ones(10, 5).long(), r"one class per sample, but got .*\(10, 5\) \(int64\)"),
        ((10, 5), torch.full((10,), -1), "from 0 to 4, as the logits have 5 classes, but got -1 to -1"),
        ((10, 5), torch.tensor([-100] + [0] * 9), r"got -100 to 0\. .*ids=loader\.batch\.ids\[mask\]"),
        ((10, 5), torch.arange(10), "but got 0 to 9.*give losses="),
        ((10, 1), torch.zeros(10), "BCE.*give losses="),
        ((10, 1), torch.zeros(10).long(), "BCE.*give losses="),
        ((10, 1), torch.zeros(10, 1), "BCE.*give losses="),
        ((10,), torch.zeros(10).long(), "BCE.*give losses="),
    ],
)
def test_targets_that_are_no_classes_of_the_logits_are_refused_with_both_shapes(logits, targets, words):
    loader = make_loader()
    next(iter(loader))
    with pytest.raises(rk.ArgumentError, match=words):
        loader.feedback(logits=torch.ones(logits), targets=targets)


@pytest.mark.parametrize(
    "as_targets", [lambda t: t[:, None], lambda t: t.to(torch.uint8), lambda t: t.int()[:, None]]
)
def test_classes_may_be_a_column_of_integers_of_any_size(as_targets):
    scores = scores_after(
        lambda loader, rows: loader.feedback(logits=LOGITS[rows], targets=as_targets(TARGETS[rows])),
    )
    assert scores.loss == pytest.approx(LOSSES.numpy(), rel=1e-5)
    assert scores.correct.tolist() == (LOGITS.argmax(1) == TARGETS).int().tolist()


def test_targets_on_a_device_that_are_no_classes_are_refused_when_the_report_is_read(monkeypatch):
    """At once, as on the host, would wait for the device at every batch."""

    def add(targets):
        feedback = Feedback()
        feedback.add(torch.arange(4), 0, None, LOGITS[:4], torch.tensor(targets))
        return feedback

    monkeypatch.setattr(target_classes, "_is_at_hand", lambda _: False)
    with pytest.raises(rk.FeedbackError, match=r"2 targets reported .* are from -100 to 5\. Report the"):
        add([0, -100, CLASSES, CLASSES - 1]).take()
    assert add([0, 1, 2, CLASSES - 1]).take().loss == pytest.approx(
        cross_entropy(LOGITS[:4], torch.tensor([0, 1, 2, CLASSES - 1]), reduction="none").numpy()
    )
