"""What a state leaves to the script: what it sets in its sampler, and what no state can hold."""

import random
import warnings
from itertools import cycle

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler

import rekindle as rk
from resumable import Remembers, through_a_file
from test_sampler_memory import ARGUMENTS, Counts, InPlace, Own, batches

SIZE = 12


def loader_of(sampler, **options):
    return rk.DataLoader(range(SIZE), seed=3, **{"batch_size": 3, "sampler": sampler, **options})


class Trainer:
    """An object of the script's that a sampler asks."""

    step = 0


class Asks(Own):
    def __init__(self, trainer, settings):
        super().__init__(random.Random(5))
        self.trainer, self.settings, self.rank, self.limit = trainer, settings, 0, SIZE

    def order(self):
        return super().order()[: self.limit]


def test_what_a_script_sets_is_not_put_back():
    trainer, settings = Trainer(), {"rate": 0.1}
    loader = loader_of(Asks(trainer, settings))
    for epoch in range(2):
        loader.sampler.limit = 6 + epoch
        for _ in loader:
            trainer.step += 1
            settings["rate"] /= 2
    state, due = through_a_file(loader.state_dict()), batches(loader)
    assert state["sampler"]["kept"].keys() == {"Asks"}
    assert state["sampler"]["kept"]["Asks"].keys() == {"rng"}
    trainer, settings = Trainer(), {"rate": 0.5}
    resumed = loader_of(Asks(trainer, settings))
    resumed.sampler.limit, resumed.sampler.rank = 7, 1
    resumed.load_state_dict(state)
    assert batches(resumed) == due
    assert (trainer.step, settings, resumed.sampler.rank) == (0, {"rate": 0.5}, 1)


@pytest.mark.parametrize("kind", ["counts", "PCG64"])
def test_what_a_script_sets_after_it_has_loaded_a_state_counts(kind):
    def change(sampler):
        if kind == "counts":
            sampler.number = 50
        else:
            sampler.rng = np.random.default_rng(50)

    def make():
        return rk.DataLoader(range(SIZE), seed=3, **ARGUMENTS[kind]())

    loader = make()
    batches(loader)
    state = loader.state_dict()
    change(loader.sampler)
    due = batches(loader)
    resumed = make()
    resumed.load_state_dict(state)
    change(resumed.sampler)
    assert batches(resumed) == due


class Weighted(Sampler):
    """By weights that the training loop changes, batch after batch."""

    def __init__(self):
        self.weights, self.rng = np.ones(SIZE), np.random.default_rng(5)

    def __len__(self):
        return SIZE

    def __iter__(self):
        order = self.rng.choice(SIZE, SIZE, p=self.weights / self.weights.sum())
        return iter(order.tolist())


def test_weights_that_the_loop_changes_go_on_as_well():
    def trained(loader):
        for batch in loader:
            loader.sampler.weights[batch.numpy()] *= 1.5
            yield batch.tolist()

    loader = loader_of(Weighted())
    whole, states = [], []
    for epoch in range(3):
        for batch in trained(loader):
            whole.append(batch)
            states.append((epoch, len(whole), through_a_file(loader.state_dict())))
    for epoch, done, state in states:
        resumed = loader_of(Weighted())
        resumed.load_state_dict(state)
        rest = [batch for _ in range(epoch, 3) for batch in trained(resumed)]
        assert rest == whole[done:], done


INTERRUPTS = [KeyboardInterrupt]


class Interrupted(Own):
    """Is interrupted in the middle of its second pass, once."""

    def __init__(self):
        super().__init__(random.Random(5))
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        for number in range(SIZE):
            index = (self.rng.randrange(SIZE) + self.passes) % SIZE
            if self.passes == 2 and number == 7 and INTERRUPTS:
                raise INTERRUPTS.pop()
            yield index


def test_a_sampler_that_is_interrupted_goes_on_with_what_it_kept():
    loader = loader_of(Interrupted())
    found = [batches(loader)]
    iterator = iter(loader)
    second = [next(iterator).tolist() for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    second += batches(iterator)
    uninterrupted = loader_of(Interrupted())
    due = [batches(uninterrupted) for _ in range(3)]
    assert [*found, second, batches(loader)] == due


def test_a_sampler_with_a_state_of_its_own_is_put_back_by_that_alone():
    loader = rk.DataLoader(range(22), batch_size=4, sampler=Remembers(), seed=3)
    next(iter(loader))
    assert loader.state_dict()["sampler"]["kept"] is None


class Turns(Own):
    """Goes on with an iterator that it holds."""

    def __init__(self, iterator):
        super().__init__(None)
        self.iterator = iterator

    def order(self):
        return [next(self.iterator) for _ in range(5)]


def test_an_iterator_that_is_not_over_between_two_epochs_is_named():
    loader = loader_of(Turns(cycle(range(SIZE))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()  # It has not begun.
        batches(loader)
    with pytest.warns(UserWarning, match=r"without Turns\.iterator \(cycle\)") as caught:
        loader.state_dict()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.state_dict()  # Once is enough.
        over = loader_of(Turns(iter(range(5))))
        batches(over)
        over.state_dict()


NONSENSE = [
    None,
    7,
    {"Own": 7},
    {"Own": {"rng": 7}},
    {"Own": {"rng": [7]}},
    {"Own": {"rng": [("list", 7), True]}},
    {"Own": {"rng": [("array", torch.ones(2).to("meta")), True]}},
    {"Own": {"rng": [("array", torch.ones(1).expand(10**9)), True]}},
    {"Own": {"rng": [("Random", torch.ones(7)), True]}},
    {"Own": {"rng": [("torch Generator", torch.zeros(7, dtype=torch.uint8)), True]}},
    {"Own": {"rng": [("numpy Generator", {"bit_generator": "PCG64"}), True]}},
    {"Own": {"rng": [("numpy Generator", {"bit_generator": "PCG65"}), True]}},
    {"Own": {"rng": [("something else", 7), True]}},
    {"Own": {"rng": [("list", ("rows",)), True]}},
    {"Own": {"rng": [("list", ("rows", [[1], (2,)])), True]}},
    {"Own": {"rng": [("list", ("rows", [[{}]])), True]}},
    {7: {"rng": [7, True]}},
]


@pytest.mark.parametrize("number", range(1, len(NONSENSE)))
@pytest.mark.parametrize("field", ["kept", "kept_first"])
def test_what_no_sampler_keeps_is_refused(field, number):
    loader = loader_of(Own(random.Random(5)))
    next(iter(loader))
    state = loader.state_dict()
    state["sampler"][field] = NONSENSE[number]
    with pytest.raises(rk.StateError, match="sampler"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Philox", lambda state: state.update(buffer_pos=5)),
        ("Philox", lambda state: state.update(buffer_pos=-1)),
        ("MT19937", lambda state: state["state"].update(pos=10**6)),
        ("MT19937", lambda state: state["state"].update(key=[0] * 624)),
        ("MT19937", lambda state: state["state"].update(key=[1] * 7)),
        ("PCG64", lambda state: state["state"].update(inc=2**200)),
        ("PCG64", lambda state: state["state"].update(inc="1")),
        ("SFC64", lambda state: state.update(state={})),
    ],
)
def test_a_bit_generator_that_cannot_be_so_is_refused(kind, change):
    loader = rk.DataLoader(range(SIZE), seed=3, **ARGUMENTS[kind]())
    batches(loader)
    state = loader.state_dict()
    change(state["sampler"]["kept"]["Own"]["rng"][0][1])
    with pytest.raises(rk.StateError, match=r"sampler\.kept\.Own\.rng"):
        loader.load_state_dict(state)


def test_what_a_sampler_of_another_class_kept_is_not_put_back():
    loader = loader_of(Counts())
    batches(loader)
    resumed = loader_of(InPlace(list(range(SIZE)), random.Random(5)))
    due = batches(loader_of(InPlace(list(range(SIZE)), random.Random(5))))
    resumed.load_state_dict(loader.state_dict())
    assert batches(resumed) == due


def test_a_state_without_what_a_sampler_keeps_is_loaded():
    loader = loader_of(Own(random.Random(5)))
    next(iter(loader))
    state = loader.state_dict()
    for name in ("kept", "kept_first", "drawn", "ended", "stream"):
        del state["sampler"][name]
    due = batches(loader_of(Own(random.Random(5))))[1:]
    resumed = loader_of(Own(random.Random(5)))
    resumed.load_state_dict(state)
    assert batches(resumed) == due
