"""What the pool of actors does with what Ray does to it: any order of answers, losses and deaths."""

import importlib.util
import itertools
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

import rekindle as rk
from ray_in_process import FATES, RayInProcess
from rekindle.run.ray import actor, cluster
from rekindle.run.ray.lent_memory import Loan
from rekindle.run.ray.pace import Pace
from rekindle.run.ray.schedule import home_of
from same import same


class Mixed(Dataset):
    """Random numbers, text and, where asked for, samples that fail or differ from the others."""

    def __init__(self, size, failing=(), odd=()):
        self.size, self.failing, self.odd = size, failing, odd

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.failing:
            raise KeyError(index)
        drawn = torch.rand(3) + random.random() + np.random.random_sample()
        return {"x": drawn, "i": float(index) if index in self.odd else index, "name": f"sample {index}"}


class WhichWorker(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        info = get_worker_info()
        return index, info.id, info.num_workers


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


def with_noise(sample):
    return {**sample, "x": sample["x"] + torch.rand(3)}


def named_collate(samples):
    return [sample["name"] for sample in samples], default_collate([sample["x"] for sample in samples])


def load(dataset, epochs=2, **options):
    with rk.DataLoader(dataset, seed=3, **options) as loader:
        return [list(loader) for _ in range(epochs)], loader.report()


@pytest.fixture
def in_process(monkeypatch):
    """Have loaders use a cluster that is in this process."""
    numbers = itertools.count()
    monkeypatch.setattr(actor, "this_node", lambda: f"node {next(numbers) % 2}")
    monkeypatch.setattr(actor, "stack_without_shared_memory", lambda: None)

    def use(fate=lambda: "answer"):
        ray = RayInProcess(fate)
        monkeypatch.setattr(cluster, "connect", lambda _: ray)
        return ray

    return use


sets_of_samples = st.frozensets(st.integers(0, 23), max_size=4)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 5),
    st.integers(1, 17),
    sets_of_samples,
    sets_of_samples,
    st.sampled_from([None, named_collate]),
    st.randoms(use_true_random=False),
)
def test_whatever_ray_does_batches_are_those_of_a_local_loader(
    in_process, workers, batch_size, failing, odd, collate_fn, chance
):
    deaths = itertools.count(1)

    def fate():
        found = chance.choice(FATES)
        # Three of its own deaths in a row are an error, and meant to be.
        return found if found not in ("dies", "lost") or next(deaths) < 3 else "answer"

    in_process(fate)
    dataset = Mixed(24, failing, odd)
    options = {"batch_size": batch_size, "shuffle": True, "collate_fn": collate_fn}
    options |= {"on_error": "skip", "error_budget": 1.0}
    expected, plain = load(dataset, **options)
    found, report = load(dataset, executor=rk.Ray(workers=workers), **options)
    assert same(found, expected)
    assert report.bad_samples == plain.bad_samples


def test_substitutes_are_those_of_a_local_loader(in_process):
    in_process()
    options = {"batch_size": 8, "shuffle": True, "on_error": "substitute", "error_budget": 1.0}
    dataset = Mixed(40, failing={3, 4, 20})
    assert same(load(dataset, executor=rk.Ray(workers=3), **options)[0], load(dataset, **options)[0])


def test_an_exception_keeps_its_type_and_names_the_sample(in_process):
    in_process()
    with pytest.raises(KeyError, match=r"Ray actor \d, at sample 13"):
        load(Mixed(40, failing={13}), batch_size=8, executor=rk.Ray(workers=2))


def test_code_that_asks_which_worker_it_is_gets_torchs_answers(in_process):
    in_process()
    found, _ = load(WhichWorker(), epochs=1, batch_size=8, executor=rk.Ray(workers=2))
    steps = [(batch[1].unique().tolist(), batch[2].unique().tolist()) for batch in found[0]]
    assert steps == [([step % 2], [2]) for step in range(5)]


def test_a_sample_that_kills_three_actors_is_named(in_process):
    ray = in_process()

    def fate():
        at_work = [one.queue[0].arguments[1] for one in ray.actors if one.queue and one.end is None]
        deadly = any(unit.indices and 13 in unit.indices for unit in at_work if hasattr(unit, "indices"))
        return "dies" if deadly else "answer"

    ray.fate = fate
    with pytest.raises(rk.WorkerError, match=r"13.* has killed 3 workers"):
        load(Mixed(40), batch_size=8, executor=rk.Ray(workers=1))


def test_results_that_are_lost_again_and_again_are_an_error(in_process):
    in_process(lambda: "lost")
    with pytest.raises(rk.WorkerError, match="Ray has lost the result"):
        load(Mixed(8), batch_size=8, executor=rk.Ray(workers=1))


def test_what_a_sample_was_cached_for_is_found_where_it_was_computed(in_process):
    in_process()
    dataset = Mixed(40)
    options = {"batch_size": 8, "shuffle": True, "final_transform": with_noise}
    options["reuse"] = rk.Refurbish(factor=4, memory="8MB")
    expected, _ = load(dataset, epochs=5, **options)
    found, report = load(dataset, epochs=5, executor=rk.Ray(workers=3), **options)
    assert same(found, expected)
    assert report.reuse is not None
    assert report.reuse.store is not None
    assert report.reuse.fresh_share == report.reuse.planned_share
    assert report.reuse.store.hits > report.reuse.store.misses


def test_actors_of_a_node_share_a_cache_which_outlives_each_of_them(in_process, monkeypatch):
    killed = []

    def fate():
        killed.append(len(killed) in (30, 50))
        return "killed" if killed[-1] else "answer"

    in_process(fate)
    monkeypatch.setattr(actor, "this_node", lambda: "the only node")
    options = {"batch_size": 8, "shuffle": True, "final_transform": with_noise}
    options["reuse"] = rk.Refurbish(factor=4, memory="8MB")
    expected, _ = load(Mixed(40), epochs=5, **options)
    found, report = load(Mixed(40), epochs=5, executor=rk.Ray(workers=3), **options)
    assert same(found, expected)
    assert sum(killed) == 2
    assert report.replaced_workers == 2
    assert report.reuse.fresh_share == report.reuse.planned_share  # Nothing was computed again.
    store = report.reuse.store
    assert (store.entries, store.capacity) == (40, pytest.approx(8e6, rel=0.01))
    assert store.from_others > 0


def test_what_is_late_is_loaded_by_another_actor(in_process):
    stuck = []

    def fate():
        return "answer"

    ray = in_process(fate)
    advance = ray._advance

    def only_others(actor):
        if len(stuck) == 0 and len(loaded) > 20:
            stuck.append(actor)
        if actor not in stuck:
            loaded.append(actor)
            advance(actor)

    loaded = []
    ray._advance = only_others
    expected, _ = load(Mixed(400), batch_size=8)
    found, _ = load(Mixed(400), batch_size=8, executor=rk.Ray(workers=3))
    assert stuck
    assert same(found, expected)


def test_native_images_are_those_of_a_local_loader(in_process):
    in_process()
    images = np.random.default_rng(0).integers(0, 256, (40, 128, 128, 3), dtype=np.uint8)  # more than a MB
    steps = [rk.transforms.RandomCrop(32), rk.transforms.ToTensor(), rk.transforms.Normalize([0.5], [0.2])]
    dataset = rk.ArrayImages(images, list(range(40)), transform=steps)
    options = {"batch_size": 16, "shuffle": True}
    assert same(load(dataset, executor=rk.Ray(workers=2), **options)[0], load(dataset, **options)[0])


@pytest.mark.parametrize("here", [True, False])
def test_results_go_through_the_object_store_only_from_other_machines(in_process, monkeypatch, here):
    if not here:
        monkeypatch.setattr(Loan, "mapped", lambda _: None)
    through_store, load_there = [], actor.LoadingActor.load

    def noted(self, loader, unit, loan):
        loaded = load_there(self, loader, unit, loan)
        through_store.append(loaded.memory is not None)
        return loaded

    monkeypatch.setattr(actor.LoadingActor, "load", noted)
    in_process()
    options = {"batch_size": 8, "shuffle": True}
    expected, _ = load(Mixed(80), **options)
    found, _ = load(Mixed(80), executor=rk.Ray(workers=2), **options)
    assert same(found, expected)
    assert all(through_store) != here  # The first ones do, before it is known how large results are.
    assert through_store[-8:] == [not here] * 8


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50), st.integers(1, 64))
def test_a_sample_has_one_home(ids, size):
    homes = home_of(ids, size)
    assert homes == [home_of([one], size)[0] for one in ids]
    assert all(0 <= home < size for home in homes)


@given(st.lists(st.floats(0, 10), max_size=40), st.integers(1, 100))
def test_late_is_later_than_nearly_all(seconds, rows):
    pace = Pace()
    for one in seconds:
        pace.note(one * rows, rows, one * rows, rows)
    late = pace.late_after(rows)
    assert sum(one * rows > late for one in seconds) <= max(1, len(seconds) // 20 + 1)
    assert late == float("inf") or len(seconds) >= 8


@pytest.mark.parametrize(
    "arguments",
    [
        {"workers": 0},
        {"workers": 2.0},
        {"cpus": -1},
        {"cpus": "1"},
        {"resources": {"disk": -1}},
        {"name": ""},
        {"address": 6379},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(arguments):
    with pytest.raises(rk.ArgumentError, match=next(iter(arguments))):
        rk.Ray(**arguments)


def test_what_does_not_go_with_ray_is_refused_when_the_loader_is_made():
    ray = rk.Ray(workers=2)
    with pytest.raises(rk.ArgumentError, match=r"num_workers=3 and executor=Ray\(workers=2\) differ"):
        rk.DataLoader(range(4), num_workers=3, executor=ray)
    with pytest.raises(rk.ArgumentError, match="multiprocessing_context"):
        rk.DataLoader(range(4), multiprocessing_context="fork", executor=ray)
    with pytest.raises(rk.ArgumentError, match="IterableDataset"):
        rk.DataLoader(Endless(), executor=ray)
    with pytest.raises(rk.ArgumentError, match=r"rekindle\.Ray"):
        rk.DataLoader(range(4), executor="ray")


def test_the_number_of_workers_is_that_of_ray():
    assert rk.DataLoader(range(4), executor=rk.Ray(workers=2)).num_workers == 2
    assert rk.DataLoader(range(4), num_workers=2, executor=rk.Ray(workers=2)).num_workers == 2


def test_cores_of_this_machine_do_not_limit_the_number_of_actors(recwarn):
    warnings.simplefilter("always")
    rk.DataLoader(range(4), executor=rk.Ray(workers=10_000))
    assert not recwarn.list


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(rk.ArgumentError, match=r"pip install 'rekindle\[ray\]'"):
        rk.DataLoader(range(4), executor=rk.Ray(workers=2))
