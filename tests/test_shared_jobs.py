"""Ranks of a host, and jobs that share a name, compute each part once, and get the bytes they get alone."""

import hashlib
import multiprocessing
import os
import random
import signal
import uuid

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.core.memfd import find_memory_files
from rekindle.reuse.host_cache import host_name, job_of_ranks
from waiting import eventually

T = rk.transforms
FORK = multiprocessing.get_context("fork")
SAMPLES = 24
PIXELS = np.random.default_rng(0).integers(0, 256, (SAMPLES, 20, 20, 3), dtype=np.uint8)
STEPS = [T.RandomCrop(16), T.RandAugment(2, 9), T.RandomHorizontalFlip(), T.ToTensor()]


class Noisy(Dataset):
    """Samples of a class of one's own, with random numbers in both parts."""

    def __init__(self, scale=1.0, size=SAMPLES):
        self.scale, self.size = scale, size
        self.rng = random.Random()  # seeded for each sample

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.scale * torch.rand(8) + index


def add_noise(sample):
    return sample + torch.rand(8)


def images(steps=STEPS, pixels=PIXELS):
    return {"dataset": rk.ArrayImages(pixels, range(len(pixels)), steps)}


def noisy(**settings):
    return {"dataset": Noisy(**settings), "final_transform": add_noise}


def train(pipe, given, seed=0, epochs=3, refurbish=None, workers=0, stepwise=False):
    """Some epochs: sends a hash of all batches, how many samples were fresh, and what the report says."""
    refurbish = {"factor": 3, "memory": "8MB", **(refurbish or {})}
    try:
        loader = rk.DataLoader(
            **given,
            batch_size=6,
            shuffle=True,
            num_workers=workers,
            seed=seed,
            reuse=rk.Refurbish(**refurbish),
        )
        digest, fresh = hashlib.sha256(), 0
        for _ in range(epochs):
            if stepwise:
                pipe.recv()
            for batch in loader:
                for part in batch if isinstance(batch, list | tuple) else [batch]:
                    digest.update(part.numpy().tobytes())
                fresh += int(loader.batch.fresh.sum())
            if stepwise:
                pipe.send(fresh)
        pipe.send((digest.hexdigest(), fresh, loader.report().to_dict()["reuse"], str(loader.report())))
        pipe.recv()  # Live on until told to go.
    except rk.ArgumentError as error:
        pipe.send(error)


class Job:
    """A training run in a process of its own."""

    def __init__(self, given, env=None, **settings):
        self._pipe, pipe = FORK.Pipe()
        self.process = FORK.Process(
            target=self._run, args=(pipe, given, env, settings), daemon=not settings.get("workers")
        )
        self.process.start()
        pipe.close()

    @staticmethod
    def _run(pipe, given, env, settings):
        os.environ.update(env or {})
        train(pipe, given, **settings)

    def epoch(self):
        """Do one more epoch: how many samples were fresh up to then."""
        self._pipe.send("go")
        return self.result()

    def result(self):
        assert self._pipe.poll(100), "a job hangs"
        return self._pipe.recv()

    def end(self):
        self._pipe.send(None)
        self.process.join()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def alone(given, **settings):
    job = Job(given, **settings)
    result = job.result()
    job.end()
    return result


@pytest.fixture
def shared():
    return f"sweep {uuid.uuid4().hex}"


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Compiled code is loaded once, for all processes that are forked from this one."""
    for _ in rk.DataLoader(**images(), batch_size=6, shuffle=True, reuse=rk.Refurbish(3, memory="8MB")):
        pass


@pytest.mark.parametrize("make", [images, noisy])
def test_jobs_prepare_each_part_once_and_get_the_bytes_they_get_alone(shared, make):
    refurbish, seeds = {"shared": shared}, (0, 1, 0)
    expected = [alone(make(), seed=seed, epochs=7, refurbish=refurbish)[:2] for seed in seeds]
    assert expected[0][0] != expected[1][0]  # The seed decides the order and the rest of each sample.
    jobs = [Job(make(), seed=seed, epochs=7, refurbish=refurbish, stepwise=True) for seed in seeds]
    for job in (*jobs, jobs[0], jobs[0], *jobs[1:], *jobs[1:], *jobs, *jobs, *jobs, *jobs):  # One runs ahead.
        job.epoch()
    results = [job.result() for job in jobs]
    assert [digest for digest, *_ in results] == [digest for digest, _ in expected]
    assert sum(fresh for _, fresh, *_ in results) == expected[0][1]  # as many as one job
    assert results[2][2]["cache_hits_from_others"] >= 7 * SAMPLES
    assert "were computed by other ranks or jobs" in results[2][3]
    for job in jobs:
        job.end()
    assert not [*find_memory_files(host_name("jobs", shared))]


def test_jobs_at_the_same_samples_at_the_same_time_wait_for_each_other(shared):
    refurbish = {"shared": shared}
    expected = alone(images(), refurbish=refurbish)
    jobs = [Job(images(), refurbish=refurbish, workers=1) for _ in range(3)]
    assert [job.result()[0] for job in jobs] == [expected[0]] * 3
    for job in jobs:
        job.end()


def test_jobs_that_come_late_or_are_killed_cost_the_others_nothing(shared):
    refurbish = {"shared": shared}
    expected = alone(images(), refurbish=refurbish)
    first = Job(images(), refurbish=refurbish)
    assert first.result()[:2] == expected[:2]
    second = Job(images(), refurbish=refurbish, workers=1)
    assert second.result()[:2] == (expected[0], 0)
    first.kill()
    third = Job(images(), refurbish=refurbish)
    assert third.result()[:2] == (expected[0], 0)
    second.kill()
    third.kill()
    eventually(lambda: not [*find_memory_files(host_name("jobs", shared))])  # The worker of `second` is gone.
    assert alone(images(), refurbish=refurbish)[:2] == expected[:2]


@pytest.mark.parametrize(
    ("given", "refurbish", "differs"),
    [
        (images(), {"factor": 2}, "factor: 3.0 there, 2.0 here"),
        (images(), {"split": 3}, "split: 1 there, 3 here"),
        (images(pixels=PIXELS[:12]), {}, "samples: 24 there, 12 here"),
        (images(pixels=255 - PIXELS), {}, "its code or what that reads (a checksum): "),
        (images(steps=[T.RandomCrop(12), *STEPS[1:]]), {}, "steps: RandomCrop"),
        (noisy(), {"split": "auto"}, "its code or what that reads (a checksum): "),
    ],
)
def test_another_pipeline_under_the_name_is_refused_with_what_differs(shared, given, refurbish, differs):
    first = Job(images(), epochs=1, refurbish={"shared": shared, "split": 1})
    first.result()
    other = Job(given, epochs=1, refurbish={"shared": shared, "split": 1, **refurbish})
    error = other.result()
    assert isinstance(error, rk.ArgumentError)
    assert differs in str(error)
    assert repr(shared) in str(error)
    first.end()
    other.process.join()


def test_steps_after_the_split_may_differ(shared):
    refurbish = {"shared": shared, "split": 1}
    first = Job(images(), epochs=2, refurbish=refurbish)
    first.result()
    other = Job(images([STEPS[0], T.ToTensor()]), epochs=2, refurbish=refurbish)
    assert other.result()[1] == 0
    first.end()
    other.end()


def test_an_automatic_split_follows_the_first_job(shared):
    first = Job(images(), epochs=1, refurbish={"shared": shared, "split": 1})
    first.result()
    other = Job(images(), epochs=1, refurbish={"shared": shared})
    assert "split=1" in other.result()[2]["split"]
    first.end()
    other.end()


def test_the_name_decides_the_parts_and_a_checkpoint_tells_it(shared):
    one = alone(images(), refurbish={"shared": shared})
    another = alone(images(), refurbish={"shared": shared + "x"})
    none = alone(images())
    assert len({one[0], another[0], none[0]}) == 3
    make = lambda **settings: rk.DataLoader(  # noqa: E731
        **images(), batch_size=6, shuffle=True, seed=1, reuse=rk.Refurbish(3, memory="8MB", **settings)
    )
    state = make(shared=shared).state_dict()
    make(shared=shared).load_state_dict(state)
    with pytest.raises(rk.StateError, match="shar"):
        make().load_state_dict(state)


@pytest.mark.parametrize("name", ["", 3])
def test_a_name_is_a_text(name):
    with pytest.raises(rk.ArgumentError, match="shared is"):
        rk.Refurbish(shared=name)


def _ranks(port=29500):
    port = port + os.getpid() % 10_000  # Not that of another test that runs now.
    return {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.parametrize("make", [images, noisy])
def test_ranks_of_one_job_share_one_cache_and_those_of_another_do_not(make):
    expected = alone(make())
    first = Job(make(), env=_ranks())
    assert first.result()[:2] == expected[:2]
    second = Job(make(), env=_ranks())
    assert second.result()[:2] == (expected[0], 0)
    others = [Job(make(), env=_ranks(39500)), Job(make())]
    assert [other.result()[:2] for other in others] == [expected[:2]] * 2
    first.kill()
    third = Job(make(), env=_ranks())
    assert third.result()[0] == expected[0]
    for job in (second, third, *others):
        job.end()


def test_ranks_whose_data_seed_or_steps_differ_share_nothing():
    given = [
        noisy(),
        noisy(scale=2.0),
        images(),
        images(pixels=255 - PIXELS),
        images([T.RandomCrop(12), *STEPS[1:]]),
    ]
    expected = [alone(one)[:2] for one in given] + [alone(given[0], seed=1)[:2]]
    jobs = [Job(one, env=_ranks()) for one in given] + [Job(given[0], env=_ranks(), seed=1)]
    assert [job.result()[:2] for job in jobs] == expected
    for job in jobs:
        job.end()


def test_a_job_of_ranks_is_known_by_its_address(monkeypatch):
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert job_of_ranks(1) == ""
    monkeypatch.setenv("MASTER_ADDR", "host")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert job_of_ranks(1) == ""
    monkeypatch.setenv("WORLD_SIZE", "8")
    one = job_of_ranks(1)
    monkeypatch.setenv("MASTER_PORT", "2")
    assert "" != one != job_of_ranks(1)


def test_a_dataset_without_a_fingerprint_is_refused_with_how_to_declare_one(shared):
    given = noisy()
    given["dataset"].file = open(os.devnull)  # noqa: SIM115 - which cannot be pickled
    job = Job(given, epochs=1, refurbish={"shared": shared})
    error = job.result()
    job.process.join()
    assert "attribute `fingerprint`" in str(error)
    given["dataset"].file.close()
