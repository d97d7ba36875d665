"""A loader resumes anywhere, exactly: the rest of the epoch, then the epochs that follow."""

import copy
import io
import math
import random
import subprocess
import sys
import textwrap
import time
from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler, get_worker_info

import rekindle as rk
from same import digest


def through_a_file(state):
    """What a checkpoint makes of a state."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Draws(Dataset):
    """Dicts; samples draw from all three generators, some of them."""

    def __init__(self, size=22):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        x = torch.full((2,), float(index))
        if index % 3:
            x += random.random() + np.random.random_sample() + torch.rand(2)
        return {"x": x, "index": index}


class Counted(Dataset):
    """Knows which samples it was asked for, as long as that is in this process."""

    def __init__(self, size=22):
        self.size, self.asked = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.asked.append(index)
        return index


def shuffled(workers=0, dataset=None, seed=7, batch_size=4, **options):
    dataset = Draws() if dataset is None else dataset
    return rk.DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, seed=seed, **options)


def indices_of(batches):
    return [batch["index"].tolist() if isinstance(batch, dict) else batch.tolist() for batch in batches]


# Every step of two epochs.

STEPS = 6  # of an epoch of 22 samples in batches of 4


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
    passing = iter(resumed)  # Begun, and nothing handed over yet.
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
    from {module} import digest, shuffled

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
    script.write_text(textwrap.dedent(IN_A_FRESH_PROCESS).format(module=__name__.split(".")[-1]))
    folder = __file__.rpartition("/")[0]
    command = [sys.executable, str(script), folder, str(tmp_path / "state.pt"), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
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


# Other people's orders.


class EveryThird(Sampler):
    """A sampler without a state of its own, deterministic and stateless."""

    def __iter__(self):
        return iter([*range(0, 22, 3), *range(1, 22, 3), *range(2, 22, 3)])

    def __len__(self):
        return 22


class DrawsItsOrder(Sampler):
    """A sampler without a state of its own, which draws from the global generators as it goes."""

    def __iter__(self):
        for _ in range(22):
            yield random.randrange(7) + int(np.random.randint(7)) + int(torch.randint(7, ()))

    def __len__(self):
        return 22


class Remembers(Sampler):
    """A sampler with a state, as torchdata's have it: its generator at the epoch's start, and its place."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.start, self.place, self.resumed = self.generator.get_state(), 0, False

    def __iter__(self):
        if not self.resumed:
            self.start, self.place = self.generator.get_state(), 0
        self.resumed = False
        self.generator.set_state(self.start)
        return self.indices(torch.randperm(22, generator=self.generator).tolist()[self.place :])

    def indices(self, order):
        for index in order:
            self.place += 1
            yield index

    def __len__(self):
        return 22

    def state_dict(self):
        return {"start": self.start, "place": self.place}

    def load_state_dict(self, state):
        self.start, self.place, self.resumed = state["start"], state["place"], True


class RemembersBatches(Remembers):
    """The same for batches."""

    def indices(self, order):
        for start in range(0, len(order), 4):
            self.place += len(order[start : start + 4])
            yield order[start : start + 4]

    def __len__(self):
        return 6


class Batches:
    """A batch sampler that is no more than an iterable; its batches differ in size."""

    def __iter__(self):
        indices = iter(torch.randperm(21).tolist())
        for size in range(1, 7):
            yield list(islice(indices, size))

    def __len__(self):
        return 6


# Each makes the arguments anew, as a fresh process would.
FOREIGN = {
    "no state": lambda: {"batch_size": 4, "sampler": EveryThird()},
    "draws": lambda: {"batch_size": 4, "sampler": DrawsItsOrder()},
    "RandomSampler": lambda: {"batch_size": 4, "sampler": RandomSampler(range(22))},
    "RandomSampler with a generator": lambda: {
        "batch_size": 4,
        "sampler": RandomSampler(range(22), generator=torch.Generator().manual_seed(5)),
    },
    "stateful": lambda: {"batch_size": 4, "sampler": Remembers()},
    "stateful, batch_size=None": lambda: {"batch_size": None, "sampler": Remembers()},
    "stateful batches": lambda: {"batch_sampler": RemembersBatches()},
    "batches": lambda: {"batch_sampler": Batches()},
    "generator": lambda: {
        "batch_size": 4,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(5),
    },
    "a list": lambda: {"batch_size": 4, "sampler": [5, 3, 1, 1, 8, 9, 20]},
}


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def global_generators():
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_global_generators(states):
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", FOREIGN)
def test_any_sampler_resumes_after_any_number_of_batches(kind, workers):
    def make(workers):
        return rk.DataLoader(Draws(), num_workers=workers, seed=3, **FOREIGN[kind]())

    if kind == "draws" and workers > 0:
        pytest.skip("draws from the global generators as it goes, which is ahead of the batches")
    seed_all(1)
    batches, states, generators = [], [], []
    loader = make(workers)
    epochs = [len(loader), 2 * len(loader)]
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            states.append(through_a_file(loader.state_dict()))
            generators.append(global_generators())
    for k in sorted({1, 2, epochs[0] - 1, epochs[0], epochs[0] + 1, epochs[1] - 1}):
        if not 0 < k < len(states):
            continue
        # A checkpoint holds the global generators beside the loader's state, as ever.
        seed_all(99)
        resumed = make(2 - workers)
        set_global_generators(generators[k - 1])
        resumed.load_state_dict(states[k - 1])
        end = epochs[0] if k <= epochs[0] else epochs[1]
        assert digest(list(resumed)) == digest(batches[k:end]), f"the rest after {k} batches"
        if k <= epochs[0]:
            assert digest(list(resumed)) == digest(batches[end:]), f"the epoch after {k} batches"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", FOREIGN)
def test_any_sampler_resumes_between_two_epochs(kind, workers):
    def make(workers):
        return rk.DataLoader(Draws(), num_workers=workers, seed=3, **FOREIGN[kind]())

    seed_all(1)
    loader = make(workers)
    list(loader)
    state, generators = through_a_file(loader.state_dict()), global_generators()
    second = digest(list(loader))
    seed_all(99)
    resumed = make(2 - workers)
    set_global_generators(generators)
    resumed.load_state_dict(state)
    assert digest(list(resumed)) == second


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_pass_that_has_begun_without_a_batch_resumes_at_its_start(kind):
    def make(workers):
        return rk.DataLoader(Draws(), num_workers=workers, seed=3, **FOREIGN[kind]())

    seed_all(1)
    loader = make(0)
    iterator = iter(loader)
    state = loader.state_dict()
    generators = global_generators()
    expected = digest(list(iterator))
    seed_all(99)
    resumed = make(0)
    set_global_generators(generators)
    resumed.load_state_dict(state)
    assert digest(list(resumed)) == expected


@pytest.mark.parametrize("kind", ["no state", "RandomSampler", "generator", "batches"])
def test_replaying_a_sampler_loads_no_sample(kind):
    seed_all(1)
    loader = rk.DataLoader(Counted(), seed=3, **FOREIGN[kind]())
    iterator = iter(loader)
    list(islice(iterator, 3))
    state = loader.state_dict()
    left = [index for batch in iterator for index in batch.tolist()]
    dataset = Counted()
    resumed = rk.DataLoader(dataset, seed=3, **FOREIGN[kind]())
    resumed.load_state_dict(state)
    list(resumed)
    assert dataset.asked == left


def test_replaying_a_sampler_leaves_the_global_generators_alone():
    seed_all(1)
    loader = rk.DataLoader(Draws(), seed=3, **FOREIGN["draws"]())
    next(iter(loader))
    state = loader.state_dict()
    resumed = rk.DataLoader(Draws(), seed=3, **FOREIGN["RandomSampler"]())
    resumed.load_state_dict(state)
    seed_all(5)
    before = (random.random(), np.random.random_sample(), torch.rand(()).item())
    seed_all(5)
    iterator = iter(resumed)
    after = (random.random(), np.random.random_sample(), torch.rand(()).item())
    next(iterator)
    assert before == after


# Batches in the order of completion.


class SlowFirst(Draws):
    """The first sample takes long in a worker, so that others overtake it."""

    def __getitem__(self, index):
        if index == 0 and get_worker_info() is not None:
            time.sleep(0.3)
        return super().__getitem__(index)


@pytest.mark.parametrize("sampler", [None, range(22)])
def test_with_in_order_false_every_sample_comes_once_before_or_after(sampler):
    def make(workers):
        return rk.DataLoader(SlowFirst(), 2, sampler=sampler, num_workers=workers, in_order=False, seed=3)

    loader = make(2)
    iterator = iter(loader)
    before = indices_of(islice(iterator, 3))
    assert [0] not in before, "nothing has overtaken the first batch"
    resumed = make(2)
    resumed.load_state_dict(through_a_file(loader.state_dict()))
    after = indices_of(resumed)
    assert sorted(chain(*before, *after)) == list(range(22))
    assert sorted(chain(*indices_of(resumed))) == list(range(22))


# Iterable data sets.


class Stream(IterableDataset):
    """Numbers dealt to the workers, unequal parts, each with a draw."""

    def __iter__(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for value in range(31):
            if (value // 4) % workers == number:
                yield value, random.random() + float(np.random.random_sample()) + float(torch.rand(()))


@pytest.mark.parametrize(("saved_with", "loaded_with"), [(0, 0), (0, 1), (1, 0), (2, 2), (3, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_resumes_after_any_number_of_batches(saved_with, loaded_with, drop_last):
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


def noisy_collate(samples):
    return torch.tensor([value for value, _ in samples]), torch.rand(2)


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


# States of other loaders, and states that were tampered with.


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("dataset_size", {"dataset": Draws(23)}),
        ("seed", {"seed": 8}),
        ("batch_size", {"batch_size": 5}),
        ("drop_last", {"drop_last": True}),
        ("order", {"shuffle": False}),
        ("order", {"shuffle": False, "sampler": EveryThird()}),
        ("order", {"generator": torch.Generator()}),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_another_loader_is_refused_by_the_name_of_the_field(field, other, workers):
    same = {"dataset": Draws(), "seed": 7, "batch_size": 4, "shuffle": True}
    loader = rk.DataLoader(**same)
    next(iter(loader))
    refusing = rk.DataLoader(**{**same, **other}, num_workers=workers)
    with pytest.raises(rk.StateError, match=rf"\b{field}\b"):
        refusing.load_state_dict(loader.state_dict())
    # A refusal leaves the loader as it was.
    assert refusing.state_dict()["epoch"] == refusing.state_dict()["step"] == 0
    assert len(list(refusing)) == len(refusing)


def test_a_loader_without_a_seed_takes_the_states():
    loader = shuffled()
    iterator = iter(loader)
    next(iterator)
    resumed = shuffled(2, seed=None)
    assert resumed.seed != loader.seed
    resumed.load_state_dict(loader.state_dict())
    assert resumed.seed == loader.seed
    assert digest(list(resumed)) == digest(list(iterator))
    assert digest(list(resumed)) == digest(list(loader))


def walk(value, path="state"):
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            assert type(key) is str, path
            yield from walk(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from walk(inner, f"{path}[{place}]")


STATES = {
    "shuffled": lambda: shuffled(2),
    "out of order": lambda: shuffled(2, in_order=False),
    "sampler": lambda: rk.DataLoader(Draws(), 4, sampler=RandomSampler(range(22)), seed=7),
    "generator": lambda: rk.DataLoader(Draws(), 4, True, generator=torch.Generator(), seed=7),
    "stream": lambda: rk.DataLoader(Stream(), 3, num_workers=1, seed=7),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_is_numbers_strings_and_tensors(kind):
    loader = STATES[kind]()
    iterator = iter(loader)
    next(iterator), next(iterator)
    plain = (int, float, str, bool, type(None), torch.Tensor, dict, list)
    for path, value in walk(loader.state_dict()):
        assert type(value) in plain, f"{path} is a {type(value)}"


@pytest.fixture(scope="module")
def saved_states():
    states = {}
    for kind, make in STATES.items():
        loader = make()
        iterator = iter(loader)
        next(iterator), next(iterator)
        states[kind] = loader.state_dict()
    return states


@pytest.mark.parametrize("kind", STATES)
def test_a_state_cut_short_is_refused(kind, saved_states):
    for name in saved_states[kind]:
        cut = {key: value for key, value in saved_states[kind].items() if key != name}
        with pytest.raises(rk.StateError):
            STATES[kind]().load_state_dict(cut)


@pytest.mark.parametrize("state", [None, 3, "state", [], {}, {"version": 1}, {"version": 2}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(rk.StateError):
        shuffled().load_state_dict(state)


NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-1, 0, 1, 2**31, 2**63]),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-3, 3), max_size=3),
    st.just({}),
    st.sampled_from([torch.tensor([]), torch.tensor([-5, 5]), torch.tensor([0.5])]),
)


def places(state, path=()):
    """Where a state can be changed."""
    for key, value in state.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@pytest.mark.parametrize("kind", ["shuffled", "sampler", "generator", "stream"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_an_edited_state_is_refused_or_works(kind, saved_states, data):
    """Never a crash: what `load_state_dict` takes can be iterated."""
    state = copy.deepcopy(saved_states[kind])
    *folder, name = data.draw(st.sampled_from(list(places(state))))
    inner = state
    for key in folder:
        inner = inner[key]
    inner[name] = data.draw(NONSENSE)
    loader = {
        "shuffled": lambda: shuffled(seed=None),
        "sampler": lambda: rk.DataLoader(Draws(), 4, sampler=RandomSampler(range(22))),
        "generator": lambda: rk.DataLoader(Draws(), 4, True, generator=torch.Generator()),
        "stream": lambda: rk.DataLoader(Stream(), 3),
    }[kind]()
    try:
        loader.load_state_dict(state)
    except rk.StateError:
        return
    list(loader)
    loader.state_dict()


@pytest.mark.parametrize("field", ["epoch", "step"])
@pytest.mark.parametrize("value", [-1, float("inf"), 2**64, "much", torch.tensor([1, 2])])
def test_a_place_that_cannot_be_is_refused(field, value):
    state = shuffled().state_dict() | {field: value}
    with pytest.raises(rk.StateError):
        shuffled().load_state_dict(state)


def test_a_step_beyond_the_epochs_end_is_refused():
    state = shuffled().state_dict() | {"step": STEPS + 1}
    with pytest.raises(rk.StateError, match="step"):
        shuffled().load_state_dict(state)
