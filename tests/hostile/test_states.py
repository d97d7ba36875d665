"""A saved state from anywhere: it loads, or is refused by the name of a field; nothing else happens."""

import copy
import struct

import numpy as np
import pytest
import torch

import rekindle as rk
from hostile.state_mutator import LOADERS, SIZE, Stream, outcome, saved_states, search
from rekindle.core.generator_states import check_torch


@pytest.fixture(scope="module")
def saved():
    """A state of each kind of loader, in the middle of an epoch."""
    return {kind: saved_states(make)[0] for kind, make in LOADERS.items()}


def refused(kind, state, field):
    with pytest.raises(rk.StateError, match=rf"^{field}: "):
        LOADERS[kind]().load_state_dict(state)


def test_a_position_beyond_the_words_of_numpys_generator_is_refused(saved):
    """NumPy does not check it, and reads whatever lies there: the first permutation crashes the process."""
    state = copy.deepcopy(saved["sampler of NumPy"])
    for position in (1e8, 625.0, -1.0, float("nan"), 0.5):
        state["sampler"]["start"]["numpy"][624] = position
        refused("sampler of NumPy", state, "sampler.start.numpy")


@pytest.mark.parametrize("name", ["numpy", "python"])
def test_words_that_no_generator_has_are_refused(saved, name):
    state = copy.deepcopy(saved["sampler"])
    good = state["sampler"]["start"][name].clone()
    for words in (
        torch.zeros_like(good),
        good[:-1],
        good.float(),
        good + 0.5,
        good.repeat(2),
        good * 0 + 2.0**32,
    ):
        state["sampler"]["start"][name] = words
        refused("sampler", state, f"sampler.start.{name}")
    state["sampler"]["start"][name] = good
    assert outcome("sampler", state) == "loaded"


def test_a_position_beyond_the_words_of_torchs_generator_is_refused(saved):
    """Torch checks the position and the number of words left, but not that both together fit."""
    good = torch.Generator().manual_seed(5).get_state()
    state = copy.deepcopy(saved["generator"])
    for left, position in ((624, 624), (600, 300), (2, 624), (0, 0), (1, 625), (1, 2**63)):
        memory = bytearray(good.numpy().tobytes())
        struct.pack_into("<i", memory, 8, left)
        struct.pack_into("<Q", memory, 16, position)
        state["sampler"]["start"]["generator"] = torch.frombuffer(memory, dtype=torch.uint8).clone()
        refused("generator", state, "sampler.start.generator")
    generator = torch.Generator().manual_seed(5)
    for _ in range(1300):  # Every position that there is.
        check_torch(generator.get_state())
        torch.rand(1, generator=generator)


@pytest.mark.parametrize("made", [2**40, 2**62])
@pytest.mark.parametrize("kind", ["stream", "batch echo of a stream"])
def test_batches_that_a_stream_never_had_end_with_the_stream(saved, kind, made):
    state = copy.deepcopy(saved[kind])
    state["iterable"]["made"] = [made]
    assert outcome(kind, state) == "loaded"


def test_a_worker_skips_no_more_than_its_stream_has():
    loader = rk.DataLoader(Stream(), 4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    del iterator
    state["iterable"]["made"] = [2**40]
    with rk.DataLoader(Stream(), 4, num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == []
        assert len(list(resumed)) == SIZE // 4


HUGE = [2**31, 2**63 - 1, 2**63, 2**64, 10**30, 1 << 20_000, -1, True, 1.0, float("nan"), "7", None, [1], {}]


@pytest.mark.parametrize(
    "value", HUGE, ids=lambda value: str(value)[:12] if value != 1 << 20_000 else "20000 bits"
)
def test_numbers_out_of_range_are_refused_by_the_name_of_their_field(saved, value):
    shuffled, refurbished = saved["shuffled"], saved["refurbished"]
    if type(value) is not int or value < 0 or value >= 2**63:
        refused("shuffled", {**shuffled, "seed": value}, "seed")
    refused("shuffled", {**shuffled, "epoch": value}, "epoch")
    refused("shuffled", {**shuffled, "step": value}, "step")
    if value is not None:  # It was not decided yet.
        refused("refurbished", {**refurbished, "split": value}, "split")
    state = copy.deepcopy(saved["stream"])
    if type(value) is not int or not 0 <= value <= 2**62:
        state["iterable"]["made"] = [value]
        refused("stream", state, "iterable.made")


def test_tensors_that_repeat_one_number_without_end_are_refused(saved):
    """`torch.load(weights_only=True)` makes a tensor of 2**40 entries of a few bytes."""
    endless = torch.zeros(1, dtype=torch.int64).expand(2**40)
    state = copy.deepcopy(saved["shuffled"])
    for field in ("ahead", "bad_ids", "bad_epochs"):
        refused("shuffled", {**state, field: endless}, field)
    state = copy.deepcopy(saved["buckets"])
    for folder, field in (("scores", "uses"), ("measured", "ids"), ("loaded", "nbytes")):
        other = copy.deepcopy(state)
        other["importance_state"][folder][field] = endless
        refused("buckets", other, f"importance_state.{folder}.{field}")
    state["importance_state"]["ids"] = endless
    refused("buckets", state, "importance_state.ids")


def _nested():
    value = []
    for _ in range(20_000):
        value = [value]
    return value


def test_what_is_nested_without_end_is_refused(saved):
    state = copy.deepcopy(saved["stateful sampler"])
    state["sampler"]["sampler"] = _nested()
    refused("stateful sampler", state, "sampler.sampler")
    deep = {}
    for _ in range(20_000):
        deep = {"x": deep}
    state = copy.deepcopy(saved["buckets"])
    state["importance_state"]["own"] = deep
    refused("buckets", state, "importance_state.own")
    state["importance_state"]["own"] = _nested()
    refused("buckets", state, "importance_state.own")
    state["importance_state"]["method"] = deep
    refused("buckets", state, "importance")


@pytest.mark.parametrize(
    ("folder", "field", "number"),
    [
        ("scores", "loss", float("nan")),
        ("scores", "loss", float("inf")),
        ("scores", "probability", float("nan")),
        ("scores", "probability", 7.0),
        ("measured", "correct", 2),
        ("scores", "epoch", 2**31 - 1),
        ("scores", "loads", -1),
        ("scores", "rival", 7.0),
        ("scores", "nbytes", -5),
        ("scores", "load_seconds", -1.0),
        ("scores", "load_seconds", float("inf")),
        ("scores", "turns", 0),
        ("scores", "turns", 2**62),
        ("scores", "uses", -(2**63)),
        ("", "weights", float("nan")),
        ("", "weights", float("inf")),
        ("", "weights", -1.0),
        ("", "ids", SIZE),
        ("", "ids", -1),
        ("measured", "ids", 2**62),
        ("measured", "rival", float("inf")),
        ("measured", "age", -5),
    ],
)
def test_scores_that_nothing_was_ever_measured_as_are_refused(saved, folder, field, number):
    state = copy.deepcopy(saved_states(LOADERS["buckets"])[2])
    fields = state["importance_state"][folder] if folder else state["importance_state"]
    fields[field][0] = number
    with pytest.raises(rk.StateError, match=r"^importance_state\."):
        LOADERS["buckets"]().load_state_dict(state)


def test_a_bucket_in_which_everything_waits_is_refused(saved):
    state = copy.deepcopy(saved["buckets"])
    state["importance_state"]["own"]["waiting"] = torch.ones(SIZE, dtype=torch.bool)
    refused("buckets", state, "importance_state.own.waiting")


def test_a_sampler_at_another_batch_than_its_epoch_is_refused(saved):
    state = copy.deepcopy(saved["sampler"])
    state["step"] += 1
    refused("sampler", state, "sampler.step")


def test_a_loader_with_a_generator_needs_the_state_of_one(saved):
    state = copy.deepcopy(saved["stream with a generator"])
    state["iterable"]["generator"] = None
    refused("stream with a generator", state, "iterable.generator")


def test_a_refused_state_does_not_move_the_generators(saved):
    state = copy.deepcopy(saved["sampler"])
    state["bad_reasons"] = 5
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    refused("sampler", state, "bad_reasons")
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_as_it_was_saved_is_loaded(kind):
    for state in saved_states(LOADERS[kind]):
        assert outcome(kind, state) == "loaded"


def test_a_changed_state_loads_or_is_refused():
    found = search(120, number=1)  # of which some are harmless
    assert {what for _, what in found} == {"refused", "loaded"}


@pytest.mark.slow
def test_many_changed_states_load_or_are_refused():
    search(5_000, number=1)
