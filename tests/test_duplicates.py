"""Near-duplicates: every group keeps one member and its weight; plans depend on the epoch alone."""

import pickle

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

import rekindle as rk
from near_duplicates import folder
from rekindle.choose import Choice, Redundancy, RedundantGroups, Shard
from rekindle.choose.duplicates.epoch_samples import EpochSamples
from rekindle.choose.duplicates.group_turns import GroupTurns
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.duplicates.representatives import GroupIndex
from rekindle.choose.duplicates.substitution import SubstitutingRefresh

SIZE = 40
GROUPS = [[0, 7, 13], [2, 3], [20, 21, 22, 39]]


class Counted(torch.utils.data.Dataset):
    """Sample i is i."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


@st.composite
def grouped(draw):
    size = draw(st.integers(2, 60))
    numbers = draw(st.lists(st.integers(0, 12), min_size=size, max_size=size))
    groups = [[i for i, n in enumerate(numbers) if n == number] for number in range(8)]
    return size, [group for group in groups if len(group) > 1]


def turns_of(groups, size, seed):
    return GroupTurns.of(GroupIndex.of(RedundantGroups.of(groups, size).numbers()), seed)


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=60), st.data())
def test_one_sample_represents_a_group_the_one_with_the_lowest_priority(numbers, data):
    numbers = np.array(numbers)
    ids = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))))
    priority = np.random.default_rng(0).random(len(numbers))
    representatives = GroupIndex.of(numbers).representatives(ids, priority)
    for id_, chosen in zip(ids.tolist(), representatives.tolist(), strict=True):
        members = [id_] if numbers[id_] < 0 else ids[numbers[ids] == numbers[id_]].tolist()
        assert chosen == min(members, key=lambda member: priority[member])


@settings(max_examples=40, deadline=None)
@given(grouped(), st.integers(0, 99), st.integers(0, 20))
def test_the_member_on_turn_represents_its_group_if_all_are_candidates(data, seed, turn):
    size, groups = data
    turns, everyone = turns_of(groups, size, seed), np.arange(size)
    by_priority = turns.index.representatives(everyone, turns.turns_until(turn))
    assert by_priority.tolist() == turns.on_turn(everyone, np.full(size, turn)).tolist()


@settings(max_examples=60, deadline=None)
@given(grouped(), st.integers(0, 99), st.integers(0, 9), st.booleans())
def test_every_group_keeps_exactly_one_and_its_weight_if_asked(data, seed, epoch, correct):
    size, groups = data
    choice = EpochSamples(turns_of(groups, size, seed), seed, remove=True, keep_totals=correct)
    weights = np.random.default_rng(seed).random(size).astype(np.float32)
    ids, kept = choice.reduce(np.arange(size), weights, epoch)
    assert len(np.unique(ids)) == len(ids) == size - sum(len(group) - 1 for group in groups)
    for group in groups:
        there = np.isin(ids, group)
        assert there.sum() == 1
        expected = weights[group].sum() if correct else weights[ids[there][0]]
        assert kept[there][0] == pytest.approx(expected, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(grouped(), st.integers(0, 99))
def test_members_take_turns_and_earlier_turns_are_computed(data, seed):
    size, groups = data
    turns, seen = turns_of(groups, size, seed), np.zeros(size, dtype=int)
    choice = EpochSamples(turns, seed, remove=True, keep_totals=False)
    for epoch in range(6):
        ids, _ = choice.reduce(np.arange(size), np.ones(size, np.float32), epoch)
        assert (turns.turns_before(ids, epoch) == seen[ids]).all()
        seen[ids] += 1
    for group in groups:
        assert np.ptp(seen[group]) <= 1


@settings(max_examples=40, deadline=None)
@given(grouped(), st.integers(0, 99), st.sampled_from([1, 1.5, 2, 3]))
def test_substitutes_use_only_results_that_the_plan_has_computed(data, seed, factor):
    size, groups = data
    turns = turns_of(groups, size, seed)
    refresh, computed = SubstitutingRefresh.over(turns, factor, seed), set()
    everything = Choice(np.arange(size), np.ones(size, dtype=np.float32), np.zeros(size, dtype=np.int64))
    for epoch in range(7):
        layout = {"size": size, "epoch": epoch, "seed": seed, "shuffle": True, "batch_size": 4}
        choice = everything._replace(uses=np.full(size, epoch))
        plan = choice.plan(**layout, drop_last=False, refresh=refresh).all_rows()
        assert sorted(plan.substituted_ids.tolist()) == list(range(size))
        assert (turns.index.units[plan.ids] == turns.index.units[plan.substituted_ids]).all()
        for id_, generation, fresh in zip(plan.ids, plan.generations, plan.fresh, strict=True):
            assert fresh == ((id_, generation) not in computed)
            computed.add((id_, generation))
        views = list(zip(plan.ids.tolist(), plan.turns.tolist(), strict=True))
        assert len(set(views)) == size


def served(loader, epochs):
    seen = []
    for _ in range(epochs):
        batches = []
        for batch in loader:
            assert torch.equal(loader.batch.ids, batch)
            batches.append((batch.tolist(), loader.batch.weights.tolist()))
            if loader.importance is not None:
                loader.feedback(losses=batch / SIZE)
        seen.append(batches)
    return seen


def make(mode="remove", **arguments):
    arguments = {"batch_size": 8, "shuffle": True, "seed": 3, **arguments}
    if mode == "replace":
        arguments |= {"reuse": rk.Refurbish(2), "final_transform": int}
    correct = arguments.pop("correct", False)
    return rk.DataLoader(Counted(), redundancy=Redundancy(GROUPS, mode, correct), **arguments)


@pytest.mark.parametrize("mode", ["remove", "replace"])
@pytest.mark.parametrize("importance", [None, rk.RandomSubset(keep=0.6)])
def test_a_resumed_run_continues_exactly(mode, importance):
    whole = make(mode, importance=importance)
    expected = served(whole, 4)
    assert served(make(mode, importance=importance, num_workers=2, executor="threads"), 4) == expected
    first = make(mode, importance=importance)
    served(first, 1)
    iterator = iter(first)
    next(iterator)
    second = make(mode, importance=importance)
    second.load_state_dict(first.state_dict())
    assert served(second, 1)[0] == expected[1][1:]


@pytest.mark.parametrize("mode", ["remove", "replace"])
@pytest.mark.parametrize("importance", [None, rk.RandomSubset(keep=0.6)])
def test_a_loader_without_a_seed_takes_over_the_saved_one(mode, importance):
    first = make(mode, importance=importance)
    served(first, 1)
    state = first.state_dict()
    expected = served(first, 2)
    resumed = make(mode, importance=importance, seed=None)
    resumed.load_state_dict(state)
    assert served(resumed, 2) == expected


@pytest.mark.parametrize("mode", ["remove", "replace"])
def test_a_copy_of_a_loader_continues_alike(mode):
    loader = make(mode, importance=rk.RandomSubset(keep=0.6))
    served(loader, 2)
    copy = pickle.loads(pickle.dumps(loader))
    assert served(copy, 2) == served(loader, 2)
    assert copy._parts.importance.duplicates is copy._parts.reuse.redundant


def test_remove_has_one_of_each_group_and_the_length_follows():
    loader = make(correct=True)
    assert len(loader) == 5
    for epoch in served(loader, 3):
        ids = [id_ for batch, _ in epoch for id_ in batch]
        assert len(epoch) == 5
        assert len(ids) == SIZE - 6
        assert sum(sum(weights) for _, weights in epoch) == SIZE


def test_the_report_counts_how_often_members_were_included():
    loader = make()
    served(loader, 12)
    summary = loader.report().redundancy
    assert summary["inclusion"] == {"3": 4, "4": 3, "6": 2}  # Of a group of four, each came three times.
    assert "samples in groups 9, inclusion {'3': 4, '4': 3, '6': 2}" in str(loader.report())


# Reads.


READ: list[int] = []  # Not in the dataset: one that changes is not reused.


class Slow(Counted):
    """A source that counts how often it is read."""

    def __getitem__(self, index):
        READ.append(index)
        return index


class Twice:
    """Some samples, each twice in an epoch."""

    needs_feedback = False

    def plan(self, epoch, scores):
        return np.repeat(np.flatnonzero(scores.uniforms(epoch) < 0.5), 2), None


def reads(dataset, redundancy, epochs=7, **arguments):
    """How often the source was read in some epochs, and what the report says about near-duplicates."""
    READ.clear()
    arguments = {"batch_size": 8, "shuffle": True, "seed": 3, **arguments}
    loader = rk.DataLoader(dataset, redundancy=redundancy, **arguments)
    for _ in range(epochs):
        for _ in loader:
            pass
    return len(READ), loader.report().redundancy


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("factor", [1, 2, 2.5])
@pytest.mark.parametrize("importance", [None, rk.RandomSubset(keep=0.6), Twice()])
def test_reads_saved_are_those_that_the_source_has_not_seen(importance, factor, disk, tmp_path):
    def read(redundancy):
        reuse = rk.Refurbish(factor, disk=tmp_path / str(redundancy is None) if disk else None)
        return reads(Slow(), redundancy, importance=importance, reuse=reuse, final_transform=int)

    without, _ = read(None)
    with_substitutes, summary = read(Redundancy(GROUPS, "replace"))
    assert summary["reads saved"] == without - with_substitutes > 0
    assert summary["substituted"] > 0
    assert summary["inclusion"].get("0", 0) < 9, "members take turns"


def test_replace_reads_each_group_once():
    loader = make("replace")
    served(loader, 1)
    summary = loader.report().redundancy
    assert summary["substituted"] == summary["reads saved"] == 6
    assert loader.report().reuse.store.misses == SIZE - 6


@pytest.mark.parametrize("where", ["folder", "remote"])
def test_images_are_read_less_often_from_any_source(where, tmp_path, monkeypatch):
    root = folder(tmp_path / "train")
    if where == "remote":
        fsspec.filesystem("memory").put(str(root), "redundant", recursive=True)
        root, remote = "memory://redundant", rk.RemoteOptions(cache_directory=tmp_path / "cache")
    data = rk.open(
        root,
        [rk.transforms.RandomCrop(40), rk.transforms.ToTensor()],
        remote=remote if where == "remote" else None,
    )
    groups = rk.find_redundancy(data)
    source = type(data.source)
    read = source.read
    monkeypatch.setattr(source, "read", lambda self, index: [READ.append(index), read(self, index)][1])
    arguments = {"batch_size": 4, "epochs": 5, "reuse": rk.Refurbish(2, split=1)}
    without, _ = reads(data, None, **arguments)
    with_substitutes, summary = reads(data, Redundancy(groups, "replace"), **arguments)
    assert summary["reads saved"] == without - with_substitutes > 0


# Weights, ranks, and methods.


@pytest.mark.parametrize("keep", [1.0, 0.6])
@pytest.mark.parametrize("epoch", [0, 5])
def test_corrected_weights_have_the_expectation_that_samples_had(keep, epoch):
    totals, runs = np.zeros(SIZE), 800
    for seed in range(runs):
        policy = DuplicatePolicy(Redundancy(GROUPS, correct=True), SIZE, seed)
        chosen = np.flatnonzero(np.random.default_rng(seed).random(SIZE) < keep)
        ids, weights = policy.epochs.reduce(chosen, np.ones(len(chosen), np.float32), epoch)
        np.add.at(totals, ids, weights)
    # A member of the largest group has 4 or 0: a standard error of √(3.4 / 800).
    assert np.abs(totals / runs - keep).max() < 4.5 * np.sqrt(3.4 / runs)


@settings(max_examples=30, deadline=None)
@given(grouped(), st.integers(0, 99), st.sampled_from(["remove", "replace"]), st.integers(1, 4))
def test_ranks_share_what_one_would_have(data, seed, mode, world):
    size, groups = data

    def plan(rank, world, epoch):
        policy = DuplicatePolicy(Redundancy(groups, mode, correct=True), size, seed)
        layout = {"size": size, "epoch": epoch, "seed": seed, "shuffle": True, "batch_size": 4}
        choice = policy.epochs.choice(epoch, Shard(rank, world))
        assert policy.epochs.steps(4, False, world) == choice.steps(4, False)
        refresh = None if mode == "remove" else SubstitutingRefresh.over(policy.epochs.turns, 2, seed)
        return choice.plan(**layout, drop_last=False, refresh=refresh).all_rows()

    for epoch in range(3):
        alone, parts = plan(0, 1, epoch), [plan(rank, world, epoch) for rank in range(world)]
        assert len({len(part.ids) for part in parts}) == 1
        together = np.bincount(np.concatenate([part.ids for part in parts]), minlength=size)
        weights = np.concatenate([part.weights for part in parts])
        assert ((together > 0) == (np.bincount(alone.ids, minlength=size) > 0)).all()
        assert weights.sum() == pytest.approx(size)


@pytest.mark.parametrize("name", ["BS-random-RRemove", "BS-random-RRepeat"])
def test_the_presets_take_groups_as_they_were_found(name):
    groups = RedundantGroups.of(GROUPS, SIZE)
    loaders = [
        rk.DataLoader(
            Counted(), 8, shuffle=True, seed=3, importance=rk.Buckets.preset(name, warmup=1, groups=given)
        )
        for given in (groups, groups.numbers())
    ]
    ours, plain = (served(loader, 3) for loader in loaders)
    assert ours == plain
    distinct = {id_ for batch, _ in ours[1] for id_ in batch}
    assert all(len(distinct & set(group)) == 1 for group in GROUPS)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def test_arguments_that_cannot_work_are_refused():
    redundancy = Redundancy([[0, 1]])
    with pytest.raises(rk.ArgumentError, match="IterableDataset"):
        rk.DataLoader(Stream(), redundancy=redundancy)
    with pytest.raises(rk.ArgumentError, match="sampler="):
        rk.DataLoader(Counted(), sampler=[0, 1], redundancy=redundancy)
    with pytest.raises(rk.ArgumentError, match="Refurbish"):
        rk.DataLoader(Counted(), redundancy=Redundancy([[0, 1]], "replace"))
    with pytest.raises(rk.ArgumentError, match="3 samples"):
        rk.DataLoader(Counted(), redundancy=Redundancy(RedundantGroups.of([[0, 1]], 3)))
    with pytest.raises(rk.ArgumentError, match="more than once"):
        Redundancy([[0, 1], [1, 2]])


def test_a_state_of_other_groups_is_refused():
    other = rk.DataLoader(Counted(), 8, shuffle=True, seed=3, redundancy=Redundancy([[0, 1]]))
    with pytest.raises(rk.StateError, match="redundancy"):
        make().load_state_dict(other.state_dict())


def test_groups_are_the_same_after_a_file(tmp_path):
    groups = RedundantGroups.of(GROUPS, SIZE)
    groups.save(tmp_path / "groups.json")
    assert RedundantGroups.load(tmp_path / "groups.json") == groups
    (tmp_path / "cut.json").write_bytes((tmp_path / "groups.json").read_bytes()[:90])
    with pytest.raises(rk.DataError, match=r"cut\.json"):
        Redundancy(tmp_path / "cut.json")
