"""The fused kernel: computed values are bit-identical to those of the lookup table."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from rekindle.prepare import fused_kernel
from rekindle.prepare.lookup_table import lookup_table, normalization_of
from rekindle.prepare.normalized_values import PAST_CACHES
from rekindle.prepare.pipeline import Pipeline

T = rk.transforms
CPU = Path("/proc/cpuinfo")
FILL = np.array([7, 77, 177], dtype=np.uint8)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The kernels, which would otherwise be compiled later, and tables be compared with tables."""
    for in_planes in (True, False):
        fused_kernel.compile_normalize(in_planes)


@settings(max_examples=150, deadline=None)
@given(
    means=st.lists(st.floats(-1, 2, width=32), min_size=3, max_size=3),
    stds=st.lists(st.floats(0.0078125, 4, width=32), min_size=3, max_size=3),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 70)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 70)),
    offset=st.tuples(st.integers(-8, 8), st.integers(-60, 60)),
    flips=st.tuples(st.booleans(), st.booleans()),
    channels_last=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_computed_values_are_those_of_the_table(means, stds, shape, size, offset, flips, channels_last, seed):
    steps = [T.ToTensor(), T.Normalize(means, stds)]
    table, _ = lookup_table(steps, None)
    image = np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
    computed, looked_up = np.zeros((2, 3, *size), dtype=np.float32)
    if channels_last:
        computed = np.moveaxis(np.zeros((*size, 3), dtype=np.float32), 2, 0)
    fused_kernel.finish(image, *offset, *flips, FILL, table, normalization_of(steps, table), computed)
    fused_kernel.finish(image, *offset, *flips, FILL, table, fused_kernel.USE_TABLE, looked_up)
    assert computed.tobytes() == looked_up.tobytes()
    rows = np.arange(size[0])[:: -1 if flips[1] else 1] + offset[0]
    columns = np.arange(size[1])[:: -1 if flips[0] else 1] + offset[1]
    inside = ((rows >= 0) & (rows < shape[0]))[:, None] & (columns >= 0) & (columns < shape[1])
    pixels = image[rows.clip(0, shape[0] - 1)][:, columns.clip(0, shape[1] - 1)]
    pixels = np.where(inside[..., None], pixels, FILL)
    assert np.array_equal(looked_up, np.stack([table[c][pixels[..., c]] for c in range(3)]))


@pytest.mark.parametrize("columns", [112, 119, 128])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("upside_down", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 16])
def test_large_results_are_those_of_the_table_wherever_they_lie(columns, mirrored, upside_down, shift):
    steps = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    table, _ = lookup_table(steps, None)
    image = np.random.default_rng(0).integers(0, 256, (131, 140, 3), dtype=np.uint8)
    shape = 3, 128, columns
    assert 4 * math.prod(shape) >= PAST_CACHES
    # A line of a cache is 64 bytes; what is written past the caches must not reach beyond the result.
    memory = np.full(math.prod(shape) + 48, 7, dtype=np.float32)
    start = -memory.ctypes.data // 4 % 16 + shift
    computed = memory[start : start + math.prod(shape)].reshape(shape)
    looked_up = np.empty(shape, dtype=np.float32)
    window = 3, 5, mirrored, upside_down, FILL, table
    fused_kernel.finish(image, *window, normalization_of(steps, table), computed)
    fused_kernel.finish(image, *window, fused_kernel.USE_TABLE, looked_up)
    assert np.array_equal(computed, looked_up)
    assert (memory[:start] == 7).all()
    assert (memory[start + computed.size :] == 7).all()


@pytest.mark.skipif(not CPU.exists() or " fma " not in CPU.read_text(), reason="takes a processor with FMA")
@pytest.mark.parametrize("steps", [[], [T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]])
def test_common_normalizations_are_computed(steps):
    assert Pipeline([T.ToTensor(), *steps])._constants.size


def test_everything_else_is_looked_up():
    assert Pipeline([T.Invert(), T.ToTensor()])._constants.size == 0
    assert Pipeline([T.PILToTensor()])._constants.size == 0
    assert Pipeline([T.ToTensor(), *[T.Normalize([0.5], [0.25])] * 2])._constants.size == 0
