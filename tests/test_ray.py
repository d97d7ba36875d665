"""Actors of a Ray cluster load byte for byte what local workers load, whatever becomes of them."""

import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.run.ray.lent_memory import Lender
from same import digest
from waiting import eventually

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(autouse=True, scope="module")
def _ray():
    """Import it for these tests only: a process with all that it imports takes longer to fork."""
    global Draws, ray, ray_cluster
    import ray_cluster
    from ray_cluster import Draws, ray


@pytest.fixture(scope="module")
def node():
    """A cluster of one node of two CPUs, beside the head."""
    found = ray_cluster.Nodes()
    yield found
    found.close()


@pytest.fixture(scope="module")
def nodes(node):
    """The same with a second node."""
    node.nodes.append(node.add())
    return node


def actors_of(loader):
    """The processes of a loader's actors that are up."""
    return loader._parts.actors.pids()


def lend(monkeypatch, chance):
    """Have results go through memory that is lent with this chance, else through the object store."""
    lent, draw = Lender.lend, random.Random(2)
    monkeypatch.setattr(Lender, "lend", lambda *request: lent(*request) if draw.random() < chance else None)


def epochs(loader):
    """The digests of a loader's epochs, one after the other."""
    return (digest(list(loader)) for _ in itertools.count())


def test_actors_load_what_local_workers_load_and_a_killed_one_costs_nothing(node):
    options = {"batch_size": 16, "shuffle": True, "seed": 5}
    wanted = epochs(rk.DataLoader(Draws(96), **options))
    with rk.DataLoader(Draws(96), executor=rk.Ray(workers=2), **options) as loader:
        assert next(epochs(loader)) == next(wanted)
        batches = iter(loader)
        found = [next(batches)]
        killed = actors_of(loader)[0]
        assert killed != os.getpid()
        ray_cluster.kill(killed)
        assert digest([*found, *batches]) == next(wanted)
        while not loader.report().replaced_workers:
            assert next(epochs(loader)) == next(wanted)
        assert killed not in actors_of(loader)


class Storm:
    """Kills actors and nodes at moments that only chance decides, after a batch now and then."""

    def __init__(self, cluster, actors, nodes):
        self._cluster, self._chance = cluster, random.Random(1)
        self._left = ["actor"] * actors + ["node"] * nodes
        self._chance.shuffle(self._left)
        self._killed = set()

    @property
    def is_over(self):
        return not self._left

    def blow(self, loader):
        if not self._left or self._chance.random() > 0.3:
            return
        pids = [pid for pid in actors_of(loader) if pid not in self._killed]
        if len(pids) < 2:  # Somebody has to go on.
            return
        if self._left.pop() == "node":
            self._cluster.remove(self._cluster.nodes.pop(0))
            self._cluster.nodes.append(self._cluster.add())
        else:
            self._killed.add(pids[0])
            ray_cluster.kill(pids[0])


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_storm_of_dead_actors_and_nodes_costs_no_sample(nodes, monkeypatch):
    """A hundred actors are killed, and ten nodes with all that runs on them."""
    lend(monkeypatch, chance=0.5)
    storm = Storm(nodes, actors=100, nodes=10)
    options = {"batch_size": 16, "shuffle": True, "seed": 5}
    wanted = rk.DataLoader(Draws(800, 0.005), **options)
    with rk.DataLoader(Draws(800, 0.005), executor=rk.Ray(workers=4), **options) as loader:
        for epoch in range(400):
            batches = []
            for batch in loader:
                batches.append(batch)
                storm.blow(loader)
            assert digest(batches) == digest(list(wanted)), f"epoch {epoch}"
            if storm.is_over:
                break
        assert storm.is_over
        print(f"replaced {loader.report().replaced_workers} actors in {epoch + 1} epochs")


@pytest.mark.slow
def test_a_run_goes_on_between_local_workers_and_ray(nodes):
    options = {"batch_size": 8, "shuffle": True, "seed": 5}
    wanted = [digest([batch]) for batch in rk.DataLoader(Draws(96), **options)]
    executors = itertools.cycle([{"num_workers": 2}, {"executor": rk.Ray(workers=2, name="resumed")}])
    found, state = [], None
    with rk.DataLoader(Draws(8), executor=rk.Ray(workers=2, name="resumed"), **options) as owner:
        list(owner)  # The actors are its own, and stay.
        while len(found) < len(wanted):
            with rk.DataLoader(Draws(96), **options, **next(executors)) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in itertools.islice(loader, 1 + len(found) % 2):
                    found.append(digest([batch]))
                    state = loader.state_dict()
    assert found == wanted


@pytest.mark.slow
def test_a_stopped_actor_holds_nothing_up_for_long(nodes):
    options = {"batch_size": 8, "seed": 5}
    wanted = rk.DataLoader(Draws(1200, 0.005), **options)
    with rk.DataLoader(Draws(1200, 0.005), executor=rk.Ray(workers=3), **options) as loader:
        batches = []
        for step, batch in enumerate(loader):
            if step == 60:
                stopped = actors_of(loader)[0]
                os.kill(stopped, signal.SIGSTOP)
            batches.append(batch)
        assert digest(batches) == digest(list(wanted))
        os.kill(stopped, signal.SIGCONT)


@pytest.mark.slow
def test_a_node_that_joins_is_used(nodes):
    """Actors that had no room start there, and load their share of the same batches."""
    options = {"batch_size": 16, "shuffle": True, "seed": 5}
    wanted = epochs(rk.DataLoader(Draws(96), **options))
    with rk.DataLoader(Draws(96), executor=rk.Ray(workers=5), **options) as loader:
        found = epochs(loader)
        assert next(found) == next(wanted)
        assert len(actors_of(loader)) < 5  # Two nodes of two CPUs.
        nodes.nodes.append(nodes.add())
        while len(actors_of(loader)) < 5:
            assert next(found) == next(wanted)
        assert next(found) == next(wanted)


class Large(Dataset):
    """Samples of a megabyte."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return np.full(1 << 20, index, dtype=np.uint8)


@pytest.mark.slow
def test_a_full_object_store_costs_time_and_no_sample(nodes, monkeypatch):
    """What others have put there fills it, and each batch is a sixth of it."""
    lend(monkeypatch, chance=0)
    options = {"batch_size": 16, "shuffle": True, "seed": 5}
    wanted = epochs(rk.DataLoader(Large(), **options))
    filling = [ray.put(np.full(20 << 20, number, dtype=np.uint8)) for number in range(5)]
    with rk.DataLoader(Large(), executor=rk.Ray(workers=2), **options) as loader:
        found = epochs(loader)
        for _ in range(3):
            assert next(found) == next(wanted)
    assert [int(ray.get(one)[0]) for one in filling] == list(range(5))


@pytest.mark.slow
def test_nothing_is_left_of_a_driver_that_was_killed():
    """Neither actors nor the cluster that was started for it."""
    script = Path(__file__).with_name("start") / "ray_driver.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path])}
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    )
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    driver.kill()
    driver.wait()
    driver.stdout.close()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
