"""Samples that fail to load: raised, skipped or replaced, the same on every run and worker count."""

import os
import random
import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import rekindle as rk
from covering import each_pair, each_value
from same import digest


class BadFileError(Exception):
    pass


class SomeBad(Dataset):
    """Tuples with text; the bad ones raise after they have drawn."""

    def __init__(self, bad, size=200):
        self.bad, self.size = frozenset(bad), size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        noise = random.random() + float(np.random.random_sample()) + float(torch.rand(()))
        if index in self.bad:
            raise BadFileError(f"cannot decode file {index}")
        return torch.tensor([float(index), noise]), f"file {index}"


class Plain(Dataset):
    """Numbers that draw nothing."""

    def __init__(self, bad, size=200):
        self.bad, self.size = frozenset(bad), size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.bad:
            raise BadFileError(f"cannot decode file {index}")
        return index


def collate_with_noise(samples):
    return default_collate(samples), torch.rand(2)


BAD = (17, 80, 81, 199)
RUNNERS = {
    "0 workers": {},
    "1 process": {"num_workers": 1},
    "2 processes": {"num_workers": 2},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "out of 3": {"num_workers": 3, "prefetch_factor": 1},
}
KINDS = {
    "tuples": {},
    "collated": {"collate_fn": collate_with_noise},
    "single": {"batch_size": None},
    "sequential": {"shuffle": False},
}


def make(on_error, dataset=None, **options):
    dataset = SomeBad(BAD) if dataset is None else dataset
    arguments = {"batch_size": 8, "shuffle": True, "seed": 5, "error_budget": 0.05, **options}
    if arguments["batch_size"] is None:
        arguments["shuffle"] = False
    return rk.DataLoader(dataset, on_error=on_error, **arguments)


def indices(batches):
    """What the samples of batches of tuples were."""
    return [batch[0][:, 0].int().tolist() for batch in batches]


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


# Exceptions that cannot be sent.


class LocalClass(Dataset):
    """Raises an exception of a class that no other process can find."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 5:

            class HiddenError(Exception):
                pass

            raise HiddenError("from a hidden class")
        return index


class WorkersClass(LocalClass):
    """Raises an exception of a class in a module that exists in the worker alone."""

    def __getitem__(self, index):
        if index == 5:
            module = types.ModuleType(f"made_in_process_{os.getpid()}")
            module.HiddenError = type("HiddenError", (Exception,), {"__module__": module.__name__})
            sys.modules[module.__name__] = module
            raise module.HiddenError("from a hidden class")
        return index


class NeedsArguments(Exception):  # noqa: N818
    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")


class Particular(LocalClass):
    """Raises an exception that cannot be made from its text."""

    def __getitem__(self, index):
        if index == 5:
            raise NeedsArguments("a hidden class", 3)
        return index


class Unpicklable(LocalClass):
    """Raises an exception that holds what cannot be pickled."""

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("from a hidden class", lambda: None)
        return index


STRANGE = [LocalClass(), WorkersClass(), Particular(), Unpicklable()]


@pytest.mark.parametrize("dataset", STRANGE, ids=lambda dataset: type(dataset).__name__)
@pytest.mark.parametrize("runner", ["2 processes", "2 threads"])
def test_an_exception_that_cannot_be_sent_is_told_in_words(dataset, runner):
    loader = rk.DataLoader(dataset, 4, **RUNNERS[runner])
    with pytest.raises(Exception, match="a hidden class") as caught:
        list(loader)
    assert "Traceback" in str(caught.value)


@pytest.mark.parametrize(
    ("runner", "dataset"),
    each_value(RUNNERS, STRANGE),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_exception_that_cannot_be_sent_can_be_skipped(dataset, runner):
    loader = rk.DataLoader(dataset, 4, on_error="skip", **RUNNERS[runner])
    got = [index for batch in loader for index in batch.tolist()]
    assert got == [index for index in range(20) if index != 5]
    (bad,) = loader.report().bad_samples
    assert bad.id == 5
    assert "a hidden class" in bad.reason
