"""The generators that third-party code draws from: seeded by key, checked for draws, restored."""

import os
import random
import tracemalloc

import numpy as np
import pytest
import torch

import warm_python
from rekindle.core import counter_rng, direct_rng, public_rng
from rekindle.core.global_rng import GENERATORS, generators, generators_kept
from rekindle.run.bad_samples import FailedSample
from rekindle.run.sample_loader import LoadRequest, SampleLoader

PYTHON, NUMPY, TORCH = GENERATORS
DRAWS = {
    "random.random": (PYTHON, random.random),
    "random.gauss": (PYTHON, lambda: random.gauss(0, 1)),
    "random.shuffle": (PYTHON, lambda: random.shuffle([1, 2, 3])),
    "a whole state of random": (PYTHON, lambda: [random.getrandbits(32) for _ in range(624)]),
    "np.random.rand": (NUMPY, np.random.rand),
    "np.random.randn": (NUMPY, np.random.randn),
    "a whole state of np.random": (NUMPY, lambda: np.random.rand(312)),
    "np.random.seed": (NUMPY, lambda: np.random.seed(random.Random(5).getrandbits(30))),
    "torch.rand": (TORCH, lambda: torch.rand(1)),
    "torch.randn": (TORCH, lambda: torch.randn(1)),
    "a whole state of torch": (TORCH, lambda: torch.rand(624)),
    "torch.randperm": (TORCH, lambda: torch.randperm(5)),
}
ONE_NUMBER = {
    PYTHON: random.random,
    NUMPY: lambda: float(np.random.random()),
    TORCH: lambda: float(torch.rand((), dtype=torch.float64)),
}


@pytest.fixture(autouse=True)
def _generators_stay_as_they_were():
    with generators_kept(GENERATORS):
        yield


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_moves_the_mark_of_its_generator_and_of_no_other(name):
    moved, draw = DRAWS[name]
    before = {generator: generator.mark() for generator in GENERATORS}
    assert before == {generator: generator.mark() for generator in GENERATORS}
    draw()
    assert [generator for generator in GENERATORS if generator.mark() != before[generator]] == [moved]


@pytest.mark.parametrize("direct", [True, False])
def test_rows_of_a_large_batch_are_seeded_in_any_order(direct):
    seeds, order = counter_rng.seeds(3, range(1000)), random.Random(5)
    mixed = order.sample(range(1000), 1000)
    for generator in generators(direct):
        draw = {one.name: draw for one, draw in ONE_NUMBER.items()}[generator.name]
        expected = []
        for row in range(1000):
            generator.seeder(seeds[row : row + 1])(0)
            expected.append(draw())
        assert len({*expected}) == 1000
        for rows in (range(1000), mixed, range(999, -1, -1), range(200, 1000, 3), [5, 999, 5, 998, 6]):
            seed = generator.seeder(seeds)
            for row in rows:
                seed(row)
                assert draw() == expected[row]


@pytest.mark.parametrize("generator", [PYTHON, NUMPY], ids=lambda generator: generator.name)
def test_to_seed_a_large_batch_takes_no_more_memory_than_a_small_one(generator):
    def most(rows):
        seeds = counter_rng.seeds(3, range(rows))
        tracemalloc.start()
        try:
            seed = generator.seeder(seeds)
            for row in range(rows):
                seed(row)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert most(4096) < 1.5 * most(128)


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.name)
def test_a_seed_decides_all_that_is_drawn_whatever_was_drawn_before(generator):
    seeder = generator.seeder(counter_rng.seeds(3, range(4)))
    drawn = []
    for row in (0, 1, 2, 3, 1, 3):
        seeder(row)
        drawn.append([ONE_NUMBER[generator]() for _ in range(1500)])
        random.gauss(0, 1), np.random.randn(), torch.randn(1)  # each keeps a second number for later
    assert drawn[1] == drawn[4]
    assert drawn[3] == drawn[5]
    assert len({tuple(numbers) for numbers in drawn}) == 4


@pytest.mark.parametrize("draw", [lambda: random.gauss(0, 1), np.random.randn, lambda: torch.randn(1).item()])
def test_a_normal_number_kept_for_later_does_not_cross_from_sample_to_sample(draw):
    seeders = [generator.seeder(counter_rng.seeds(9, range(2))) for generator in GENERATORS]

    def numbers(row: int, count: int) -> list[float]:
        for seeder in seeders:
            seeder(row)
        return [draw() for _ in range(count)]

    alone = numbers(1, 3)
    numbers(0, 1)  # an odd number of them
    assert numbers(1, 3) == alone


WAYS = list(zip(generators(direct=True), generators(direct=False), strict=True))


def test_the_self_tests_pass_here():
    assert type(WAYS[0][0]) is direct_rng.DirectPythonGenerator
    assert type(WAYS[1][0]) is direct_rng.DirectNumPyGenerator


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: ways[0].name)
@pytest.mark.parametrize("name", DRAWS)
def test_direct_and_public_access_draw_the_same_numbers(ways, name):
    draw = DRAWS[name][1]
    seeds = counter_rng.seeds(3, range(3))

    def drawn(way):
        numbers = []
        for row in (2, 0, 2):
            way.seeder(seeds)(row)
            random.gauss(0, 1), np.random.randn(), torch.randn(1)  # each keeps a second number for later
            numbers.append([str(draw()), str([random.random(), np.random.random(), torch.rand(1)])])
        return numbers

    with generators_kept(GENERATORS):
        direct = drawn(ways[0])
    assert drawn(ways[1]) == direct


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: ways[0].name)
def test_a_state_saved_one_way_is_the_state_saved_the_other_way(ways):
    direct, public = ways
    owner = next(one for one in GENERATORS if one.name == direct.name)
    seeds = counter_rng.seeds(3, range(1))
    for seeding, saving in ((direct, public), (public, direct), (direct, direct), (public, public)):
        seeding.seeder(seeds)(0)
        random.gauss(0, 1), np.random.randn(), torch.randn(1)
        restore, mark = saving.save(), saving.mark()
        draws = [draw for of, draw in DRAWS.values() if of is owner]
        first = [str(draw()) for draw in draws]
        assert saving.mark() != mark
        restore()
        assert saving.mark() == mark
        assert [str(draw()) for draw in draws] == first


@pytest.mark.parametrize("failing", ["direct_python", "direct_numpy"])
def test_where_a_self_test_fails_the_public_way_is_used(failing, monkeypatch):
    """As on another layout of the memory: here, the words are looked for four bytes beside their place."""
    memory = direct_rng._memory
    monkeypatch.setattr(direct_rng, "_memory", lambda address: memory(address - 4))
    found = generators(direct=True)
    number = ["direct_python", "direct_numpy"].index(failing)
    assert getattr(direct_rng, failing)() is None
    assert type(found[number]) in (public_rng.PythonGenerator, public_rng.NumPyGenerator)


def test_the_switch_is_an_environment_variable():
    code = "from rekindle.core.global_rng import GENERATORS; print(*(type(g).__name__ for g in GENERATORS))"
    environment = {**os.environ, "REKINDLE_DIRECT_RNG": "0"}
    printed = warm_python.run("-c", code, env=environment)
    assert printed.stdout.split() == ["PythonGenerator", "NumPyGenerator", "TorchGenerator"]


def test_a_bit_generator_put_in_by_the_user_is_seeded_and_watched():
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        seeder = NUMPY.seeder(counter_rng.seeds(3, range(2)))
        drawn = []
        for row in (0, 1, 0):
            seeder(row)
            mark, restore = NUMPY.mark(), NUMPY.save()
            drawn.append([np.random.randn(), np.random.random()])
            assert NUMPY.mark() != mark
            restore()
            assert NUMPY.mark() == mark
            assert [np.random.randn(), np.random.random()] == drawn[-1]
        assert drawn[0] == drawn[2] != drawn[1]
    finally:
        np.random.set_bit_generator(own)


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.name)
def test_the_first_numbers_of_many_samples_are_uniform_and_independent(generator):
    samples, numbers, cells = 20_000, 6, 8
    seeder = generator.seeder(counter_rng.seeds(123, np.arange(samples)))
    drawn = np.empty((samples, numbers))
    for row in range(samples):
        seeder(row)
        drawn[row] = [ONE_NUMBER[generator]() for _ in range(numbers)]
    cell = (drawn * cells).astype(int)
    for a in range(numbers):
        assert _chi_square(np.bincount(cell[:, a], minlength=cells)) < 40  # 7 degrees of freedom
        for b in range(a):
            pairs = np.bincount(cell[:, a] * cells + cell[:, b], minlength=cells**2)
            assert _chi_square(pairs) < 130  # 63 degrees of freedom
    # Neighbouring samples, too.
    neighbours = np.bincount(cell[1:, 0] * cells + cell[:-1, 0], minlength=cells**2)
    assert _chi_square(neighbours) < 130


def test_two_generators_with_the_same_seed_do_not_draw_alike():
    seeds = counter_rng.seeds(5, np.arange(2000))
    drawn = []
    for generator in GENERATORS:
        seeder = generator.seeder(seeds)
        numbers = []
        for row in range(len(seeds)):
            seeder(row)
            numbers.append(ONE_NUMBER[generator]())
        drawn.append(numbers)
    correlation = np.corrcoef(drawn)
    assert np.abs(correlation[~np.eye(3, dtype=bool)]).max() < 0.1


def _chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.name)
def test_a_state_kept_as_a_tensor_brings_back_the_same_numbers(generator):
    random.gauss(0, 1), np.random.randn(), torch.randn(1)
    state = generator.save_tensor()
    draws = [draw for owner, draw in DRAWS.values() if owner is generator]
    first = [str(draw()) for draw in draws]
    generator.restore_tensor(state)
    assert [str(draw()) for draw in draws] == first


class Draws:
    """A dataset that draws only for some samples, and records what it is asked for."""

    def __init__(self, from_index: int, fails: tuple[int, ...] = ()) -> None:
        self.from_index, self.fails, self.asked = from_index, fails, []

    def __getitem__(self, index):
        self.asked.append(index)
        if index in self.fails:
            raise ValueError(f"no {index}")
        return index, np.random.random() if index >= self.from_index else 0.0


def _request(indices):
    return LoadRequest(1, 0, 0, list(indices), list(indices), 0, 0)


class DrawsAndKeepsNothing:
    """The same, which does not change when it is asked, as its code shows."""

    def __init__(self, from_index: int) -> None:
        self.from_index = from_index

    def __getitem__(self, index):
        return index, np.random.random() if index >= self.from_index else 0.0


def test_a_sample_is_the_same_whenever_it_turns_out_that_the_dataset_draws():
    early, late = SampleLoader(DrawsAndKeepsNothing(0)), SampleLoader(DrawsAndKeepsNothing(5))
    expected = early.load(_request(range(5, 10)), stop_at_failure=True)
    late.load(_request(range(3)), stop_at_failure=True)  # nothing drawn: nothing learnt
    assert late.load(_request(range(10)), stop_at_failure=True)[5:] == expected


@pytest.mark.parametrize("from_index", [0, 2, 6, 100])
def test_a_dataset_that_shows_what_it_was_asked_for_is_asked_once(from_index):
    dataset = Draws(from_index)
    loader = SampleLoader(dataset)
    loader.load(_request(range(4)), stop_at_failure=True)
    loader.load(_request(range(4, 8)), stop_at_failure=True)
    assert dataset.asked == list(range(8))


def test_generators_that_the_first_sample_leaves_alone_are_left_as_they_were():
    before = {generator: generator.mark() for generator in GENERATORS}
    SampleLoader(DrawsAndKeepsNothing(0)).load(_request(range(4)), stop_at_failure=True)
    assert [one for one in GENERATORS if one.mark() != before[one]] == [NUMPY]


def test_failures_stand_in_their_rows_or_stop_the_rest():
    kept = SampleLoader(Draws(100, fails=(1, 3))).load(_request(range(5)), stop_at_failure=False)
    assert [type(sample) is FailedSample for sample in kept] == [False, True, False, True, False]
    stopped = SampleLoader(Draws(100, fails=(1,))).load(_request(range(5)), stop_at_failure=True)
    assert len(stopped) == 2
    assert str(stopped[1].error) == "no 1"
