"""The generators that foreign code draws from: seeded by key, watched for moves, put back as they were."""

import random

import numpy as np
import pytest
import torch

from rekindle import keys
from rekindle.global_random import STREAMS, _NumPy, _Python
from rekindle.run.load import Failure, SampleLoader, Wanted, generators_kept

PYTHON, NUMPY, TORCH = STREAMS
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
    with generators_kept(STREAMS):
        yield


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_moves_the_mark_of_its_generator_and_of_no_other(name):
    moved, draw = DRAWS[name]
    before = {stream: stream.mark() for stream in STREAMS}
    assert before == {stream: stream.mark() for stream in STREAMS}
    draw()
    assert [stream for stream in STREAMS if stream.mark() != before[stream]] == [moved]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_a_seed_decides_all_that_is_drawn_whatever_was_drawn_before(stream):
    seeder = stream.seeder(keys.seeds(3, range(4)))
    drawn = []
    for row in (0, 1, 2, 3, 1, 3):
        seeder(row)
        drawn.append([ONE_NUMBER[stream]() for _ in range(1500)])
        random.gauss(0, 1), np.random.randn(), torch.randn(1)  # each keeps a second number for later
    assert drawn[1] == drawn[4]
    assert drawn[3] == drawn[5]
    assert len({tuple(numbers) for numbers in drawn}) == 4


@pytest.mark.parametrize("draw", [lambda: random.gauss(0, 1), np.random.randn, lambda: torch.randn(1).item()])
def test_a_normal_number_kept_for_later_does_not_cross_from_sample_to_sample(draw):
    seeders = [stream.seeder(keys.seeds(9, range(2))) for stream in STREAMS]

    def numbers(row: int, count: int) -> list[float]:
        for seeder in seeders:
            seeder(row)
        return [draw() for _ in range(count)]

    alone = numbers(1, 3)
    numbers(0, 1)  # an odd number of them
    assert numbers(1, 3) == alone


@pytest.mark.parametrize("stream", [_Python(), _NumPy()], ids=lambda stream: stream.name)
def test_where_a_generators_memory_cannot_be_seen_the_numbers_are_the_same(stream):
    draw = random.random if stream.name == "python" else np.random.random
    seeds = keys.seeds(3, range(3))
    found = []
    for visible in (True, False):
        stream._visible = visible
        stream.seeder(seeds)(2)
        mark = stream.mark()
        found.append([draw() for _ in range(700)])
        assert stream.mark() != mark
    assert found[0] == found[1]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_the_first_numbers_of_many_samples_are_uniform_and_independent(stream):
    samples, numbers, cells = 20_000, 6, 8
    seeder = stream.seeder(keys.seeds(123, np.arange(samples)))
    drawn = np.empty((samples, numbers))
    for row in range(samples):
        seeder(row)
        drawn[row] = [ONE_NUMBER[stream]() for _ in range(numbers)]
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
    seeds = keys.seeds(5, np.arange(2000))
    drawn = []
    for stream in STREAMS:
        seeder = stream.seeder(seeds)
        numbers = []
        for row in range(len(seeds)):
            seeder(row)
            numbers.append(ONE_NUMBER[stream]())
        drawn.append(numbers)
    correlation = np.corrcoef(drawn)
    assert np.abs(correlation[~np.eye(3, dtype=bool)]).max() < 0.1


def _chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_a_state_kept_as_a_tensor_brings_back_the_same_numbers(stream):
    random.gauss(0, 1), np.random.randn(), torch.randn(1)
    state = stream.save_tensor()
    draws = [draw for owner, draw in DRAWS.values() if owner is stream]
    first = [str(draw()) for draw in draws]
    stream.restore_tensor(state)
    assert [str(draw()) for draw in draws] == first


class Draws:
    """A data set that draws only for some samples, and counts how often it is asked."""

    def __init__(self, from_index: int, fails: tuple[int, ...] = ()) -> None:
        self.from_index, self.fails, self.asked = from_index, fails, []

    def __getitem__(self, index):
        self.asked.append(index)
        if index in self.fails:
            raise ValueError(f"no {index}")
        return index, np.random.random() if index >= self.from_index else 0.0


def _wanted(indices):
    return Wanted(1, 0, 0, list(indices), list(indices), 0, 0)


def test_a_sample_is_the_same_whenever_it_turns_out_that_the_data_set_draws():
    early, late = SampleLoader(Draws(0)), SampleLoader(Draws(5))
    expected = early.load(_wanted(range(5, 10)), stop_at_failure=True)
    late.load(_wanted(range(3)), stop_at_failure=True)  # nothing drawn: nothing learnt
    assert late.load(_wanted(range(10)), stop_at_failure=True)[5:] == expected


def test_a_data_set_that_draws_nothing_is_asked_once_for_each_sample():
    dataset = Draws(100)
    loader = SampleLoader(dataset)
    loader.load(_wanted(range(4)), stop_at_failure=True)
    loader.load(_wanted(range(4, 8)), stop_at_failure=True)
    assert dataset.asked == list(range(8))


def test_only_the_first_sample_that_draws_is_made_twice():
    dataset = Draws(0)
    SampleLoader(dataset).load(_wanted(range(4)), stop_at_failure=True)
    assert dataset.asked == [0, 0, 1, 2, 3]


def test_failures_stand_in_their_rows_or_stop_the_rest():
    kept = SampleLoader(Draws(100, fails=(1, 3))).load(_wanted(range(5)), stop_at_failure=False)
    assert [type(sample) is Failure for sample in kept] == [False, True, False, True, False]
    stopped = SampleLoader(Draws(100, fails=(1,))).load(_wanted(range(5)), stop_at_failure=True)
    assert len(stopped) == 2
    assert str(stopped[1].error) == "no 1"
