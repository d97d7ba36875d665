"""Pipelines: the fused pass is bit-identical to the steps one by one."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle as rk
from photographs import SAMPLE, photographs
from rekindle.core import counter_rng
from rekindle.errors import ArgumentError
from rekindle.prepare.decode.decode import decode
from rekindle.prepare.pipeline import Pipeline

T = rk.transforms
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TAIL = [T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE]

PIPELINES: dict[str, list[Any]] = {
    "train": [T.RandomResizedCrop(96), *TAIL],
    "validate": [T.Resize(120), T.CenterCrop(96), T.ToTensor(), NORMALIZE],
    "crop only": [T.RandomCrop(64), *TAIL],
    "crop with padding": [T.Resize((60, 60)), T.RandomCrop(64, padding=9, fill=(9, 99, 199)), *TAIL],
    "centre crop that is too large": [T.Resize((50, 70)), T.CenterCrop(90), *TAIL],
    "reflected padding": [T.Resize((60, 60)), T.RandomCrop(64, padding=9, padding_mode="reflect"), *TAIL],
    "both flips twice": [
        T.Resize((50, 50)),
        *[T.RandomHorizontalFlip(), T.RandomVerticalFlip()] * 2,
        T.ToTensor(),
    ],
    "flip before crop": [T.Resize((60, 60)), T.RandomHorizontalFlip(), T.RandomCrop(40), *TAIL],
    "points": [T.RandomResizedCrop(64), T.Invert(), T.Solarize(99), T.Posterize(3), *TAIL],
    "points before padding": [
        T.Resize((60, 60)),
        T.Invert(),
        T.Posterize(5),
        T.RandomCrop(64, padding=4),
        *TAIL,
    ],
    "points in the middle": [T.Resize((60, 60)), T.Invert(), T.Solarize(80), T.AutoContrast(), *TAIL],
    "augmented": [T.RandomResizedCrop(64), T.RandAugment(2, 9), T.ColorJitter(0.4, 0.4, 0.4), *TAIL],
    "erased": [T.RandomResizedCrop(64), *TAIL, T.RandomErasing(p=0.7)],
    "bytes": [T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.PILToTensor()],
    "array": [T.RandomResizedCrop(64), T.RandomHorizontalFlip(p=1)],
    "converted": [T.Resize((50, 60)), T.ConvertImageDtype(torch.float32)],
    "half": [T.Resize((50, 60)), T.ConvertImageDtype(torch.float16)],
    "a function on the image": [T.Resize((50, 60)), T.Lambda(np.ascontiguousarray), *TAIL],
    "a function on the tensor": [T.Resize((50, 60)), T.ToTensor(), T.Lambda(torch.neg)],
    "a function that makes something else": [T.Lambda(lambda image: image[:, :, 0])],
    "nothing": [],
}


def jpegs() -> list[bytes]:
    made = []
    for photograph in photographs(4):
        buffer = io.BytesIO()
        Image.fromarray(photograph).save(buffer, "JPEG", quality=92)
        made.append(buffer.getvalue())
    return made


def one_by_one(steps: list[Any], image: Any, uniforms: np.ndarray) -> Any:
    used = 0
    for step in steps:
        image = step.apply(image, uniforms[used : used + step.uniforms])
        used += step.uniforms
    return image


@pytest.mark.parametrize("name", PIPELINES)
def test_fused_steps_equal_the_steps_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rekindle.prepare.decode.partial_decode._SHRINKS", ()
    )  # What that changes has a test of its own.
    steps = PIPELINES[name]
    pipeline = Pipeline(steps)
    assert pipeline.uniforms == sum(step.uniforms for step in steps)
    for number, data in enumerate(jpegs()):
        drawn = counter_rng.uniforms(7, range(8), number, count=pipeline.uniforms)
        for uniforms in drawn:
            expected = one_by_one(steps, decode(data), uniforms)
            made = pipeline.make(data, uniforms)
            assert type(made) is type(expected)
            np.testing.assert_array_equal(np.asarray(made), np.asarray(expected))
            if pipeline.output is not None:
                out = pipeline.output.empty(1)[0].numpy()
                pipeline.run(data, uniforms, out)
                np.testing.assert_array_equal(out, np.asarray(expected))


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("train", (3, 96, 96), torch.float32),
        ("validate", (3, 96, 96), torch.float32),
        ("crop with padding", (3, 64, 64), torch.float32),
        ("augmented", (3, 64, 64), torch.float32),
        ("erased", (3, 64, 64), torch.float32),
        ("bytes", (3, 64, 64), torch.uint8),
        ("array", (64, 64, 3), torch.uint8),
    ],
)
def test_shape_and_dtype_of_the_result_are_known_in_advance(
    name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    output = Pipeline(PIPELINES[name]).output
    assert output is not None
    assert (output.shape, output.dtype) == (shape, dtype)


@pytest.mark.parametrize("name", ["half", "a function on the tensor", "nothing"])
def test_results_that_vary_have_no_fixed_output(name: str) -> None:
    assert Pipeline(PIPELINES[name]).output is None


@pytest.mark.parametrize("name", ["train", "crop with padding", "bytes", "erased"])
def test_channels_last_changes_the_memory_and_not_the_values(name: str) -> None:
    pipeline, turned = Pipeline(PIPELINES[name]), Pipeline(PIPELINES[name], channels_last=True)
    assert turned.output is not None
    (data, *_), (uniforms, *_) = jpegs(), counter_rng.uniforms(1, 0, count=pipeline.uniforms)
    out = turned.output.empty(2)
    assert out.is_contiguous(memory_format=torch.channels_last)
    turned.run(data, uniforms, out[1].numpy())
    assert torch.equal(out[1], pipeline.make(data, uniforms))


def test_the_uint8_option_yields_the_bytes_of_which_the_floats_are_computed() -> None:
    steps = PIPELINES["train"]
    floats, as_bytes = Pipeline(steps), Pipeline(steps, dtype=torch.uint8)
    (data, *_), (uniforms, *_) = jpegs(), counter_rng.uniforms(1, 0, count=floats.uniforms)
    made = as_bytes.make(data, uniforms)
    assert made.dtype == torch.uint8
    assert torch.equal(NORMALIZE(made.float().div(255)), floats.make(data, uniforms))
    with pytest.raises(ArgumentError, match="skips the conversion"):
        Pipeline(PIPELINES["erased"], dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="no step converts"):
        Pipeline(PIPELINES["array"], dtype=torch.float32)
    with pytest.raises(ArgumentError, match="channels_last"):
        Pipeline(PIPELINES["array"], channels_last=True)


@pytest.mark.parametrize("name", ["train", "validate"])
def test_large_photographs_decoded_at_reduced_resolution_are_close(name: str) -> None:
    """Within 2 grey levels on average over photographs, as the steps are of torchvision's.

    Images made for the purpose have sharper edges than any photograph; for them it is 3.
    """
    steps = [*PIPELINES[name][:-2]]
    differences = []
    for photograph in photographs(4):
        large = Image.fromarray(photograph).resize((1600, 1200), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        large.save(buffer, "JPEG", quality=92)
        pipeline = Pipeline(steps)
        for uniforms in counter_rng.uniforms(3, range(5), count=pipeline.uniforms):
            expected = one_by_one(steps, decode(buffer.getvalue()), uniforms)
            made = pipeline.make(buffer.getvalue(), uniforms)
            differences.append(np.abs(made.astype(int) - expected).mean())
    assert np.mean(differences) < (2 if SAMPLE.exists() else 3)
    assert max(differences) < (4 if name == "train" else 1)
    assert np.mean(differences) > 0  # The decoder did reduce the resolution.


def test_a_box_filter_takes_the_pixels_of_the_photograph() -> None:
    for data in jpegs():
        step = T.Resize((20, 24), interpolation="box")
        found = Pipeline([step]).make(data, np.empty(0))
        assert np.array_equal(found, step(decode(data)))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_a_resize_to_the_nearest_pixels_takes_those_of_the_photograph(mode: str) -> None:
    for data in jpegs():
        step = T.Resize((20, 24), interpolation=mode)
        found = Pipeline([step]).make(data, np.empty(0))
        assert np.array_equal(found, step(decode(data)))
        with Image.open(io.BytesIO(data)) as image:
            assert np.array_equal(found, image.convert("RGB").resize((24, 20), Image.Resampling.NEAREST))


def test_many_images_in_one_call_equal_each_alone() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
    images.flags.writeable = False
    for steps in (
        [T.RandomCrop(32, padding=4), *TAIL],
        [T.RandomCrop(28), T.RandomVerticalFlip(), *TAIL],
        [T.CenterCrop(40), *TAIL],
        [T.RandomHorizontalFlip()],
        [T.Pad((1, 2, 3, 4), fill=7), T.PILToTensor()],
        TAIL,
    ):
        pipeline = Pipeline(steps, size=(32, 32), units=True)
        pipeline._unit.compile_now()
        assert pipeline.runs_units()
        chosen = np.random.default_rng(1).integers(0, 50, 200)
        uniforms = counter_rng.uniforms(5, chosen, range(200), count=pipeline.uniforms)
        out = pipeline.output.empty(200).numpy()
        pipeline.run_many(images, chosen, uniforms, out)
        for row, index in enumerate(chosen):
            expected = one_by_one(steps, images[index], uniforms[row])
            np.testing.assert_array_equal(out[row], np.asarray(expected))
    with pytest.raises(IndexError):
        pipeline.run_many(images, [50], uniforms[:1], out[:1])


@pytest.mark.parametrize("steps", [[T.ToTensor()], [T.ToTensor(), T.RandomErasing()]])
def test_read_only_images_are_accepted(steps: list[Any]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
    expected = [images[index].transpose(2, 0, 1).astype(np.float32) / np.float32(255) for index in range(3)]
    images.setflags(write=False)
    dataset = rk.ArrayImages(images, [0, 1, 2], [*steps[:1], *(T.RandomErasing(0) for _ in steps[1:])])
    assert np.array_equal(dataset[1][0].numpy(), expected[1])
    loaded = torch.cat([batch for batch, _ in rk.DataLoader(dataset, batch_size=2)])
    assert np.array_equal(loaded.numpy(), np.stack(expected))


def test_a_function_may_return_a_read_only_image() -> None:
    image = Image.fromarray(np.full((8, 9, 3), 51, dtype=np.uint8))
    made = Pipeline([T.Lambda(lambda _: np.asarray(image)), T.ToTensor()]).make_image(
        np.zeros((8, 9, 3), dtype=np.uint8), np.empty(0)
    )
    assert torch.equal(made, torch.full((3, 8, 9), 0.2))
