"""Samples that fail to load: raised, skipped or replaced, the same on every run and worker count."""

import pytest
import torch

from bad_samples import BAD, KINDS, RUNNERS, SomeBad, indices, make
from covering import each_pair, each_value
from same import digest


@pytest.mark.parametrize(
    ("runner", "kind", "on_error"), each_pair(list(RUNNERS)[1:], KINDS, ["skip", "substitute"])
)
def test_batches_are_the_same_for_any_workers(on_error, kind, runner):
    def two_epochs(runner):
        loader = make(on_error, **KINDS[kind], **RUNNERS[runner])
        batches, ids = [], []
        for _ in range(2):
            for batch in loader:
                batches.append(batch)
                ids.append(loader.batch.ids.tolist())
        bad = sorted((one.epoch, one.id, one.reason) for one in loader.report().bad_samples)
        return digest(batches), ids, bad

    assert two_epochs(runner) == two_epochs("0 workers")


@pytest.mark.parametrize("runner", RUNNERS)
def test_skipping_leaves_the_others_in_order(runner):
    good = make("skip", SomeBad(()), **RUNNERS[runner])
    whole = indices(good)
    loader = make("skip", **RUNNERS[runner])
    got, ids = [], []
    for batch in loader:
        got += indices([batch])
        ids.append(loader.batch.ids.tolist())
    expected = [[index for index in batch if index not in BAD] for batch in whole]
    assert got == expected
    assert ids == expected


@pytest.mark.parametrize("runner", RUNNERS)
def test_skipping_does_not_change_the_samples_that_stay(runner):
    def rows(bad):
        loader = make("skip", SomeBad(bad), **RUNNERS[runner])
        return {text: x for xs, texts in loader for x, text in zip(xs, texts, strict=True)}

    some, every = rows(BAD), rows(())
    assert len(some) == 196
    assert all(torch.equal(some[text], every[text]) for text in some)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_substitute_is_a_good_sample_of_the_same_epoch_and_the_others_stay(runner):
    whole = indices(make("substitute", SomeBad(()), **RUNNERS[runner]))
    loader = make("substitute", **RUNNERS[runner])
    replaced = 0
    for expected, (xs, texts) in zip(whole, loader, strict=True):
        got = xs[:, 0].int().tolist()
        assert len(got) == len(expected)
        assert loader.batch.ids.tolist() == got
        assert list(texts) == [f"file {index}" for index in got]
        for is_, was in zip(got, expected, strict=True):
            assert is_ == was if was not in BAD else is_ not in BAD
            replaced += is_ != was
    assert replaced == len(BAD)


def test_a_substitute_is_another_view_of_its_sample():
    """It is one more draw of that sample, which has a row of its own in the epoch."""
    rows = {}
    for xs, texts in make("substitute"):
        for x, text in zip(xs, texts, strict=True):
            rows.setdefault(text, []).append(tuple(x.tolist()))
    twice = [found for found in rows.values() if len(found) > 1]
    assert twice
    assert all(len(set(found)) == len(found) for found in twice)


def test_substitutes_differ_from_epoch_to_epoch():
    loader = make("substitute", SomeBad([17]), shuffle=False)
    stand_ins = {indices(list(loader))[2][1] for _ in range(5)}
    assert len(stand_ins) > 2


@pytest.mark.parametrize(
    ("workers", "on_error"), each_value([(0, 2), (2, 0)], ["skip", "substitute"]), ids=str
)
def test_bad_samples_are_the_same_after_a_resume(on_error, workers):
    saved_with, loaded_with = workers
    straight = make(on_error)
    expected = list(straight)
    for k in (0, 1, 4, 11, len(expected) - 1, len(expected)):
        loader = make(on_error, num_workers=saved_with)
        iterator = iter(loader)
        for _ in range(k):
            next(iterator)
        resumed = make(on_error, num_workers=loaded_with)
        resumed.load_state_dict(loader.state_dict())
        assert digest(list(resumed)) == digest(expected[k:])
        assert resumed.report().bad_samples == straight.report().bad_samples
        del iterator


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_batch_of_which_nothing_is_left_is_left_out(runner):
    bad = range(16, 24)
    loader = make("skip", SomeBad(bad, 64), shuffle=False, error_budget=0.5, **RUNNERS[runner])
    got = indices(loader)
    assert got == [list(range(start, start + 8)) for start in (0, 8, 24, 32, 40, 48, 56)]
    assert [one.id for one in loader.report().bad_samples] == list(bad)


@pytest.mark.parametrize(
    ("runner", "bad"), each_value(RUNNERS, [range(8), range(56, 64), range(0, 64, 8)]), ids=str
)
def test_a_first_or_last_batch_of_bad_samples_does_no_harm(bad, runner):
    skipping = make("skip", SomeBad(bad, 64), shuffle=False, error_budget=1, **RUNNERS[runner])
    good = [index for index in range(64) if index not in bad]
    assert [index for batch in indices(skipping) for index in batch] == good
    assert [one.id for one in skipping.report().bad_samples] == list(bad)
    replacing = make("substitute", SomeBad(bad, 64), shuffle=False, error_budget=1, **RUNNERS[runner])
    batches = indices(replacing)
    assert [len(batch) for batch in batches] == [8] * 8
    assert not {index for batch in batches for index in batch} & set(bad)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_last_batch_is_reported_once_after_a_resume(workers):
    """Nothing of it is yielded, so a checkpoint resumes before it."""
    options = {"shuffle": False, "error_budget": 1, "num_workers": workers}
    loader = make("skip", SomeBad(range(56, 64), 64), **options)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    resumed = make("skip", SomeBad(range(56, 64), 64), **options)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    assert [one.id for one in resumed.report().bad_samples] == list(range(56, 64))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_out_of_order_batches_are_complete_as_well(workers, on_error):
    loader = make(on_error, in_order=False, num_workers=workers)
    got = sorted(index for batch in indices(loader) for index in batch)
    if on_error == "skip":
        assert got == [index for index in range(200) if index not in BAD]
    else:
        assert len(got) == 200
