"""How many bad samples an epoch may have, and what is reported of them."""

import pytest
import torch

import rekindle as rk
from bad_samples import BAD, RUNNERS, BadFileError, Plain, SomeBad, make
from covering import each_value

# What a user learns.


@pytest.mark.parametrize("runner", RUNNERS)
def test_raise_keeps_the_type_and_names_the_sample(runner):
    loader = make("raise", SomeBad([17]), shuffle=False, **RUNNERS[runner])
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(BadFileError) as caught:
        next(iterator)
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "cannot decode file 17" in text
    assert "sample 17" in text


@pytest.mark.parametrize(("runner", "on_error"), each_value(RUNNERS, ["skip", "substitute"]))
def test_the_report_lists_ids_and_reasons(on_error, runner):
    loader = make(on_error, **RUNNERS[runner])
    list(loader)
    report = loader.report()
    assert sorted(one.id for one in report.bad_samples) == sorted(BAD)
    for one in report.bad_samples:
        assert one.epoch == 0
        assert "BadFileError" in one.reason
        assert f"cannot decode file {one.id}" in one.reason
        assert one.reason in str(report)
    assert [one["id"] for one in report.to_dict()["bad_samples"]] == [one.id for one in report.bad_samples]


@pytest.mark.parametrize("runner", RUNNERS)
def test_bad_samples_are_reported_in_the_order_of_delivery_and_no_earlier(runner):
    loader = make("skip", shuffle=False, **RUNNERS[runner])
    seen = [[one.id for one in loader.report().bad_samples] for _ in loader]
    assert seen == [[one for one in BAD if one < 8 * (step + 1)] for step in range(25)]


# The budget.


def failing_at(loader):
    """How many samples come before a BadSamplesError, and its text."""
    count = 0
    try:
        for batch in loader:
            count += len(batch)
    except rk.BadSamplesError as error:
        return count, str(error)
    return count, None


@pytest.mark.parametrize(("runner", "on_error"), each_value(RUNNERS, ["skip", "substitute"]))
def test_one_percent_may_be_bad_by_default(on_error, runner):
    def run(bad):
        dataset = Plain(bad, 300)
        return failing_at(rk.DataLoader(dataset, 10, on_error=on_error, seed=5, **RUNNERS[runner]))

    assert run([3, 100, 200])[1] is None
    count, text = run([3, 100, 150, 200])
    assert count == (198 if on_error == "skip" else 200) - (on_error == "skip")
    for part in ("4 bad samples", "the 3 that", "error_budget=0.01", "300", "sample 200", "BadFile"):
        assert part in text


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_budget_is_of_each_epoch(runner):
    loader = make("skip", SomeBad([3, 4]), error_budget=0.01, **RUNNERS[runner])
    for _ in range(4):
        assert sum(len(x) for x, _ in loader) == 198
    assert len(loader.report().bad_samples) == 8


@pytest.mark.parametrize("budget", [0.0, 0.001])
def test_one_bad_sample_is_always_within_the_budget(budget):
    def run(bad):
        return failing_at(rk.DataLoader(Plain(bad), 8, on_error="skip", error_budget=budget))

    assert run([3])[1] is None
    assert run([3, 4])[1] is not None


def test_with_a_budget_of_one_all_may_be_bad():
    loader = rk.DataLoader(Plain(range(200)), 8, on_error="skip", error_budget=1.0, num_workers=2)
    assert list(loader) == []
    assert len(loader.report().bad_samples) == 200


@pytest.mark.parametrize("saved_with", [0, 2])
def test_a_resume_does_not_renew_the_budget(saved_with):
    def fresh(workers):
        return rk.DataLoader(Plain([3, 100, 150], 200), 10, on_error="skip", num_workers=workers, seed=5)

    loader = fresh(saved_with)
    iterator = iter(loader)
    for _ in range(12):
        next(iterator)
    resumed = fresh(2 - saved_with)
    resumed.load_state_dict(loader.state_dict())
    assert failing_at(resumed)[1] is not None


@pytest.mark.parametrize("runner", RUNNERS)
def test_when_no_substitute_can_be_made_there_is_an_error_and_no_hang(runner):
    loader = rk.DataLoader(
        Plain(range(8, 200)), 8, on_error="substitute", error_budget=1.0, seed=5, **RUNNERS[runner]
    )
    iterator = iter(loader)
    # 8 of 200 are good: most bad samples get none of them in sixteen attempts.
    with pytest.raises(rk.BadSamplesError, match="substitute"):
        list(iterator)
    # Whoever goes on regardless gets another error, or batches, but an end.
    for _ in range(30):
        try:
            next(iterator)
        except rk.RekindleError:
            continue
        except StopIteration:
            break


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("size", "words"),
    [(1, "16 draws, there was no other"), (2, "the only other one that"), (3, "the 2 others that")],
)
def test_the_error_without_a_substitute_counts_the_samples_that_were_tried(size, words, runner):
    loader = rk.DataLoader(
        SomeBad(range(size), size), 2, on_error="substitute", error_budget=1.0, seed=5, **RUNNERS[runner]
    )
    with pytest.raises(rk.BadSamplesError, match=words):
        list(loader)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("in_memory", [True, False])
def test_an_index_that_a_dataset_does_not_have_is_named(in_memory, workers):
    data = torch.utils.data.TensorDataset(torch.arange(100)) if in_memory else list(range(100))
    for order in ({"sampler": [0, 500]}, {"batch_sampler": [[0, 500]]}):
        with pytest.raises(IndexError) as caught:
            list(rk.DataLoader(data, num_workers=workers, **order))
        assert "sample 500" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


@pytest.mark.parametrize(("runner", "batch_size"), each_value(RUNNERS, [1, 4]))
def test_a_users_sampler_goes_with_substitutes(runner, batch_size):
    loader = rk.DataLoader(
        Plain([3]),
        batch_size,
        sampler=range(100),
        on_error="substitute",
        error_budget=0.5,
        seed=5,
        **RUNNERS[runner],
    )
    got = [index for batch in loader for index in batch.tolist()]
    assert len(got) == 100
    assert 3 not in got
    assert got[:3] == [0, 1, 2]
