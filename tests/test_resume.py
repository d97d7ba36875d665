"""A loader resumes anywhere, exactly: the rest of the epoch, then the epochs that follow."""

import copy
import math
import multiprocessing
import textwrap
from itertools import chain, islice

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, get_worker_info

import rekindle as rk
import warm_python
from covering import each_value
from mortal import noisy_collate
from resumable import STEPS, Counted, Draws, Stream, indices_of, shuffled, through_a_file
from same import digest
from waiting import HANGS

# Every step of two epochs.


def states_of_two_epochs(loader):
    """All batches of two epochs, and the state after each number of them, with the loops not ended."""
    batches, states = [], [loader.state_dict()]
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    return batches, states


@pytest.mark.parametrize(("saved_with", "loaded_with"), [(0, 2), (2, 0), (1, 4), (2, 2)])
def test_a_state_after_any_number_of_batches_gives_exactly_the_rest(saved_with, loaded_with):
    batches, states = states_of_two_epochs(shuffled(saved_with))
    third = list(shuffled_at_epoch(2))
    assert len(batches) == 2 * STEPS
    for k, state in enumerate(states):
        # Workers, which take longest, go on at the beginning and the end of both epochs.
        if loaded_with and 1 < k % STEPS < STEPS - 1:
            continue
        loader = shuffled(loaded_with)
        loader.load_state_dict(through_a_file(state))
        rest = list(loader)
        # After the last batch and before the loop has ended, what is left of the epoch is nothing.
        end = STEPS * max(1, math.ceil(k / STEPS))
        assert digest(rest) == digest(batches[k:end]), f"after {k} batches"
        if k in (1, STEPS - 1, STEPS, STEPS + 1):
            following = batches[STEPS:] if k <= STEPS else third
            assert digest(list(loader)) == digest(following), f"the epoch after {k} batches"


def shuffled_at_epoch(epoch):
    loader = shuffled()
    for _ in range(epoch):
        list(loader)
    return loader


@pytest.mark.parametrize("workers", [0, 2])
def test_after_the_last_batch_the_epoch_is_empty_and_the_next_follows(workers):
    loader = shuffled(workers)
    iterator = iter(loader)
    for _ in range(STEPS):
        next(iterator)
    state = loader.state_dict()
    resumed = shuffled(2 - workers)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert digest(list(resumed)) == digest(list(shuffled_at_epoch(1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_after_the_loop_has_ended_the_next_pass_is_the_next_epoch(workers):
    loader = shuffled(workers)
    list(loader)
    resumed = shuffled(2 - workers)
    resumed.load_state_dict(loader.state_dict())
    assert digest(list(resumed)) == digest(list(shuffled_at_epoch(1)))


def test_a_state_of_a_loader_that_has_not_begun_is_its_beginning():
    loader = shuffled(2)
    resumed = shuffled()
    resumed.load_state_dict(loader.state_dict())
    assert digest(list(resumed)) == digest(list(loader))


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_five_resumes_in_a_row_lose_nothing(executor):
    expected = [batch for epoch in range(3) for batch in shuffled_at_epoch(epoch)]
    got, state, workers = [], None, [0, 2, 1, 4, 3, 2]
    for number, count in enumerate(workers):
        loader = shuffled(count, executor=executor)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        last = number == len(workers) - 1
        got += iterator if last else islice(iterator, (2, 1, 3, 4, 1)[number])
        if not last:
            state = through_a_file(loader.state_dict())
            if loader.state_dict()["step"] == STEPS:
                assert next(iterator, None) is None
                state = through_a_file(loader.state_dict())
    got += list(loader)
    assert digest(got) == digest(expected[: len(got)])
    assert len(got) == 3 * STEPS


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_saved_right_after_a_resume_is_the_same_state(workers):
    loader = shuffled(workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    resumed = shuffled(2)
    resumed.load_state_dict(state)
    assert_same_state(resumed.state_dict(), state)
    passing = iter(resumed)  # Begun, and nothing yielded yet.
    assert_same_state(resumed.state_dict(), state)
    assert digest(next(passing)) == digest(next(iterator))
    assert_same_state(resumed.state_dict(), loader.state_dict())


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert digest(one[name]) == digest(other[name]), name


def test_loading_a_state_into_a_loader_in_use_moves_it():
    loader = shuffled(2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = digest(list(iterator))
    list(loader)
    loader.load_state_dict(state)
    assert digest(list(loader)) == expected
    assert digest(list(loader)) == digest(list(shuffled_at_epoch(1)))


def test_a_state_does_not_change_while_the_loader_goes_on():
    loader = shuffled(2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    list(iterator)
    assert_same_state(state, kept)


def test_a_resumed_loader_leaves_the_state_it_was_given_alone():
    loader = rk.DataLoader(range(20), 4, sampler=RandomSampler(range(20)), seed=1)
    next(iter(loader))
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    other = rk.DataLoader(range(20), 4, sampler=RandomSampler(range(20)), seed=1)
    other.load_state_dict(state)
    list(other)
    assert_same_state(state, kept)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    stops=st.lists(st.integers(0, 12), min_size=1, max_size=5),
)
@example(size=8, batch_size=4, drop_last=True, shuffle=True, stops=[2, 0, 2])
@example(size=3, batch_size=4, drop_last=True, shuffle=True, stops=[0, 0])
def test_any_chain_of_resumes_gives_the_same_samples(size, batch_size, drop_last, shuffle, stops):
    def make():
        return rk.DataLoader(Draws(size), batch_size, shuffle=shuffle, drop_last=drop_last, seed=3)

    loader, got, ended = make(), [], True
    for stop in stops:
        # Some batches, over the ends of epochs; then as if the process had ended.
        for _ in range(stop):
            iterator = iter(loader) if ended else iterator  # noqa: F821
            batch = next(iterator, None)
            ended = batch is None
            got.append("end" if ended else batch)
        state = loader.state_dict()
        loader = make()
        loader.load_state_dict(state)
        iterator, ended = iter(loader), False
    straight, expected = make(), []
    while len(expected) < len(got):
        expected += [*straight, "end"]
    assert digest(got) == digest(expected[: len(got)])


IN_A_FRESH_PROCESS = """
    import sys, torch
    sys.path.insert(0, sys.argv[1])
    from resumable import shuffled
    from same import digest

    if __name__ == "__main__":
        loader = shuffled(int(sys.argv[3]))
        loader.load_state_dict(torch.load(sys.argv[2], weights_only=True))
        print(digest(list(loader)), digest(list(loader)))
"""


def test_a_fresh_process_goes_on_from_a_file(tmp_path):
    loader = shuffled(2)
    iterator = iter(loader)
    list(islice(iterator, 3))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    script = tmp_path / "go_on.py"
    script.write_text(textwrap.dedent(IN_A_FRESH_PROCESS))
    folder = __file__.rpartition("/")[0]
    done = warm_python.run(script, folder, tmp_path / "state.pt", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [digest(list(iterator)), digest(list(loader))]


# Only what is left is loaded.


def test_samples_that_were_used_already_are_not_loaded_again():
    loader = shuffled(dataset=Counted())
    iterator = iter(loader)
    used = [index for batch in islice(iterator, 4) for index in batch.tolist()]
    dataset = Counted()
    resumed = shuffled(dataset=dataset)
    resumed.load_state_dict(loader.state_dict())
    list(resumed)
    assert sorted(dataset.asked) == sorted(set(range(22)) - set(used))


# Batches in the order of completion.


class LateFirst(Draws):
    """In a worker, the first sample waits until others have overtaken it."""

    def __init__(self):
        super().__init__()
        self.overtaken = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index):
        if index == 0 and get_worker_info() is not None:
            assert self.overtaken.wait(HANGS)
        return super().__getitem__(index)


@pytest.mark.parametrize("sampler", [None, range(22)])
def test_with_in_order_false_every_sample_comes_once_before_or_after(sampler):
    dataset = LateFirst()

    def make(workers):
        return rk.DataLoader(dataset, 1, sampler=sampler, num_workers=workers, in_order=False, seed=3)

    loader = make(2)
    iterator = iter(loader)
    before = indices_of(islice(iterator, 3))
    assert [0] not in before, "nothing has overtaken the first batch"
    dataset.overtaken.set()
    resumed = make(2)
    resumed.load_state_dict(through_a_file(loader.state_dict()))
    after = indices_of(resumed)
    assert sorted(chain(*before, *after)) == list(range(22))
    assert sorted(chain(*indices_of(resumed))) == list(range(22))


# Iterable datasets.


@pytest.mark.parametrize(
    ("workers", "drop_last"), each_value([(0, 0), (0, 1), (1, 0), (2, 2), (3, 3)], [False, True]), ids=str
)
def test_a_stream_resumes_after_any_number_of_batches(workers, drop_last):
    saved_with, loaded_with = workers

    def make(workers):
        return rk.DataLoader(Stream(), 3, num_workers=workers, drop_last=drop_last, seed=3)

    loader = make(saved_with)
    states, batches = [], []
    for batch in loader:
        batches.append(batch)
        states.append(through_a_file(loader.state_dict()))
    second = list(loader)
    assert digest(second) != digest(batches)
    for k in sorted({1, 2, len(batches) // 2, len(batches) - 1, len(batches)}):
        resumed = make(loaded_with)
        resumed.load_state_dict(states[k - 1])
        assert digest(list(resumed)) == digest(batches[k:]), f"after {k} batches"
        assert digest(list(resumed)) == digest(second), f"the epoch after {k} batches"


def test_a_stream_in_batch_size_none_resumes():
    def make():
        return rk.DataLoader(Stream(), batch_size=None, num_workers=2, seed=3)

    loader = make()
    iterator = iter(loader)
    list(islice(iterator, 7))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert digest(list(resumed)) == digest(list(iterator))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_with_a_random_collate_fn_resumes(workers):
    def make():
        return rk.DataLoader(Stream(), 3, collate_fn=noisy_collate, num_workers=workers, seed=3)

    loader = make()
    iterator = iter(loader)
    list(islice(iterator, 4))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert digest(list(resumed)) == digest(list(iterator))


def test_a_stream_resumes_between_epochs_with_a_generator():
    def make():
        return rk.DataLoader(Stream(), 3, num_workers=1, seed=3, generator=torch.Generator().manual_seed(5))

    loader = make()
    list(loader)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert digest(list(resumed)) == digest(list(loader))


def test_a_stream_of_another_worker_count_is_refused():
    loader = rk.DataLoader(Stream(), 3, num_workers=2, seed=3)
    next(iter(loader))
    other = rk.DataLoader(Stream(), 3, num_workers=3, seed=3)
    with pytest.raises(rk.StateError, match="num_workers"):
        other.load_state_dict(loader.state_dict())
