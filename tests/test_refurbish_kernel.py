"""The compiled loop over the rows of a long epoch gives what NumPy gives, to the bit."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.choose import Refresh, Shard, plan_epoch, refurbish_sequence


def rows(plan, first, count, *, compiled):
    limits = {"_LONG": 0, "_MANY": 1} if compiled else {"_LONG": 2**62}
    with mock.patch.multiple(refurbish_sequence, **limits):
        return plan._rows(first, first + count)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_compiled_rows_are_those_of_numpy(data):
    size = data.draw(st.integers(70_000, 2_000_000) | st.integers(70_000, 10**11))
    world = data.draw(st.integers(1, 9) | st.just(64))
    shard = Shard(data.draw(st.integers(0, world - 1)), world)
    batch_size = data.draw(st.sampled_from([1, 3, 64, 256, 1000, 3000]))
    factor = data.draw(st.sampled_from([1, 1.1, 2, 3, 7.5, 100]))
    plan = plan_epoch(
        size=size, epoch=data.draw(st.integers(0, 9)), seed=data.draw(st.integers(0, 99)), shuffle=True,
        batch_size=batch_size, drop_last=data.draw(st.booleans()), shard=shard,
        refresh=Refresh(size, factor, 7),
    )  # fmt: skip
    count = min(data.draw(st.integers(1, 5000)), plan.samples)
    first = data.draw(st.sampled_from([0, plan.samples - count]) | st.integers(0, plan.samples - count))
    found = rows(plan, first, count, compiled=True)
    expected = rows(plan, first, count, compiled=False)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


@pytest.mark.parametrize("size", [10**4, 10**9])
def test_a_short_epoch_and_the_first_rows_of_any_are_not_compiled(size, monkeypatch):
    monkeypatch.setattr(refurbish_sequence.RefurbishSequence, "_many_rows", None)
    plan = plan_epoch(
        size=size, epoch=1, seed=1, shuffle=True, batch_size=256, drop_last=False, refresh=Refresh(size, 3, 1)
    )
    for step in range(min(plan.steps, 5)):
        assert len(plan.batch(step).ids) == min(256, plan.samples - step * 256)
