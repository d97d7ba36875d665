"""Warps to the nearest pixel by the compiled kernel, against a plain formula, and against OpenCV's."""

import ctypes
import itertools
import mmap

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from noise import noise, views_of
from rekindle.prepare.steps import nearest_warp, nearest_warp_kernel

SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", autouse=True)
def _kernel_is_compiled() -> None:
    nearest_warp_kernel.warp()


def _warped(
    image: np.ndarray, matrix: np.ndarray, size: tuple[int, int], fill: tuple[int, ...]
) -> np.ndarray:
    """Each pixel from where the matrix says, as OpenCV's vectors round that: twice, and once."""
    m = matrix.astype(np.float32)
    y, x = np.arange(size[0], dtype=np.float32)[:, None], np.arange(size[1], dtype=np.float32)
    # A product of two float32 is exact in float64.
    at_x, at_y = (
        np.rint((x.astype(np.float64) * step + (y * per_row + start)).astype(np.float32))
        for step, per_row, start in m
    )
    inside = (at_x >= 0) & (at_x < image.shape[1]) & (at_y >= 0) & (at_y < image.shape[0])
    result = np.empty((*size, 3), dtype=np.uint8)
    result[:] = fill
    result[inside] = image[at_y[inside].astype(int), at_x[inside].astype(int)]
    return result


def _matrix(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    a, b, x, y = random.uniform(-2, 2), random.uniform(-2, 2), *random.uniform(-40, 40, 2)
    return np.array(
        [
            [[1, a, x], [0, 1, 0.001]],
            [[1, 0, 0], [a, 1, y]],
            [[np.cos(a), np.sin(a), x], [-np.sin(a), np.cos(a), y]],
            [[a, b, x], [b, -a, y]],
            np.round([[a, b, x], [b, -a, y]], 1),  # many pixels halfway between two
            [[a / 9, b / 9, 3], [-b / 9, a / 9, 3]],  # enlarged
            [[0.04, 0, 0], [0, 0.04, 0]],
            [[1, 0, x], [0, 1, y]],
        ][seed % 8]
    )


@settings(max_examples=150, deadline=None)
@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    rows=st.integers(1, 60),
    blocks=st.integers(1, 4),
    fill=st.tuples(*[st.integers(0, 255)] * 3),
    seed=SEEDS,
)
@example(height=1, width=1, rows=1, blocks=1, fill=(1, 2, 3), seed=7)
@example(height=9, width=40, rows=9, blocks=2, fill=(1, 2, 3), seed=6)
def test_a_compiled_warp_is_the_formula(height, width, rows, blocks, fill, seed):
    by_kernel, matrix, size = nearest_warp._by_kernel(), _matrix(seed), (rows, 32 * blocks)
    for image in views_of(noise(height, width, 0, 255, seed)):
        assert np.array_equal(by_kernel(image, matrix, size, fill), _warped(image, matrix, size, fill))


@settings(max_examples=150, deadline=None)
@given(height=st.integers(1, 90), width=st.integers(1, 130), columns=st.integers(1, 130), seed=SEEDS)
def test_warps_are_opencvs_whatever_does_them(height, width, columns, seed):
    matrix, size = _matrix(seed), (height, 32 if seed % 2 else columns)
    for image in views_of(noise(height, width, 0, 255, seed)):
        warped = nearest_warp.warp_nearest(image, matrix, size, (5, 6, 7))
        assert np.array_equal(warped, nearest_warp._by_opencv(image, matrix, size, (5, 6, 7)))


def test_rows_that_opencv_does_not_do_at_once_are_left_to_it():
    """What its vectors leave over of a row is rounded in another way, which shows in pixels between two."""
    image = noise(60, 70, 0, 255, 1)
    for columns in range(33, 64):
        for step, shift in itertools.product((0.1, 0.3, 0.7, 1.1), (0.5, 0.4, -3.7)):
            matrix = np.array([[1 - step, step, shift], [-step, 1, 20 + shift]])
            warped = nearest_warp.warp_nearest(image, matrix, (60, columns), (1, 2, 3))
            assert np.array_equal(warped, nearest_warp._by_opencv(image, matrix, (60, columns), (1, 2, 3)))


def test_pixels_halfway_between_two_come_from_the_even_one():
    image = noise(3, 64, 0, 255, 1)
    matrix, size = np.array([[1, 0, 0.5], [0, 1, 0]]), (3, 64)
    warped = nearest_warp._by_kernel()(image, matrix, size, (1, 2, 3))
    assert np.array_equal(warped[:, :63], image[:, [2 * ((x + 1) // 2) for x in range(63)]])
    assert (warped[:, 63] == (1, 2, 3)).all()


def test_nothing_is_read_or_written_beside_the_pixels():
    """The words that are copied are longer than a pixel."""
    kernel = nearest_warp_kernel.warp()
    for matrix in (
        *map(_matrix, range(40)),
        np.array([[-1, 0, 39], [0, -1, 8]]),
        np.array([[1, 0, 0], [0, 1, 0]]),
    ):
        memory = np.full(2 * 9 * 64 * 3, 123, dtype=np.uint8)
        pixels, out = np.full(9 * 40 * 3, 7, dtype=np.uint8), memory[9 * 64 * 3 // 2 :][: 9 * 64 * 3]
        background, places = np.full(64 * 3, 5, dtype=np.uint8), np.empty(64, dtype=np.int32)
        kernel(pixels, 9, 40, matrix.astype(np.float32).reshape(-1), background, places, out)
        assert set(np.unique(out)) <= {5, 7}
        assert (memory[: 9 * 64 * 3 // 2] == 123).all()
        assert (memory[-(9 * 64 * 3 // 2) :] == 123).all()


def test_no_byte_beyond_the_image_is_read():
    """The image ends where memory does: what is beyond cannot be read."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    pages = np.frombuffer(mmap.mmap(-1, 2 * page), dtype=np.uint8)
    address = pages.ctypes.data + page
    assert libc.mprotect(address, page, 0) == 0  # PROT_NONE
    image = pages[page - 20 * 32 * 3 : page].reshape(20, 32, 3)
    try:
        for seed in range(80):
            assert nearest_warp._by_kernel()(image, _matrix(seed), (40, 64), (0, 0, 0)).max() == 0
        for matrix in (
            [[0.3, 0.2, 20], [-0.2, 0.3, 15]],
            [[-1, 0.1, 31], [0, -1, 19]],
            [[1, 0, 0], [0.1, 1, 0]],
        ):
            assert nearest_warp._by_kernel()(image, np.array(matrix), (40, 64), (0, 0, 0)).max() == 0
    finally:
        libc.mprotect(address, page, mmap.PROT_READ | mmap.PROT_WRITE)


def test_where_opencv_rounds_in_another_way_its_own_warps_are_used(monkeypatch):
    real = nearest_warp._by_opencv
    monkeypatch.setattr(
        nearest_warp,
        "_by_opencv",
        lambda image, m, size, fill: real(image, m + 2e-5 * np.eye(2, 3, 2), size, fill),
    )
    assert nearest_warp.compile_nearest_warp() is nearest_warp._by_opencv


@pytest.mark.parametrize("sign", [1, -1])
def test_the_trial_tells_products_that_are_rounded_once_from_those_rounded_twice(sign):
    def other(image, matrix, size, fill):
        m = matrix.astype(np.float32).astype(np.float64)
        y, x = np.arange(size[0])[:, None], np.arange(size[1])
        rows = [(y * per_row + start).astype(np.float32) for _, per_row, start in m]  # once, not twice
        if sign < 0:
            rows = [np.float32(y) * np.float32(per_row) + np.float32(start) for _, per_row, start in m]
        steps = [
            (x * step).astype(np.float32) if sign < 0 else x * step for step in m[:, 0]
        ]  # twice, not once
        at_x, at_y = (np.rint((step + row).astype(np.float32)) for step, row in zip(steps, rows, strict=True))
        inside = (at_x >= 0) & (at_x < image.shape[1]) & (at_y >= 0) & (at_y < image.shape[0])
        result = np.empty((*size, 3), dtype=np.uint8)
        result[:] = fill
        result[inside] = image[at_y[inside].astype(int), at_x[inside].astype(int)]
        return result

    assert not nearest_warp._warps_as_opencv(other)
