"""A keyed permutation has every number once, can be asked both ways, and is as random as a true shuffle."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core import keyed_permutation
from rekindle.core.keyed_permutation import KeyedPermutation
from rekindle.core.permutation_kernel import CompiledPermutation

KEYS = st.integers(0, 2**64 - 1)
SMALL = [6, 3, 10, 5, 1, 9, 7, 11, 4, 2, 0, 8]
MIDDLE = [31240, 34373, 1706, 43389]
LARGE = [420346416, 74433641, 123998175, 76809195]


@pytest.mark.parametrize("whole", [0, 4096], ids=["network", "shuffled whole"])
def test_every_size_has_every_number_once_and_an_inverse(monkeypatch, whole):
    monkeypatch.setattr(keyed_permutation, "_WHOLE", whole)
    for size in range(1, 300):
        numbers = np.arange(size)
        for key in (0, 2**64 - 1):
            order = KeyedPermutation(size, key)
            values = order.forward(numbers)
            assert np.array_equal(np.sort(values), numbers)
            assert np.array_equal(order.inverse(values), numbers)


@settings(max_examples=20)
@given(st.integers(4097, 100_000), KEYS)
def test_large_orders_have_every_number_once(size, key):
    order = KeyedPermutation(size, key)
    values = order.forward(np.arange(size))
    seen = np.zeros(size, dtype=bool)
    seen[values] = True
    assert seen.all()
    assert np.array_equal(order.inverse(values), np.arange(size))


@settings(max_examples=40)
@given(st.integers(1, 2**62), KEYS, st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_any_stretch_of_any_order_can_be_asked_for_both_ways(size, key, numbers):
    order, positions = KeyedPermutation(size, key), np.array(numbers) % size
    values = order.forward(positions)
    assert 0 <= values.min() <= values.max() < size
    assert np.array_equal(order.inverse(values), positions)
    assert np.array_equal(order.forward(positions[-1:]), values[-1:])


def test_orders_do_not_change_from_version_to_version():
    """They are in users' checkpoints and caches."""
    assert KeyedPermutation(12, 3).forward(np.arange(12)).tolist() == SMALL
    assert KeyedPermutation(50_000, 3).forward(np.arange(4)).tolist() == MIDDLE
    assert KeyedPermutation(10**9, 3).forward(np.arange(4)).tolist() == LARGE


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_few_numbers_are_about_equally_likely(size):
    draws = 6_000
    found = Counter(tuple(KeyedPermutation(size, key).forward(np.arange(size))) for key in range(draws))
    expected = draws / len(list(permutations(range(size))))
    chi_square = sum((found[one] - expected) ** 2 / expected for one in permutations(range(size)))
    assert excess(chi_square, len(found) - 1) < 4


def excess(chi_square: float, degrees: int) -> float:
    """By how many standard deviations a statistic is above its mean."""
    return (chi_square - degrees) / np.sqrt(2 * degrees)


def uneven(numbers: np.ndarray, size: int, bins: int = 16) -> float:
    """How uneven numbers below `size` are spread over bins of equal width."""
    counts = np.bincount(numbers * bins // size, minlength=bins)
    widths = np.diff(-(-np.arange(bins + 1) * size // bins))
    expected = len(numbers) * widths / size
    return excess(((counts - expected) ** 2 / expected).sum(), bins - 1)


@pytest.mark.parametrize("size", [4097, 70_000, 10**9])
def test_where_numbers_come_and_their_distances_are_as_in_a_true_shuffle(size):
    """Over keys: one position, neighbours, numbers far apart, three in a row, and a stretch of one order."""
    positions = np.array([0, 1, 2, size // 2, size - 1])
    drawn = np.array([KeyedPermutation(size, key * 7919).forward(positions) for key in range(1000)])
    for column in range(5):
        assert uneven(drawn[:, column], size) < 4
    for one, other in ((0, 1), (0, 3), (0, 4), (1, 2)):
        assert uneven((drawn[:, one] - drawn[:, other]) % size, size) < 4
        cells = (drawn[:, one] * 8 // size) * 8 + drawn[:, other] * 8 // size
        assert uneven(cells, 64, 64) < 4
    assert uneven((drawn[:, 0] - 2 * drawn[:, 1] + drawn[:, 2]) % size, size) < 4
    stretch = KeyedPermutation(size, 5).forward(np.arange(size // 3, size // 3 + 4000) % size)
    assert uneven(stretch, size) < 4
    for lag in (1, 2, 64, 66, 1000):  # also by about √size
        assert uneven((stretch[lag:] - stretch[:-lag]) % size, size) < 4


@pytest.mark.parametrize("size", [5000, 70_000])
def test_an_order_has_as_many_runs_and_fixed_points_as_a_true_shuffle(size):
    fixed, rises = [], []
    for key in range(50):
        values = KeyedPermutation(size, key).forward(np.arange(size))
        fixed.append(int((values == np.arange(size)).sum()))
        rises.append(int((np.diff(values) > 0).sum()))
    assert 0.4 < np.mean(fixed) < 1.6
    assert abs(np.mean(rises) - (size - 1) / 2) < 4 * np.sqrt(size / 12 / 50)
    assert 0.4 < np.var(rises) / (size / 12) < 1.8


def test_a_billion_numbers_take_tables_of_their_square_root():
    assert len(KeyedPermutation(10**9, 1).tables().entries) < 5 * (10**9) ** 0.5


@settings(max_examples=40)
@given(st.integers(4097, 10**11), KEYS, st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_an_order_without_tables_is_the_one_with_tables(size, key, numbers):
    few, order, positions = KeyedPermutation(size, key), KeyedPermutation(size, key), np.array(numbers) % size
    order.tables()
    few._asked = -(2**62)  # It never pays.
    assert np.array_equal(few.forward(positions), order.forward(positions))
    assert np.array_equal(few.inverse(positions), order.inverse(positions))
    assert not few._rounds


def test_tables_are_drawn_once_they_pay():
    order = KeyedPermutation(10**9, 1)
    order.forward(np.arange(1000))
    assert not order._rounds
    order.forward(np.arange(100_000))
    assert order._rounds


@settings(max_examples=40)
@given(st.integers(65_537, 10**11), KEYS, st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_a_compiled_order_is_the_same(size, key, numbers):
    order, positions = KeyedPermutation(size, key), np.array(numbers) % size
    compiled = CompiledPermutation(order)
    assert np.array_equal(compiled.forward(positions), order.forward(positions))
    assert np.array_equal(compiled.inverse(positions), order.inverse(positions))
    assert compiled.forward(np.empty(0, dtype=np.int64)).tolist() == []
    with pytest.raises(ValueError, match=f"expected numbers from 0 to {size - 1}"):
        compiled.inverse(np.array([size]))


def test_a_size_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="got -1"):
        KeyedPermutation(-1, 0)
