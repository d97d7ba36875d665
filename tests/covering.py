"""Which cases of a product the quick run takes; the others are slow tests."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest


def each_value(*tables: Iterable[Any]) -> list[Any]:
    """All combinations, for `parametrize`; the quick run has each value of each table at least once."""
    columns = [list(table) for table in tables]
    longest = max(map(len, columns))
    diagonal = {tuple(turn % len(column) for column in columns) for turn in range(longest)}
    return _marked(columns, diagonal.__contains__)


def each_pair(*tables: Iterable[Any]) -> list[Any]:
    """All combinations of three tables, the last the shortest; the quick run has any two values together."""
    columns = [list(table) for table in tables]
    shortest = len(columns[2])
    assert len(columns) == 3
    assert shortest <= min(map(len, columns))
    return _marked(columns, lambda places: (places[0] + places[1]) % shortest == places[2])


def _marked(columns: list[list[Any]], is_quick: Callable[[tuple[int, ...]], bool]) -> list[Any]:
    cases = []
    for places in product(*(range(len(column)) for column in columns)):
        values = [column[place] for column, place in zip(columns, places, strict=True)]
        cases.append(pytest.param(*values, marks=[] if is_quick(places) else [pytest.mark.slow]))
    return cases
