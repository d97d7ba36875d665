"""Compiled kernels: made when a pipeline needs them, for its types alone, equal to what they replace."""

import inspect
import multiprocessing
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
import warm_python
from rekindle.choose import refurbish_kernel
from rekindle.core import compiled_code, compiled_rng, counter_rng, patience
from rekindle.prepare import (
    converted_line,
    fused_kernel,
    normalize_kernel,
    resized_crop_kernel,
    window_kernel,
)
from rekindle.prepare.decode import raw_units
from rekindle.prepare.decode.baseline_jpeg import kernel as baseline_jpeg_kernel
from rekindle.prepare.steps import antialiased_resize
from rekindle.prepare.steps.parameters import InterpolationMode
from rekindle.prepare.steps.point_operations import (
    autocontrast,
    autocontrast_table,
    look_up,
    solarize,
    solarize_table,
)

T = rk.transforms


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    samples=st.lists(st.integers(-3, 2**63 - 1), max_size=9),
    turn=st.integers(0, 2**63 - 1),
    count=st.integers(0, 7),
)
def test_the_compiled_loop_draws_the_numbers_of_the_counter_based_generator(seed, samples, turn, count):
    ids = np.array(samples, dtype=np.int64)
    drawn = compiled_rng.uniforms(seed, ids, turn, count)
    expected = counter_rng.uniforms(seed, ids, turn, count=count)
    assert drawn.shape == expected.shape
    assert drawn.tobytes() == expected.tobytes()


def test_the_numbers_of_samples_in_turns_of_their_own_are_those_of_each_turn():
    drawn = compiled_rng.uniforms(5, [3, 3, 4], [0, 1, 1], 4)
    alone = [compiled_rng.uniforms(5, [one], turn, 4)[0] for one, turn in ((3, 0), (3, 1), (4, 1))]
    assert drawn.tobytes() == np.stack(alone).tobytes()


ALL_VALUES = np.arange(256, dtype=np.uint8).repeat(6).reshape(32, 16, 3)


@pytest.mark.parametrize("threshold", [-1, 0, 0.5, 1, 127.9, 128, 254.99, 255, 255.5, 256, 1e9])
def test_solarize_is_its_table(threshold):
    expected = look_up(ALL_VALUES, solarize_table(threshold))
    assert np.array_equal(solarize(ALL_VALUES, threshold), expected)
    assert np.array_equal(solarize(ALL_VALUES[:, 3:9], threshold), expected[:, 3:9])  # not contiguous


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 33)])
def test_the_extremes_of_autocontrast_are_those_of_the_channels(shape):
    image = np.random.default_rng(1).integers(10, 200, (*shape, 3), dtype=np.uint8)
    image[..., 1] = 77
    for view in (image, image[::-1], np.concatenate([image, image], axis=1)[:, : shape[1]]):
        expected = np.tile(np.arange(256, dtype=np.uint8)[:, None], 3)
        for row, plane in zip(expected.T, cv2.split(np.ascontiguousarray(view)), strict=True):
            low, high, _, _ = cv2.minMaxLoc(plane)
            if high > low:
                scale = 255.0 / (high - low)
                row[:] = np.clip(np.arange(256) * scale - low * scale, 0, 255).astype(np.uint8)
        assert np.array_equal(autocontrast_table(view), expected)


def test_autocontrast_looks_nothing_up_where_all_channels_have_their_full_range_or_one_value():
    image = ALL_VALUES.copy()
    assert autocontrast(image) is image
    image[..., 1] = 77
    assert autocontrast(image) is image
    image[..., 2] = np.maximum(image[..., 2], 1)
    assert np.array_equal(autocontrast(image), look_up(image, autocontrast_table(image)))
    assert autocontrast(image)[..., 2].min() == 0


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 40)),
    offset=st.tuples(st.integers(-8, 8), st.integers(-30, 30)),
    flips=st.tuples(st.booleans(), st.booleans()),
    channels_last=st.booleans(),
    points=st.booleans(),
    dtype=st.sampled_from([np.uint8, np.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_images_are_cropped_flipped_split_into_channels_and_looked_up(
    shape, size, offset, flips, channels_last, points, dtype, seed
):
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (*shape, 3), dtype=np.uint8)
    image.flags.writeable = bool(seed % 2)
    fill = np.array([7, 77, 177], dtype=np.uint8)
    table = random.permuted(fused_kernel.IDENTITY, axis=1) if points else fused_kernel.IDENTITY
    if dtype == np.float32:
        table = random.random((3, 256), dtype=np.float32)
    out = np.zeros((3, *size), dtype=dtype)
    if channels_last:
        out = np.moveaxis(np.zeros((*size, 3), dtype=dtype), 2, 0)
    fused_kernel.finish(image, *offset, *flips, fill, table, fused_kernel.USE_TABLE, out)
    rows = np.arange(size[0])[:: -1 if flips[1] else 1] + offset[0]
    columns = np.arange(size[1])[:: -1 if flips[0] else 1] + offset[1]
    inside = ((rows >= 0) & (rows < shape[0]))[:, None] & (columns >= 0) & (columns < shape[1])
    pixels = image[rows.clip(0, shape[0] - 1)][:, columns.clip(0, shape[1] - 1)]
    pixels = np.where(inside[..., None], pixels, fill)
    assert np.array_equal(out, np.stack([table[c][pixels[..., c]] for c in range(3)]))


def test_opencv_writes_channels_to_the_memory_of_the_batch():
    assert fused_kernel.writes_in_place()


@pytest.mark.parametrize(("old", "new"), [(7, 3), (3, 7), (100, 33), (33, 100), (1, 5), (5, 1), (500, 2)])
def test_the_bilinear_kernel_sums_as_the_kernel_of_all_filters_does(old, new):
    from rekindle.prepare.steps import resize_filters

    rows = np.random.default_rng(old).integers(0, 256, (old + 5, 24), dtype=np.uint8)
    expected = np.empty((new, 15), dtype=np.uint8)
    resize_filters.sum_positive()(rows, expected, 2, 6, old, 0, 1.0)
    found = antialiased_resize._resampled_rows(
        rows.reshape(old + 5, 8, 3), 2, 2, old, 5, new, InterpolationMode.BILINEAR
    )
    assert np.array_equal(found.reshape(new, 15), expected)


def test_nothing_is_compiled_for_bytes_that_are_only_cropped_and_flipped():
    script = """
import sys, torch, rekindle as rk
T = rk.transforms
from rekindle.prepare.pipeline import Pipeline
Pipeline([T.CenterCrop(4), T.ToTensor()], dtype=torch.uint8)
assert "numba" not in sys.modules
"""
    ended = warm_python.run("-c", script)
    assert ended.returncode == 0, ended.stderr


def test_what_takes_long_at_the_start_is_told_once(capfd, monkeypatch):
    waits = patience.Patience()
    for allowed in (60.0, 0.0, 0.0):  # seconds
        monkeypatch.setattr(patience, "_TELL_AFTER", allowed)
        with waits.during("loading kernels"):
            if not allowed:
                waits._timer.join()
            with waits.during("compiling kernels"):
                if not allowed:
                    waits._timer.join()
    assert capfd.readouterr().err == "rekindle: loading kernels\nrekindle: compiling kernels\n"
    monkeypatch.setattr(multiprocessing, "parent_process", object)  # in a worker
    with waits.during("loading others"):
        assert not waits._timer.is_alive()


def test_the_user_is_told_what_a_first_start_loads_and_compiles(tmp_path):
    script = """
import rekindle.core.patience as patience
patience._TELL_AFTER = 0.0
from rekindle.core.compiled_code import kernel
from rekindle.choose import refurbish_kernel
from rekindle.core.compiler import numba
def double(number):
    return 2 * number
assert kernel(lambda: numba.int64(numba.int64))(double)()(21) == 42
"""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    ended = warm_python.run(str(tmp_path / "script.py"))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stderr.splitlines()
    assert lines[0] == "rekindle: loading numba, which runs compiled kernels"
    assert lines[-1] == "rekindle: compiling kernels, once on this machine"


def test_without_a_folder_to_keep_it_in_code_is_compiled_all_the_same(tmp_path, monkeypatch):
    import numba

    real = numba.njit

    def refuses(*arguments, **options):
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function 'double': no locator available for file 'x'")
        return real(*arguments, **options)

    monkeypatch.setattr(numba, "njit", refuses)
    monkeypatch.setattr(compiled_code, "_kept", compiled_code._Kept())

    @compiled_code.kernel(lambda: numba.int64(numba.int64))
    def double(number):
        return 2 * number

    assert double()(21) == 42
    assert not compiled_code.keeps_compiled_code()
    assert double() is double()


def test_what_is_done_for_each_line_of_an_image_counts_no_references():
    pixels, out = np.arange(5, dtype=np.uint8), np.empty(5, dtype=np.float32)
    converted_line.convert(pixels, np.ones((3, 3), dtype=np.float32), 0, out, False)
    compiled = [one for one in converted_line.convert.signatures if one[1].dtype.name == "float32"]
    assert compiled
    for types in compiled:
        assert "NRT_incref" not in converted_line.convert.inspect_llvm(types)


def test_compiled_code_is_kept_under_a_name_that_follows_from_all_files_it_is_made_of(monkeypatch):
    kernels = [
        refurbish_kernel._fill,
        raw_units._read_headers,
        resized_crop_kernel._write,
        compiled_rng._fill,
        window_kernel._write,
        normalize_kernel.write_planes,
        baseline_jpeg_kernel.decode_box,
    ]
    functions = [inspect.getclosurevars(kernel).nonlocals["function"] for kernel in kernels]
    files = [{Path(file).stem for file in compiled_code._sources(function)} for function in functions]
    assert files[0] == {"refurbish_kernel", "permutation_kernel"}
    assert files[1] == {"raw_units", "unit_plan"}
    for both in (files[2], files[4]):
        assert {"unit_plan", "plan_check", "converted_line", "normalized_values"} <= both
    assert files[3] == {"compiled_rng"}
    # Constants, too, may be those of another file.
    assert {"normalize_kernel", "normalized_values"} <= files[5]
    assert {"huffman", "units", "inverse_dct", "unstuff", "integers"} <= files[6]
    monkeypatch.delattr(functions[0], "named_by_sources", raising=False)
    monkeypatch.setattr(functions[0], "__qualname__", "_fill")
    compiled_code._name_by_sources(functions[0])
    named = functions[0].__qualname__
    assert named.startswith("_fill_")
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"changed")
    monkeypatch.delattr(functions[0], "named_by_sources")
    monkeypatch.setattr(functions[0], "__qualname__", "_fill")
    compiled_code._name_by_sources(functions[0])
    assert functions[0].__qualname__ not in ("_fill", named)
