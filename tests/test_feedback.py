"""What the training loop reports arrives at the right samples, whatever it is and however it comes."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import rekindle as rk
from calls import calls_of
from rekindle.choose import Measured, Scores
from rekindle.choose.feedback import Feedback
from scored import Recorded

SIZE, CLASSES = 48, 5
INPUTS = torch.arange(SIZE, dtype=torch.float32)
TARGETS = torch.arange(SIZE) % CLASSES
LOGITS = torch.randn(SIZE, CLASSES, generator=torch.Generator().manual_seed(0))
LOSSES = cross_entropy(LOGITS, TARGETS, reduction="none")


def make_loader(importance=None, **arguments):
    arguments = {"batch_size": 10, "shuffle": True, "seed": 3, **arguments}
    return rk.DataLoader(TensorDataset(INPUTS, TARGETS), importance=importance or Recorded(), **arguments)


def scores_after(loader, report):
    """The scores after an epoch in which `report` was called with each batch."""
    for inputs, _ in loader:
        report(loader, inputs.long())
    return loader._parts.importance.scores


def test_losses_arrive_at_their_samples():
    scores = scores_after(make_loader(), lambda loader, rows: loader.feedback(losses=LOSSES[rows]))
    assert scores.loss == pytest.approx(LOSSES.numpy())
    assert scores.probability == pytest.approx(np.exp(-LOSSES.numpy()))
    assert (scores.correct == -1).all()
    assert np.isnan(scores.rival).all()
    assert (scores.epoch == 0).all()
    assert (scores.age == 0).all()


def test_logits_give_probabilities_and_correctness():
    scores = scores_after(
        make_loader(), lambda loader, rows: loader.feedback(logits=LOGITS[rows], targets=TARGETS[rows])
    )
    p = LOGITS.softmax(1)
    rivals = p.clone()
    rivals[torch.arange(SIZE), TARGETS] = 0
    assert scores.loss == pytest.approx(LOSSES.numpy(), rel=1e-5)
    assert scores.probability == pytest.approx(p[torch.arange(SIZE), TARGETS].numpy(), rel=1e-5)
    assert scores.rival == pytest.approx(rivals.amax(1).numpy(), rel=1e-5)
    assert scores.correct.tolist() == (LOGITS.argmax(1) == TARGETS).int().tolist()


def test_custom_losses_may_come_with_logits():
    scores = scores_after(
        make_loader(),
        lambda loader, rows: loader.feedback(LOSSES[rows] * 2, logits=LOGITS[rows], targets=TARGETS[rows]),
    )
    assert scores.loss == pytest.approx(2 * LOSSES.numpy())
    assert scores.correct.tolist() == (LOGITS.argmax(1) == TARGETS).int().tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_any_kind_of_number_is_taken(dtype):
    scores = scores_after(make_loader(), lambda loader, rows: loader.feedback(LOSSES[rows].to(dtype)))
    assert scores.loss == pytest.approx(LOSSES.numpy(), rel=1e-2)


def test_losses_of_more_dimensions_count_as_their_mean():
    scores = scores_after(
        make_loader(), lambda loader, rows: loader.feedback(LOSSES[rows][:, None, None] * torch.ones(2, 3))
    )
    assert scores.loss == pytest.approx(LOSSES.numpy(), rel=1e-6)


def test_losses_changed_after_the_report_do_not_change_it():
    def report(loader, rows):
        losses = LOSSES[rows].clone()
        loader.feedback(losses)
        losses.zero_()

    assert scores_after(make_loader(), report).loss == pytest.approx(LOSSES.numpy())


def test_a_report_holds_no_graph_alive():
    loader = make_loader()
    weight = torch.ones((), requires_grad=True)
    next(iter(loader))
    loader.feedback(losses=LOSSES[:10] * weight)
    assert not loader._parts.importance.intake.feedback._reports[0].values.requires_grad


def test_a_batch_may_be_reported_in_pieces():
    def report(loader, rows):
        for piece in rows.split(3):  # The last piece has one sample, or two.
            loader.feedback(LOSSES[piece])

    assert scores_after(make_loader(), report).loss == pytest.approx(LOSSES.numpy())


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "pytorch_lightning.utilities"])
def test_the_warning_names_the_scripts_line_whatever_reports_for_it(framework):
    code = compile("def report(loader, losses):\n    loader.feedback(losses)\n", f"{framework}.py", "exec")
    of_framework = {"__name__": framework}
    exec(code, of_framework)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = make_loader()
        for _ in loader:
            of_framework["report"](loader, LOSSES[:5])
    assert [one.filename for one in caught] == [__file__]


def test_a_batch_that_stays_reported_in_part_is_warned_of_once():
    """Values without ids are those of the first samples, which `losses[mask]` are not."""
    loader = make_loader()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows, _ in loader:
            mask = torch.arange(len(rows)) % 2 == 1
            loader.feedback(LOSSES[rows.long()][mask])
    assert [str(one.message).partition(",")[0] for one in caught] == [
        "feedback: 5 values were reported on a batch of 10 samples"
    ]
    assert caught[0].filename == __file__
    with_ids = make_loader()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, _ in with_ids:
            with_ids.feedback(LOSSES[rows.long()][1::2], ids=with_ids.batch.ids[1::2])


def test_a_report_that_is_refused_is_none_of_the_pieces():
    """The one that is given in its place is about the same samples."""

    def report(loader, rows):
        for piece in rows.split(3):
            with pytest.raises(rk.ArgumentError, match="floating-point"):
                loader.feedback(LOSSES[piece].long())
            with pytest.raises(rk.ArgumentError, match="targets"):
                loader.feedback(logits=LOGITS[piece])
            loader.feedback(LOSSES[piece])

    assert scores_after(make_loader(), report).loss == pytest.approx(LOSSES.numpy())


@pytest.mark.parametrize("as_numpy", [False, True])
def test_ids_are_those_of_the_report_whatever_their_memory_is_used_for_later(as_numpy):
    ids = torch.zeros(10, dtype=torch.int64)

    def report(loader, rows):
        some = ids[: len(rows)]
        some[:] = rows
        loader.feedback(LOSSES[rows], ids=some.numpy() if as_numpy else some)

    assert scores_after(make_loader(), report).loss == pytest.approx(LOSSES.numpy())


def test_a_step_that_is_skipped_changes_no_score():
    def report(loader, rows):
        if loader.batch.step != 2:
            loader.feedback(LOSSES[rows])

    scores = scores_after(make_loader(), report)
    assert (~scores.known).sum() == 10
    assert scores.loss[scores.known] == pytest.approx(LOSSES.numpy()[scores.known])


def test_a_loss_that_is_not_finite_changes_no_score():
    def report(loader, rows):
        losses = LOSSES[rows].clone()
        losses[0] = float("nan")
        losses[1] = float("inf")
        loader.feedback(losses)

    scores = scores_after(make_loader(), report)
    assert (~scores.known).sum() == 10
    assert np.isfinite(scores.loss[scores.known]).all()


@pytest.mark.parametrize("method", [rk.Buckets(), rk.SelectiveBackprop(), rk.InfoBatch(4)], ids=str)
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_an_epoch_of_losses_that_are_all_not_finite_raises(method, loss):
    loader = rk.DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=10, importance=method)

    def epoch():
        for inputs, _ in loader:
            loader.feedback(losses=torch.full((len(inputs),), loss))

    with pytest.raises(rk.FeedbackError, match=rf"all {len(INPUTS)} losses reported for epoch 0 are NaN or"):
        [epoch() for _ in range(2)]


def test_ids_name_the_samples_that_are_meant():
    def report(loader, rows):
        loader.feedback(LOSSES[rows].flip(0), ids=rows.flip(0))

    assert scores_after(make_loader(), report).loss == pytest.approx(LOSSES.numpy())


def test_feedback_without_importance_warns_once_of_the_line_that_calls_it():
    loader = rk.DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=10)
    with warnings.catch_warnings(record=True, action="always") as caught:
        for _ in loader:
            loader.feedback(LOSSES[:3])
    [warning] = caught
    assert "no importance=" in str(warning.message)
    assert warning.filename == __file__


def test_a_substitutes_feedback_is_its_own_and_a_bad_sample_keeps_its_score():
    class Flaky:
        def __len__(self):
            return SIZE

        def __getitem__(self, index):
            if index == 13:
                raise OSError("scratch")
            return index

    for on_error in ("skip", "substitute"):
        loader = rk.DataLoader(
            Flaky(), batch_size=10, shuffle=True, seed=3, on_error=on_error, error_budget=0.1,
            importance=rk.Uniform(),
        )  # fmt: skip
        for rows in loader:
            loader.feedback(LOSSES[rows])
        scores = loader._parts.importance.scores
        assert np.flatnonzero(~scores.known).tolist() == [13]
        assert scores.loss[scores.known] == pytest.approx(LOSSES.numpy()[scores.known])


# What cannot be meant.


def test_a_sample_reported_twice_or_a_scalar_loss_is_an_error():
    loader = make_loader()
    with pytest.raises(rk.ArgumentError, match="none has been yet"):
        loader.feedback(LOSSES)
    rows = next(iter(loader))[0].long()
    with pytest.raises(rk.ArgumentError, match=r"11 values for a batch of 10 samples"):
        loader.feedback(LOSSES[:11])
    loader.feedback(LOSSES[rows[:6]])
    with pytest.raises(rk.ArgumentError, match=r"6 of this batch's 10 samples have been reported already"):
        loader.feedback(LOSSES[rows])


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"losses": 1.5},
        {"losses": torch.ones(10, dtype=torch.int64)},
        {"logits": torch.ones(10, 5)},
        {"logits": torch.ones(10, 5), "targets": torch.ones(9, dtype=torch.int64)},
        {"logits": torch.ones(10, 5, 2), "targets": torch.ones(10, dtype=torch.int64)},
        {"losses": torch.ones(10), "logits": torch.ones(9, 5), "targets": torch.ones(9, dtype=torch.int64)},
        {"losses": [1.0, 2.0], "logits": torch.ones(2, 5), "targets": torch.ones(2).long(), "ids": [1, 2]},
        {"losses": torch.ones(3), "ids": [1, 2]},
        {"losses": torch.ones(2), "ids": [1, SIZE]},
        {"losses": torch.ones(2), "ids": [0.5, 1.5]},
    ],
)
def test_reports_that_cannot_be_meant_are_refused(report):
    loader = make_loader()
    next(iter(loader))
    with pytest.raises(rk.ArgumentError):
        loader.feedback(**report)


# Scores.


def test_scores_keep_a_history():
    scores = Scores.unknown(4, 0)
    history = np.array([[0.2, 0.9, 0.6], [0.8, 0.1, 0.7], [0.6, 0.6, 0.2]], np.float32)
    for epoch, p in enumerate(history):
        rival = (1 - p).astype(np.float32)
        ids, correct = np.arange(3), (p > 0.5).astype(np.int8)
        scores.note(epoch, Measured(ids, -np.log(p), p, rival, correct, np.full(3, epoch, np.int32)))
    assert scores.count.tolist() == [3, 3, 3, 0]
    assert scores.variance[:3] == pytest.approx(history.var(axis=0, ddof=1))
    assert scores.forgotten.tolist() == [0, 1, 1, 0]
    assert scores.age.tolist() == [2, 2, 2, -1]
    assert scores.accuracy == pytest.approx(2 / 3)
    assert scores.mean_loss == pytest.approx(-np.log(history[2]).mean())


def test_of_several_reports_on_a_sample_the_last_counts_once():
    feedback = Feedback()
    feedback.add(torch.tensor([1, 1, 2]), 0, torch.tensor([3.0, 4.0, 5.0]), None, None)
    feedback.add(torch.tensor([1]), 0, torch.tensor([6.0]), None, None)
    scores = Scores.unknown(3, 0)
    scores.note(0, feedback.take())
    assert scores.loss[1:].tolist() == [6, 5]
    assert scores.count.tolist() == [0, 1, 1]
    assert len(feedback.take().ids) == 0


def test_reports_of_different_kinds_stay_in_order():
    feedback = Feedback()
    feedback.add(torch.tensor([0]), 0, torch.tensor([1.0]), None, None)
    feedback.add(torch.tensor([1]), 0, None, torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    feedback.add(
        torch.tensor([2, 0]), np.array([3, 4]), torch.tensor([2.0, 3.0], dtype=torch.float64), None, None
    )
    taken = feedback.take()
    assert taken.ids.tolist() == [0, 1, 2, 0]
    assert taken.loss == pytest.approx([1, np.log(2), 2, 3])
    assert taken.age.tolist() == [0, 0, 3, 4]


@pytest.mark.parametrize("ids", [None, torch.empty(10, dtype=torch.int64, device="meta")])
def test_a_report_waits_for_no_device(ids):
    """Tensors on the meta device have no values: reading one, as waiting for a device does, would fail."""
    loader = make_loader()
    next(iter(loader))
    logits = torch.empty(10, CLASSES, device="meta")
    targets = torch.empty(10, dtype=torch.int64, device="meta")
    loader.feedback(logits=logits, targets=targets, ids=ids)
    with pytest.raises(NotImplementedError, match="meta"):
        loader._parts.importance.intake.feedback.take()


def test_feedback_takes_as_many_calls_for_many_samples_as_for_few():
    """What they cost is measured by the benchmark `feedback_cost`."""

    def calls(batch_size):
        loader = make_loader(batch_size=batch_size)
        made = []
        for _, (inputs, _) in zip(range(2), loader, strict=False):  # What is done once is done for the first.
            logits, targets = LOGITS[inputs.long()], TARGETS[inputs.long()]
            made.append(calls_of(partial(loader.feedback, logits=logits, targets=targets)))
        return made[1]

    assert 1 < calls(24) == calls(2) < 500


def test_the_mean_loss_of_a_batch_is_refused():
    loader = rk.DataLoader(range(8), batch_size=4, shuffle=True, seed=1, importance=rk.InfoBatch(epochs=4))
    next(iter(loader))
    with pytest.raises(rk.ArgumentError, match=r"a single number for a batch of 4 samples.*reduction='none'"):
        loader.feedback(losses=torch.tensor(0.5))
    loader.feedback(losses=torch.full((4,), 0.5))
