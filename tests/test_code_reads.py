"""What code reads by name, and what it writes to itself, is found in its bytecode."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from rekindle.core.analysis.code_reads import code_reads

TOTAL, TABLE, POOL, NAMES, SOURCE = 0, {"a": [0]}, [1], ["a"], iter(())


class Box:
    count, inner = 0, TABLE


BOX = Box()


def adds() -> None:
    global TOTAL
    TOTAL += 1


def stores_an_item(key: str) -> None:
    TABLE[key] = [1]


def stores_deeper() -> None:
    BOX.inner["a"][0] += 1


def stores_an_attribute() -> None:
    BOX.count += 1


def calls_a_method() -> None:
    POOL.append(1)


def by_another_name(key: str) -> None:
    pool = TABLE[key]
    pool.append(1)


def by_a_function() -> None:
    random.shuffle(POOL)
    next(SOURCE, None)


def by_a_name() -> None:
    setattr(BOX, "count", 1)  # noqa: B010


def of_its_own(sample: dict[str, Any]) -> dict[str, Any]:
    sample["image"] = BOX.count
    parts = list(NAMES)
    parts.append("b")
    made = [*itertools.chain(parts)]
    made[0] = TABLE["a"][0]
    return sample


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (adds, {"TOTAL"}),
        (stores_an_item, {"TABLE"}),
        (stores_deeper, {"inner"}),
        (stores_an_attribute, {"count"}),
        (calls_a_method, {"POOL"}),
        (by_another_name, {"TABLE"}),
        (by_a_function, {"POOL", "SOURCE"}),
        (by_a_name, {"count"}),
        (of_its_own, set()),
    ],
)
def test_what_code_writes_to(function: Callable[..., Any], written: set[str]) -> None:
    assert code_reads(function).written >= written
    assert not code_reads(function).written & ({"TOTAL", "TABLE", "POOL", "NAMES", "inner", "BOX"} - written)


def counts(counter: Any) -> None:
    counter.value += 1


@pytest.mark.parametrize(("function", "writes"), [(counts, True), (stores_an_item, False)])
def test_numbers_that_code_may_write_to(function: Callable[..., Any], writes: bool) -> None:
    assert code_reads(function).writes_numbers is writes


def test_the_names_that_code_uses_are_those_of_all_that_it_calls() -> None:
    def outer() -> None:
        stores_an_attribute()

    names = code_reads(outer).names
    assert names is not None
    assert {"BOX", "count", "stores_an_attribute"} <= names
    assert "inner" not in names


def test_code_that_asks_for_attributes_by_a_name_may_use_any() -> None:
    assert code_reads(lambda name: getattr(BOX, name)).names is None
