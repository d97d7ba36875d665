"""Crops that are not resized, for a whole unit in one call: what the steps give one by one, from any file."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle as rk
from covering import each_value
from rekindle.core import counter_rng
from rekindle.fetch import writer_for
from rekindle.prepare import fused_kernel, unit_plan, window_kernel
from rekindle.prepare.pipeline import Pipeline
from rekindle.prepare.unit_plan import Column

T = rk.transforms
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TAIL = [T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
FILL = np.array([7, 77, 177], dtype=np.uint8)


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 70)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 70)),
    offset=st.tuples(st.integers(-8, 8), st.integers(-60, 60)),
    flips=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from(["computed", "looked up", "bytes", "table of bytes"]),
    channels_last=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_window_is_written_as_one_step_after_the_other_writes_it(
    shape, size, offset, flips, kind, channels_last, seed
):
    random = np.random.default_rng(seed)
    memory = random.integers(0, 256, 3 * shape[0] * shape[1] + 5, dtype=np.uint8)
    image = memory[5:].reshape(*shape, 3)
    pipeline = Pipeline([T.CenterCrop(9), *TAIL], units=True, channels_last=channels_last)
    assert pipeline._unit is not None
    pipeline._unit.compile_now()
    values, table = pipeline._unit._values, pipeline._table
    if kind == "looked up":
        values = table
    elif "bytes" in kind:
        table = random.permuted(fused_kernel.IDENTITY, axis=1) if "table" in kind else fused_kernel.IDENTITY
        values = table if "table" in kind else table[:, :0].copy()
    out = np.zeros((2, 3, *size), dtype=table.dtype)
    if channels_last:
        out = np.zeros((2, *size, 3), dtype=table.dtype).transpose(0, 3, 1, 2)
    plan = np.array([[0, 5, *shape, *offset, *size, *flips, 1]], dtype=np.int64)
    window_kernel.window_writer(plan, FILL, values, out)(memory, 0)
    expected = np.zeros((3, *size), dtype=table.dtype)
    fused_kernel.finish(image, *offset, *flips, FILL, table, fused_kernel.USE_TABLE, expected)
    assert out[1].tobytes() == expected.tobytes()
    assert not out[0].any()


def test_rows_of_a_large_window_are_written_some_at_a_time() -> None:
    image = np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8)
    for width, mirrored, upside_down in ((190, True, True), (5000, False, True)):
        out = np.zeros((1, 3, 290, width), dtype=np.uint8)
        plan = np.array([[0, 0, 300, 200, 3, -4, 290, width, mirrored, upside_down, 0]], dtype=np.int64)
        window_kernel.window_writer(plan, FILL, np.empty((3, 0), dtype=np.uint8), out)(image.reshape(-1), 0)
        expected = np.zeros_like(out[0])
        identity, use_table = fused_kernel.IDENTITY, fused_kernel.USE_TABLE
        fused_kernel.finish(image, 3, -4, mirrored, upside_down, FILL, identity, use_table, expected)
        assert np.array_equal(out[0], expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": -1}, {"start": 1}, {"height": 5}, {"height": 0}, {"height": 1 << 62}, {"width": 1 << 62},
        {"width": 0}, {"top": 1 << 62}, {"top": -1 << 62}, {"left": 1 << 62}, {"left": -1 << 62},
        {"box_height": 9}, {"box_width": 0}, {"box_width": -8, "box_height": -8}, {"box_width": 1 << 61},
        {"row": -1}, {"row": 1},
    ],
)  # fmt: skip
def test_an_impossible_plan_is_refused_before_anything_is_read(wrong: dict[str, int]) -> None:
    def plan_of(**columns: int) -> unit_plan.Plan:
        plan = np.zeros((1, unit_plan.COLUMNS), dtype=np.int64)
        for name, value in columns.items():
            plan[0, Column[name.upper()]] = value
        return plan

    right = {"height": 4, "width": 4, "box_height": 8, "box_width": 8}
    out, values = np.zeros((1, 3, 8, 8), dtype=np.uint8), np.empty((3, 0), dtype=np.uint8)
    memory = np.ones(48, dtype=np.uint8)
    window_kernel.window_writer(plan_of(**right), FILL, values, out)(memory, 0)
    assert out.all()
    out[:] = 0
    with pytest.raises(rk.ArgumentError):
        window_kernel.window_writer(plan_of(**{**right, **wrong}), FILL, values, out)(memory, 0)
    assert not out.any()


def test_memory_with_gaps_is_refused() -> None:
    out = np.zeros((1, 3, 8, 9), dtype=np.uint8)[..., :8]
    plan = np.array([[0, 0, 4, 4, 0, 0, 8, 8, 0, 0, 0]], dtype=np.int64)
    with pytest.raises(rk.ArgumentError, match="gaps"):
        window_kernel.window_writer(plan, FILL, np.empty((3, 0), dtype=np.uint8), out)


def images(count: int = 30, one_size: bool = False) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    sizes = [(11, 14) if one_size else (9 + number % 3, 8 + number % 5) for number in range(count)]
    return [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def as_records(path: Path) -> Path:
    """Pixels with a header, some encoded images among them, and sizes that differ."""
    writer = writer_for(path)
    for number, image in enumerate(images()):
        writer.add(f"{number:03}", image if number % 4 else encoded(image), number % 7)
    writer.close()
    return path


def encoded(image: np.ndarray) -> bytes:
    import cv2

    return cv2.imencode(".png", image)[1].tobytes()


def as_array(path: Path) -> Path:
    """Pixels alone, in one array."""
    with h5py.File(path, "w") as file:
        file["images"] = np.stack(images(one_size=True))
        file["labels"] = np.arange(30) % 7
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "some.h5": as_records,
    "some.tar": as_records,
    "array.h5": as_array,
}
CROPS: dict[str, list[Any]] = {
    "padded": [T.RandomCrop(12, padding=4, fill=(9, 99, 199)), *TAIL],
    "if needed": [T.RandomCrop((14, 9), pad_if_needed=True), T.RandomVerticalFlip(), *TAIL],
    "centre": [T.CenterCrop((7, 20)), *TAIL],
    "points": [T.CenterCrop(8), T.Invert(), *TAIL],
    "grey": [T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor(), T.FirstChannel()],
    "array": [T.RandomCrop(8), T.RandomHorizontalFlip()],
}


OPTIONS: list[dict[str, Any]] = [{}, {"channels_last": True}, {"dtype": torch.uint8}]
CASES = [
    (crop, options)
    for crop in CROPS
    for options in OPTIONS
    if not (crop == "array" and options) and not (crop == "grey" and "dtype" in options)
]


@pytest.mark.parametrize(("case", "name"), each_value(CASES, FILES), ids=str)
def test_a_unit_equals_its_samples(tmp_path: Path, name: str, case: tuple[str, dict[str, Any]]) -> None:
    crop, options = case
    steps = CROPS[crop]
    path = FILES[name](tmp_path / name)
    dataset, stored = rk.open(path, steps, **options), rk.open(path)
    unit = dataset._pipeline._unit
    unit.compile_now()
    chosen = [*range(29, -1, -1), -1, 0, 0]
    uniforms = counter_rng.uniforms(3, range(len(chosen)), count=dataset.uniforms)
    out = dataset._pipeline.output.empty(len(chosen)).numpy()
    labels = dataset.write_many(chosen, uniforms, out)
    one_by_one = Pipeline(steps, **options)
    for row, index in enumerate(chosen):
        expected = np.asarray(one_by_one.make_image(stored[index][0], uniforms[row]))
        assert out[row].tobytes() == expected.tobytes()
        assert out[row].tobytes() == np.asarray(dataset.sample(index, uniforms[row])[0]).tobytes()
        assert labels[row] == stored[index][1]


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_read_by_the_kernel_alone(tmp_path: Path, name: str) -> None:
    dataset = rk.open(FILES[name](tmp_path / name), CROPS["padded"])
    dataset._pipeline._unit.compile_now()
    rows = np.arange(30)
    out = np.empty((30, 3, 12, 12), dtype=np.float32)
    uniforms = counter_rng.uniforms(3, rows, count=dataset.uniforms)
    left = dataset._pipeline.run_mapped(dataset.source.mapped(rows), uniforms, out)
    assert left == ([] if name == "array.h5" else [*range(0, 30, 4)])  # those that are encoded


def test_an_image_that_is_too_small_is_an_error_of_its_own_row(tmp_path: Path) -> None:
    steps = [T.RandomCrop(10), *TAIL]
    dataset = rk.open(as_records(tmp_path / "some.h5"), steps)
    dataset._pipeline._unit.compile_now()
    large = [number for number, image in enumerate(images()) if min(image.shape[:2]) >= 10]
    uniforms = counter_rng.uniforms(3, range(30), count=dataset.uniforms)
    out = np.empty((30, 3, 10, 10), dtype=np.float32)
    assert dataset.write_many(large, uniforms[: len(large)], out[: len(large)])
    with pytest.raises(rk.ArgumentError, match=r"RandomCrop: the crop of \(10, 10\) is larger"):
        dataset.write_many(range(30), uniforms, out)


def test_a_result_beyond_the_limit_is_refused_as_it_is_one_by_one(tmp_path: Path) -> None:
    path = as_array(tmp_path / "array.h5")
    dataset = rk.open(path, [T.CenterCrop(40), *TAIL], limits=rk.Limits(pixels=1000))
    dataset._pipeline._unit.compile_now()
    with pytest.raises(rk.DecodeError, match="after CenterCrop"):
        dataset.write_many([0], np.zeros((1, 1)), np.empty((1, 3, 40, 40), dtype=np.float32))


@pytest.mark.parametrize("steps", [CROPS["padded"], [T.RandomResizedCrop(9), *TAIL]], ids=["crop", "resized"])
@pytest.mark.parametrize("grey", [False, True])
def test_arrays_in_memory_and_packed_files_give_the_same_batches(
    tmp_path: Path, steps: list[Any], grey: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches(dataset: Any) -> list[bytes]:
        return [made.numpy().tobytes() for made, _ in rk.DataLoader(dataset, 8, shuffle=True, seed=2)]

    path = as_array(tmp_path / "array.h5")
    pixels = np.stack(images(one_size=True))
    if grey:
        pixels[:] = pixels[..., :1]
        with h5py.File(path, "a") as file:
            file["images"][:] = pixels
    packed = rk.open(path, steps)
    in_memory = rk.ArrayImages(pixels[..., 0] if grey else pixels, np.arange(30) % 7, steps)
    for dataset in (packed, in_memory):
        dataset._pipeline._unit.compile_now()
    with_kernels = batches(packed)
    assert with_kernels == batches(in_memory)
    monkeypatch.setattr("rekindle.prepare.compiled_units.CompiledUnits.is_ready", lambda _: False)
    assert with_kernels == batches(in_memory) == batches(packed)


WITHOUT_SIZE: dict[str, list[Any]] = {
    "flipped": TAIL,
    "padded": [T.Pad((1, 2, 3, 4), fill=9), *TAIL],
    "array": [T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
}


@pytest.mark.parametrize(
    ("steps", "options"),
    [*product(["flipped", "padded"], OPTIONS), ("array", {})],
    ids=str,
)
@pytest.mark.parametrize("name", ["array.h5", "equal.tar"])
def test_images_whose_size_is_not_known_beforehand_are_made_together(
    tmp_path: Path, name: str, steps: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "array.h5":
        path = as_array(tmp_path / name)
    else:
        path = tmp_path / name
        writer = writer_for(path)
        for number, image in enumerate(images(one_size=True)):
            writer.add(f"{number:03}", image, number % 7)
        writer.close()
    dataset = rk.open(path, WITHOUT_SIZE[steps], **options)
    assert dataset._pipeline.output is None
    dataset._pipeline._unit.compile_now()
    chosen = [*range(29, -1, -1), -1, 0, 0]
    uniforms = counter_rng.uniforms(3, range(len(chosen)), count=dataset.uniforms)
    one_by_one = [dataset.sample(index, row) for index, row in zip(chosen, uniforms, strict=True)]
    with monkeypatch.context() as patch:
        patch.delattr(type(dataset), "sample")  # which is not called for them
        together = dataset.samples_of(chosen, uniforms)
    for (image, label), (expected, number) in zip(together, one_by_one, strict=True):
        assert type(image) is type(expected)
        assert np.asarray(image).tobytes() == np.asarray(expected).tobytes()
        assert np.asarray(image).strides == np.asarray(expected).strides
        assert label == number
        if isinstance(image, torch.Tensor):  # in memory of its own
            assert image.untyped_storage().nbytes() == image.nbytes


def test_images_of_several_sizes_are_made_one_by_one(tmp_path: Path) -> None:
    dataset, stored = rk.open(as_records(tmp_path / "some.h5"), TAIL), rk.open(tmp_path / "some.h5")
    dataset._pipeline._unit.compile_now()
    uniforms = counter_rng.uniforms(3, range(30), count=dataset.uniforms)
    one_by_one = Pipeline(TAIL)
    for index, (image, _) in enumerate(dataset.samples_of(range(30), uniforms)):
        assert torch.equal(image, one_by_one.make_image(stored[index][0], uniforms[index]))


def test_nothing_is_compiled_for_images_without_steps(tmp_path: Path) -> None:
    assert rk.open(as_records(tmp_path / "some.h5"))._pipeline._unit is None
