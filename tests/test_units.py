"""A whole unit in one call gives what the steps give one by one, and damaged input costs no process."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import rekindle as rk
from rekindle.core import counter_rng
from rekindle.core.limits import Limits
from rekindle.prepare import fused_kernel, resized_crop_kernel, unit_plan
from rekindle.prepare.decode.decode import read_header
from rekindle.prepare.decode.raw_units import read_raw_headers
from rekindle.prepare.normalized_values import PAST_CACHES
from rekindle.prepare.pipeline import Pipeline
from rekindle.prepare.resized_crop_boxes import bounds_of, find_boxes
from rekindle.prepare.steps.antialiased_resize import resample
from rekindle.prepare.unit_plan import Column

T = rk.transforms
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEPS = [T.RandomResizedCrop((9, 13)), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
UNLIMITED = 1 << 40
sides = st.one_of(st.integers(1, 12), st.integers(1, 4000))
fractions = st.floats(0.01, 1.5)


def plan_of(**columns: Any) -> unit_plan.Plan:
    """A plan whose columns have these values, zero where none is given."""
    plan = np.zeros((len(next(iter(columns.values()))), unit_plan.COLUMNS), dtype=np.int64)
    for name, values in columns.items():
        plan[:, Column[name.upper()]] = values
    return plan


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(sides, sides), min_size=1, max_size=8),
    scale=st.tuples(fractions, fractions).map(sorted),
    ratio=st.tuples(st.floats(0.05, 20), st.floats(0.05, 20)).map(sorted),
    seed=st.integers(0, 2**63 - 1),
)
def test_boxes_are_those_of_the_step(sizes, scale, ratio, seed):
    step = T.RandomResizedCrop(7, scale, ratio)
    uniforms = counter_rng.uniforms(seed, range(len(sizes)), count=4)
    heights, widths = zip(*sizes, strict=True)
    plan = plan_of(height=heights, width=widths)
    find_boxes(plan, uniforms, bounds_of(step), step.size, UNLIMITED)
    expected = [step.window(*size, row).box for size, row in zip(sizes, uniforms, strict=True)]
    assert plan[:, Column.TOP : Column.BOX_WIDTH + 1].tolist() == [[*box] for box in expected]


def test_a_box_beyond_the_limit_is_left_to_the_step() -> None:
    step = T.RandomResizedCrop((10, 10), scale=(1, 1), ratio=(1, 1))
    plan = plan_of(height=[50, 20], width=[50, 20])
    find_boxes(plan, np.full((2, 4), 0.5), bounds_of(step), step.size, 10 * 20)
    assert plan[:, Column.SOURCE].tolist() == [-1, 0]


@settings(max_examples=100, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    cut=st.tuples(*[st.floats(0, 1)] * 4),
    flips=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from(["computed", "looked up", "bytes", "table of bytes", "channels last"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_box_is_written_as_one_step_after_the_other_writes_it(shape, size, cut, flips, kind, seed):
    random = np.random.default_rng(seed)
    memory = random.integers(0, 256, 3 * shape[0] * shape[1] + 5, dtype=np.uint8)
    image = memory[5:].reshape(*shape, 3)
    height, width = (1 + int(part * (side - 1)) for part, side in zip(cut[:2], shape, strict=True))
    top, left = int(cut[2] * (shape[0] - height)), int(cut[3] * (shape[1] - width))
    box = (top, left, height, width)
    row = [[0, 5, *shape, *box, *flips, 1]]
    pipeline = Pipeline(STEPS, units=True)
    assert pipeline._unit is not None
    pipeline._unit.compile_now()
    values, table = pipeline._unit._values, pipeline._table
    if kind == "looked up":
        values = table
    elif "bytes" in kind:
        table = random.permuted(fused_kernel.IDENTITY, axis=1) if "table" in kind else fused_kernel.IDENTITY
        values = table if "table" in kind else table[:, :0].copy()
    out = np.zeros((2, 3, *size), dtype=table.dtype)
    if kind == "channels last":
        out = np.zeros((2, *size, 3), dtype=table.dtype).transpose(0, 3, 1, 2)
    resized_crop_kernel.box_writer(np.array(row, dtype=np.int64), values, out, width)(memory, 0)
    expected = np.zeros((3, *size), dtype=table.dtype)
    resized, fill = resample(image, box, size), np.zeros(3, dtype=np.uint8)
    fused_kernel.finish(resized, 0, 0, *flips, fill, table, fused_kernel.USE_TABLE, expected)
    assert out[1].tobytes() == expected.tobytes()
    assert not out[0].any()


@pytest.mark.parametrize("size", [(112, 112), (128, 119)])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 16])
def test_large_results_are_the_same_wherever_they_lie(size, mirrored, shift):
    image = np.random.default_rng(0).integers(0, 256, (60, 70, 3), dtype=np.uint8)
    pipeline = Pipeline(STEPS, units=True)
    assert pipeline._unit is not None
    pipeline._unit.compile_now()
    shape = 1, 3, *size
    assert 4 * math.prod(shape) >= PAST_CACHES
    memory = np.full(math.prod(shape) + 48, 7, dtype=np.float32)
    start = -memory.ctypes.data // 4 % 16 + shift
    out = memory[start : start + math.prod(shape)].reshape(shape)
    row = [[0, 0, *image.shape[:2], 0, 0, *image.shape[:2], mirrored, False, 0]]
    write = resized_crop_kernel.box_writer(np.array(row, dtype=np.int64), pipeline._unit._values, out, 70)
    write(image.reshape(-1), 0)
    resized, fill = resample(image, (0, 0, 60, 70), size), np.zeros(3, dtype=np.uint8)
    expected = np.zeros(shape[1:], dtype=np.float32)
    table, by_table = pipeline._table, fused_kernel.USE_TABLE
    fused_kernel.finish(resized, 0, 0, mirrored, False, fill, table, by_table, expected)
    assert np.array_equal(out[0], expected)
    assert (memory[:start] == 7).all()
    assert (memory[start + out.size :] == 7).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": [-1]}, {"start": [1]}, {"height": [5]}, {"height": [1 << 62]}, {"width": [1 << 62]},
        {"width": [0]}, {"top": [-1]}, {"top": [1]}, {"left": [-1]}, {"left": [1]}, {"box_height": [0]},
        {"box_width": [5]}, {"box_width": [1 << 61]}, {"row": [-1]}, {"row": [1]},
    ],
)  # fmt: skip
def test_an_impossible_plan_is_refused_before_anything_is_read(wrong: dict[str, list[int]]) -> None:
    size = {"height": [4], "width": [4], "box_height": [4], "box_width": [4]}
    out = np.zeros((1, 3, 8, 8), dtype=np.uint8)
    values = np.empty((3, 0), dtype=np.uint8)
    memory = np.ones(48, dtype=np.uint8)
    resized_crop_kernel.box_writer(plan_of(**size), values, out, 4)(memory, 0)
    assert out.all()
    out[:] = 0
    with pytest.raises(rk.ArgumentError):
        resized_crop_kernel.box_writer(plan_of(**{**size, **wrong}), values, out, 4)(memory, 0)
    assert not out.any()


headers = st.one_of(
    st.builds(lambda w, h: b"P6\n%d %d\n255\n" % (w, h), st.integers(0, 12), st.integers(0, 12)),
    st.builds(
        b"".join, st.lists(st.sampled_from([b"P6", b"\n", b" ", b"0", b"3", b"12", b"255", b"\n255\n"]))
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.tuples(headers, st.integers(0, 500)), min_size=1, max_size=6), most=st.integers(1, 150)
)
def test_raw_images_are_found_as_they_are_one_by_one(parts, most):
    records = [header + bytes(count) for header, count in parts]
    lengths = np.array([*map(len, records)])
    offsets = np.cumsum(lengths) - lengths
    plan = plan_of(start=offsets)
    read_raw_headers(np.frombuffer(b"".join(records), dtype=np.uint8), 0, plan, lengths, most)
    for record, offset, row in zip(records, offsets.tolist(), plan.tolist(), strict=True):
        try:
            header = read_header(record, Limits(pixels=most))
        except rk.DecodeError:
            header = None
        if header is None or header.decoder != "ppm":
            assert row[Column.SOURCE] == -1
        else:
            assert row[:4] == [0, offset + header.start, header.height, header.width]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(24):
        size = (20 + 7 * number % 50, 20 + 11 * number % 40)
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        (root / f"class{number % 3}").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(root / f"class{number % 3}" / f"{number}.jpg")
    return root


@pytest.mark.parametrize("dtype", [None, "uint8"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["one.h5", "some.tar"])
def test_a_unit_equals_its_samples(
    tmp_path: Path, folder: Path, share: float, name: str, dtype: str | None
) -> None:
    import torch

    shards = 1 if name == "one.h5" else 3
    packed = rk.pack(folder, tmp_path / name, raw_share=share, shards=shards, progress=False)
    assert packed
    path = tmp_path / name if shards == 1 else str(tmp_path / "some-*.tar")
    dataset = rk.open(path, transform=STEPS, dtype=None if dtype is None else torch.uint8)
    indices = [*range(23, -1, -2), -1, 0, 0]
    uniforms = counter_rng.uniforms(3, range(len(indices)), count=dataset.uniforms)
    out = np.zeros((len(indices), 3, 9, 13), dtype=dtype or np.float32)
    labels = dataset.write_many(indices, uniforms, out)
    for row, index in enumerate(indices):
        image, label = dataset.sample(index, uniforms[row])
        assert out[row].tobytes() == image.numpy().tobytes()
        assert labels[row] == label == dataset[index][1]
    decoded = rk.open(path)
    one_by_one = Pipeline([*STEPS[:1], T.Lambda(lambda image: image), *STEPS[1:]])  # not a unit's
    if dtype is None:
        for row, index in enumerate(indices):
            expected = one_by_one.make_image(decoded[index][0], uniforms[row])
            assert out[row].tobytes() == expected.numpy().tobytes()
