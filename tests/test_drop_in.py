"""Side by side with torch's DataLoader: its arguments, its attributes, its passes."""

import copy
import inspect
import pickle
import random

import numpy as np
import pytest
import torch
import torch.utils.data

import rekindle as rk
from same import same
from torch_datasets import WORKERS, Drawing, Shaped, Stream, Torch, Unsized, as_is


def test_every_argument_is_in_torchs_place_with_torchs_default():
    ours = inspect.signature(rk.DataLoader.__init__).parameters
    theirs = inspect.signature(Torch.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind, name
        assert ours[name].default == parameter.default, name
    added = list(ours)[len(theirs) :]
    assert added[:4] == ["seed", "executor", "on_error", "error_budget"]
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in added)


def test_arguments_may_be_given_by_position():
    arguments = (range(9), 4, False, None, None, 0, as_is, False, True, 0, None, None, None)
    assert list(rk.DataLoader(*arguments)) == list(Torch(*arguments)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_loader_is_torchs_loader_with_its_attributes():
    loader = rk.DataLoader(range(9), batch_size=4, num_workers=2, shuffle=True)
    theirs = Torch(range(9), batch_size=4, num_workers=2, shuffle=True)
    assert isinstance(loader, Torch)
    for name in ("batch_size", "num_workers", "drop_last", "timeout", "prefetch_factor",
                 "persistent_workers", "pin_memory", "in_order", "collate_fn", "worker_init_fn",
                 "generator", "multiprocessing_context"):  # fmt: skip
        assert getattr(loader, name) == getattr(theirs, name), name
    assert isinstance(loader.sampler, type(theirs.sampler))
    assert isinstance(loader.batch_sampler, type(theirs.batch_sampler))
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3


INVALID = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"persistent_workers": True},
    {"num_workers": 1, "prefetch_factor": -1},
    {"shuffle": True, "sampler": [1]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -1},
    {"batch_size": 1.5},
    {"num_workers": 1, "multiprocessing_context": "nonsense"},
    {"multiprocessing_context": "fork"},
]


def test_a_loader_shows_the_arguments_that_were_given():
    loader = rk.DataLoader(range(4), batch_size=2, num_workers=2, seed=7)
    assert repr(loader) == "DataLoader(range(0, 4), batch_size=2, num_workers=2, seed=7)"
    given = rk.DataLoader(range(4), num_workers=2, prefetch_factor=2, seed=7)  # what torch would fill in
    assert "prefetch_factor=2" in repr(given)


@pytest.mark.parametrize("arguments", INVALID, ids=str)
def test_arguments_that_torch_refuses_are_refused_in_its_words(arguments):
    with pytest.raises((ValueError, TypeError)) as theirs:
        Torch(range(4), **arguments)
    with pytest.raises(type(theirs.value)) as ours:
        rk.DataLoader(range(4), **arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}], ids=str
)
def test_a_stream_has_no_order_to_choose(arguments):
    with pytest.raises(ValueError) as theirs:  # noqa: PT011 - torch's own message is the measure
        Torch(Stream(), **arguments)
    with pytest.raises(ValueError) as ours:  # noqa: PT011
        rk.DataLoader(Stream(), **arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"seed": 2**63},
        {"seed": 1.5},
        {"executor": "coroutines"},
        {"on_error": "ignore"},
        {"error_budget": 2},
        {"error_budget": "1%"},
    ],
    ids=str,
)
def test_wrong_arguments_of_our_own_are_named_with_their_value(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(rk.ArgumentError, match=name) as caught:
        rk.DataLoader(range(4), **arguments)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"sampler": [1, 2, 3], "batch_size": 2},
        {"batch_sampler": [[1], [2, 3]]},
    ],
    ids=str,
)
def test_the_length_is_torchs(arguments):
    loader = rk.DataLoader(range(10), **arguments)
    assert len(loader) == len(Torch(range(10), **arguments)) == len(list(loader))
    assert len(iter(loader)) == len(loader)


def test_a_data_set_without_length_has_no_loader_length():
    with pytest.raises(TypeError):
        len(rk.DataLoader(Stream()))
    sampled = rk.DataLoader(Unsized(), sampler=[4, 2], batch_size=2)
    assert [batch.tolist() for batch in sampled] == [[4, 2]]


@WORKERS
def test_two_passes_at_once_do_not_disturb_each_other(num_workers):
    loader = rk.DataLoader(range(10), batch_size=2, num_workers=num_workers)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [([n, n + 1], [n, n + 1]) for n in range(0, 10, 2)]


@WORKERS
def test_a_pass_within_a_pass_is_a_whole_one(num_workers):
    loader = rk.DataLoader(range(4), batch_size=2, num_workers=num_workers)
    seen = [(a.tolist(), torch.cat(list(loader)).tolist()) for a in loader]
    assert seen == [([0, 1], [0, 1, 2, 3]), ([2, 3], [0, 1, 2, 3])]


@WORKERS
def test_after_breaking_out_the_next_pass_starts_at_the_beginning(num_workers):
    loader = rk.DataLoader(range(40), batch_size=2, num_workers=num_workers)
    for _ in range(3):
        for batch in loader:
            assert batch.tolist() == [0, 1]
            break
    assert torch.cat(list(loader)).tolist() == list(range(40))


def test_after_breaking_out_persistent_workers_start_at_the_beginning():
    loader = rk.DataLoader(range(40), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert next(iter(loader)).tolist() == [0, 1]
    assert torch.cat(list(loader)).tolist() == list(range(40))


@WORKERS
def test_an_iterator_at_its_end_stays_there(num_workers):
    iterator = iter(rk.DataLoader(range(4), batch_size=2, num_workers=num_workers))
    assert len(list(iterator)) == 2
    assert list(iterator) == []
    with pytest.raises(StopIteration):
        next(iterator)


@WORKERS
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda it: pickle.loads(pickle.dumps(it))],
    ids=["deepcopy", "copy", "pickle"],
)  # fmt: skip
def test_a_copy_of_a_loader_gives_the_same_batches(copied, num_workers):
    loader = rk.DataLoader(Shaped("dict"), batch_size=4, shuffle=True, num_workers=num_workers)
    other = copied(loader)
    assert other.seed == loader.seed
    first = list(loader)
    assert same(list(other), first)
    # And one made while workers are at work or waiting.
    iterator = iter(loader)
    next(iterator)
    busy = copied(loader)
    assert len(list(busy)) == len(first)
    assert len(list(iterator)) == len(first) - 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_iterating_without_workers_leaves_the_global_generators_alone(shuffle):
    loader = rk.DataLoader(Drawing(), batch_size=2, shuffle=shuffle)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    epochs = [list(loader), list(loader)]
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert before[0] == after[0]
    assert same(before[1], after[1])
    assert torch.equal(before[2], after[2])
    # The generators that it gave to the dataset were good ones, and new in every epoch.
    drawn = torch.cat([batch[1] for epoch in epochs for batch in epoch]).tolist()
    assert len(set(drawn)) == 18


def test_breaking_out_without_workers_leaves_the_global_generators_alone():
    before = random.getstate()
    for _ in rk.DataLoader(Drawing(), batch_size=2, seed=3):
        assert random.getstate() == before
        break
    assert random.getstate() == before


@WORKERS
def test_the_batch_just_yielded_is_described(num_workers):
    loader = rk.DataLoader(range(7), batch_size=3, num_workers=num_workers, shuffle=True, seed=2)
    with pytest.raises(AttributeError, match="none has been yet"):
        _ = loader.batch
    for epoch in range(2):
        for step, batch in enumerate(loader):
            info = loader.batch
            assert info.ids.tolist() == batch.tolist()
            assert (info.epoch, info.step) == (epoch, step)
            assert info.weights.tolist() == [1.0] * len(batch)
            assert info.fresh.all()
