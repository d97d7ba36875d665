"""A list in shared memory gives what the list gives, to whoever reads it or changes its elements."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.core import list_stand_in
from rekindle.core.list_stand_in import ListStandIn, MutableStandIn
from rekindle.core.plain_values import plain_values
from rekindle.core.shared_list import SharedRows

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats(allow_nan=True)
    | st.text(st.characters(codec="utf-8") | st.characters(categories=["Cs"]))
    | st.binary()
)
PLAIN = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(ATOMS.filter(lambda key: key == key), inner, max_size=3)
    ),
    max_leaves=6,
)


def same(one, other):
    """Equal, of the same classes, all the way down: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, dict):
        return same([*one.items()], [*other.items()])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@settings(max_examples=40)
@given(st.lists(PLAIN, max_size=8))
def test_a_shared_list_gives_equal_values_of_the_same_classes(values):
    shared = rk.SharedList(values)
    assert len(shared) == len(values)
    assert same([*shared], values)
    assert same(shared[1:-1], values[1:-1])
    assert same([shared[-1 - number] for number in range(len(values))], values[::-1])
    assert same([*pickle.loads(pickle.dumps(shared))], values)


@pytest.mark.parametrize("value", [np.float32(1), np.ones(2), bytearray(b"a"), {1}, object(), math])
def test_a_shared_list_refuses_what_is_not_plain(value):
    with pytest.raises(rk.ArgumentError, match="SharedList holds"):
        rk.SharedList([value])


class OfStr(str):
    pass


@pytest.mark.parametrize(
    "value", [OfStr("a"), np.int64(1), bytearray(b"a"), ([1, {2: OfStr("a")}],), {(1,): 2}]
)
def test_only_exactly_plain_classes_are_plain(value):
    assert plain_values([value]) is None


def test_what_has_a_second_owner_is_not_shared_if_it_can_be_changed():
    record, row = {"a": 1}, ([1],)
    assert plain_values([{"a": 1}, {"a": [1]}, ([1], 2)]) is not None
    for values in ([record], [{"a": record}], [(record,)], [row, row]):
        assert plain_values(values) is None
    text = ("a", 1)
    assert plain_values([text, text]) is not None


def stand_in(values, kind=ListStandIn):
    return kind(SharedRows.of(values, len(values)))


def test_a_stand_in_reads_as_a_list_does():
    values = [("a", 1), ("b", 2), None]
    found = stand_in(values)
    assert found[np.int64(1)] == ("b", 2)
    assert ("a", 1) in found
    assert 3 not in found
    assert type(copy.deepcopy(found)) is list
    assert pickle.loads(pickle.dumps(found)) == values
    for index in (3, -4, "a", 1.0):
        with pytest.raises((IndexError, TypeError)) as expected:
            values[index]
        with pytest.raises(type(expected.value)) as raised:
            found[index]
        assert str(raised.value) == str(expected.value)


STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "append", "hold", "drop"]), st.integers(0, 7)), max_size=60
)


@settings(max_examples=40)
@given(STEPS)
def test_a_change_of_an_element_lasts_as_it_does_in_a_list(steps):
    values = [{"n": number, "tags": ["a"]} for number in range(8)]
    found, held = stand_in(values, MutableStandIn), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_stand_in, "_MOST_LENT", 2)
        for step, number in steps:
            if step == "set":
                found[number]["n"] = values[number]["n"] = values[number]["n"] + 1
            elif step == "append":  # to an inner list that is held while its owner is not
                held.append((found[number]["tags"], values[number]["tags"]))
                for tags in held[-1]:
                    tags.append("b")
            elif step == "hold":
                held.append((found[number], values[number]))
                assert found[number] is held[-1][0]
            else:
                held.clear()
            for one, other in held:
                assert one == other
        assert [*found] == values


@pytest.mark.parametrize("value", [np.ones(2), bytearray(b"a"), torch.ones(2), OfStr("a"), object()])
def test_what_code_keeps_in_an_element_stays_there(value, monkeypatch):
    monkeypatch.setattr(list_stand_in, "_MOST_LENT", 2)
    found = stand_in([{"image": b"a"} for _ in range(8)], MutableStandIn)
    found[0]["image"] = value
    assert [*map(len, found)] == [1] * 8
    assert found[0]["image"] is value
