"""The same seed gives the same bytes: for any number of workers, start method and executor."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import rekindle as rk
from same import digest


def draw():
    """One number of each of the three global generators."""
    return [random.random(), float(np.random.random_sample()), float(torch.rand(()))]


class AlwaysDraws(Dataset):
    """Tuples; every sample draws from all three generators."""

    def __len__(self):
        return 41

    def __getitem__(self, index):
        noise = np.random.standard_normal(3).astype(np.float32)
        return torch.randn(4), noise, random.gauss(0, 1), index


class SometimesDraws(Dataset):
    """Nested dicts with strings; most samples draw nothing, and each kind of the others differently."""

    def __len__(self):
        return 53

    def __getitem__(self, index):
        x = np.full(3, index, dtype=np.float64)
        if index % 11 == 3:
            x[0] += random.random()
        if index % 13 == 4:
            x[1] += np.random.standard_normal()
        if index % 17 == 5:
            x[2] += float(torch.randn(()))
        return {"x": x, "pair": (torch.tensor(index), f"sample {index}")}


class DrawsNothing(Dataset):
    def __len__(self):
        return 41

    def __getitem__(self, index):
        return torch.arange(3) + index


class Together(DrawsNothing):
    """Makes a batch at once, and draws for it."""

    def __getitems__(self, indices):
        shift = torch.rand(())
        return [torch.arange(3) + index + shift for index in indices]


def noisy_collate(samples):
    batch = default_collate(samples)
    return batch, torch.tensor(draw(), dtype=torch.float64)


SCENES = {
    "always": {"dataset": AlwaysDraws()},
    "sometimes": {"dataset": SometimesDraws()},
    "collate": {"dataset": AlwaysDraws(), "collate_fn": noisy_collate},
    "collate only": {"dataset": DrawsNothing(), "collate_fn": noisy_collate},
    "together": {"dataset": Together()},
}


def two_epochs(seed=7, batch_size=6, **options):
    loader = rk.DataLoader(batch_size=batch_size, shuffle=True, seed=seed, **options)
    return digest([list(loader), list(loader)])


@pytest.fixture(scope="module")
def expected():
    return {name: two_epochs(**scene) for name, scene in SCENES.items()}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("executor", ["processes", "threads"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_do_not_depend_on_workers_or_executor(scene, executor, workers, expected):
    made = two_epochs(num_workers=workers, executor=executor, multiprocessing_context="fork", **SCENES[scene])
    assert made == expected[scene]


@pytest.mark.parametrize(
    ("scene", "method"),
    [("collate", "spawn"), ("sometimes", "forkserver")],
)
def test_batches_do_not_depend_on_the_start_method(scene, method, expected):
    """With one worker, as each takes long to start; the slow test below has more."""
    made = two_epochs(num_workers=1, executor="processes", multiprocessing_context=method, **SCENES[scene])
    assert made == expected[scene]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("scene", SCENES)
def test_batches_do_not_depend_on_the_start_method_for_any_workers(scene, workers, method, expected):
    made = two_epochs(
        num_workers=workers, executor="processes", multiprocessing_context=method, **SCENES[scene]
    )
    assert made == expected[scene]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_threads_go_with_any_start_method(workers, method, expected):
    made = two_epochs(
        dataset=SometimesDraws(),
        num_workers=workers,
        executor="threads",
        multiprocessing_context=method,
    )
    assert made == expected["sometimes"]


@pytest.mark.parametrize("prefetch_factor", [1, 7])
def test_batches_do_not_depend_on_prefetching_or_persistence(prefetch_factor, expected):
    made = two_epochs(
        dataset=SometimesDraws(),
        num_workers=2,
        prefetch_factor=prefetch_factor,
        persistent_workers=True,
    )
    assert made == expected["sometimes"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_drawn_is_a_function_of_seed_epoch_and_index(workers):
    """Each sample's numbers are the same whether the epoch is shuffled or not, in whatever batches."""

    def by_index(**options):
        loader = rk.DataLoader(AlwaysDraws(), seed=3, num_workers=workers, **options)
        return {int(i): x for xs, _, _, ids in loader for x, i in zip(xs, ids, strict=True)}

    shuffled, in_order = by_index(batch_size=7, shuffle=True), by_index(batch_size=3)
    assert sorted(shuffled) == sorted(in_order)
    assert all(torch.equal(shuffled[i], in_order[i]) for i in shuffled)


def test_epochs_differ():
    loader = rk.DataLoader(AlwaysDraws(), batch_size=41, seed=1, num_workers=2)
    (first,), (second,) = list(loader), list(loader)
    assert torch.equal(first[3], second[3])
    for a, b in zip(first[:3], second[:3], strict=True):
        assert not torch.equal(a, b)


def test_samples_of_one_epoch_differ():
    (x, noise, _, _) = next(iter(rk.DataLoader(AlwaysDraws(), batch_size=41, seed=1)))
    assert len(x.unique(dim=0)) == len(noise.unique(dim=0)) == 41


@pytest.mark.parametrize("workers", [0, 2])
def test_different_seeds_differ_in_order_and_in_draws(workers):
    def epoch(seed):
        loader = rk.DataLoader(AlwaysDraws(), batch_size=41, shuffle=True, seed=seed, num_workers=workers)
        return next(iter(loader))

    one, other = epoch(1), epoch(2)
    assert not torch.equal(one[3], other[3])
    assert not torch.equal(one[0][one[3].argsort()], other[0][other[3].argsort()])


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_seed_torchs_seed_makes_a_run_repeatable(workers):
    def run(torch_seed):
        torch.manual_seed(torch_seed)
        return two_epochs(seed=None, dataset=AlwaysDraws(), num_workers=workers)

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_without_a_seed_two_loaders_differ():
    torch.manual_seed(5)
    options = {"seed": None, "dataset": AlwaysDraws()}
    assert two_epochs(**options) != two_epochs(**options)


# The training loop's own draws.


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class DrawsLate(Dataset):
    """Draws for the first time in the fourth batch of four."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor(draw() if index >= 13 else [0.0, 0.0, float(index)])


LOOPS = {
    "always": AlwaysDraws(),
    "sometimes": SometimesDraws(),
    "late": DrawsLate(),
    "nothing": DrawsNothing(),
}
RUNNERS = {
    "inline": {},
    "processes": {"num_workers": 2, "executor": "processes"},
    "threads": {"num_workers": 2, "executor": "threads"},
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", LOOPS)
def test_the_training_loops_draws_are_not_changed_by_loading(name, runner):
    options = {"batch_size": 4, "seed": 1, **RUNNERS[runner]}
    steps = 2 * len(rk.DataLoader(LOOPS[name], **options))
    seed_all(11)
    alone = [draw() for _ in range(steps)]
    loader = rk.DataLoader(LOOPS[name], **options)
    seed_all(11)
    beside = [draw() for _ in range(2) for _ in loader]
    assert beside == alone


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", LOOPS)
def test_batches_are_not_changed_by_the_training_loops_draws(name, runner):
    def epoch(draws):
        loader = rk.DataLoader(LOOPS[name], batch_size=4, seed=1, **RUNNERS[runner])
        batches = []
        for batch in loader:
            batches.append(batch)
            for _ in range(draws):
                draw()
                np.random.standard_normal()
                random.gauss(0, 1)
                torch.randn(())
        return digest(batches)

    seed_all(1)
    quiet = epoch(0)
    seed_all(2)
    assert epoch(1) == quiet
    assert epoch(3) == quiet


@pytest.mark.parametrize("runner", RUNNERS)
def test_dropout_in_the_loop_neither_changes_batches_nor_is_changed(runner):
    dropout = torch.nn.Dropout(0.5)

    def train(make_batches):
        seed_all(3)
        loader = make_batches()
        torch.manual_seed(4)
        return [dropout(torch.ones(16)) for _ in loader]

    def ours():
        return rk.DataLoader(SometimesDraws(), batch_size=4, seed=1, **RUNNERS[runner])

    kept = list(ours())
    masks, bare = train(ours), train(lambda: range(len(kept)))
    assert all(torch.equal(a, b) for a, b in zip(masks, bare, strict=True))


class OneGauss(Dataset):
    """Draws a single normal number, of which these generators make two at a time and keep one."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.random.standard_normal() if self.kind == "numpy" else random.gauss(0, 1)


@pytest.mark.parametrize("kind", ["numpy", "python"])
@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_a_normal_number_left_over_by_the_training_loop_is_not_used(kind, runner):
    def epoch(left_over):
        seed_all(1)
        loader = rk.DataLoader(OneGauss(kind), batch_size=1, seed=1, **RUNNERS[runner])
        if left_over:  # One of a pair is drawn, the other stays.
            np.random.standard_normal()
            random.gauss(0, 1)
        return torch.cat(list(loader)).tolist()

    assert epoch(left_over=True) == epoch(left_over=False)


@pytest.mark.parametrize("runner", RUNNERS)
def test_two_passes_at_once_give_what_each_gives_alone(runner):
    def loader(seed):
        return rk.DataLoader(AlwaysDraws(), batch_size=6, seed=seed, **RUNNERS[runner])

    alone = [digest(list(loader(1))), digest(list(loader(2)))]
    both = list(zip(loader(1), loader(2), strict=True))
    assert [digest([a for a, _ in both]), digest([b for _, b in both])] == alone


def test_an_epoch_cut_short_does_not_change_the_next():
    """What was made ahead for the dropped rest of an epoch leaves no trace."""

    def second_epoch(workers, batches_of_first):
        loader = rk.DataLoader(AlwaysDraws(), batch_size=4, shuffle=True, seed=1, num_workers=workers)
        list(islice(loader, batches_of_first))
        return digest(list(loader))

    whole = second_epoch(0, 11)
    assert {second_epoch(workers, k) for workers in (0, 2) for k in (1, 5)} == {whole}
