"""States of other loaders, and states that were tampered with, are refused."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler

import rekindle as rk
from resumable import STEPS, Draws, EveryThird, Stream, shuffled
from same import digest

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


def test_a_state_of_the_earlier_orders_is_refused_with_what_to_do():
    with pytest.raises(rk.StateError, match=r"other shuffled orders.*set_epoch"):
        shuffled().load_state_dict(shuffled().state_dict() | {"version": 1})


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
        list(loader)  # which refuses to go on with a sampler's order that is another one
    except rk.StateError:
        return
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
