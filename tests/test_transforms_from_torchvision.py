"""torchvision's pipelines become equivalent native steps; the error names every transform that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle.transforms as rk
import warm_python
from light_torchvision import torchvision, v2
from light_torchvision import transforms as v1
from photographs import photographs
from rekindle.errors import ArgumentError

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def kinds(steps: rk.Compose) -> list[str]:
    return [type(step).__name__ for step in steps.transforms]


@pytest.mark.parametrize("library", [v1, v2], ids=["v1", "v2"])
def test_every_known_transform_keeps_its_parameters(library: Any) -> None:
    nearest = library.InterpolationMode.NEAREST
    compose = library.Compose(
        [
            library.Resize(256, interpolation=nearest, max_size=300),
            library.Resize((64, 80)),
            library.CenterCrop(50),
            library.RandomCrop(40, padding=4, pad_if_needed=True, fill=3, padding_mode="edge"),
            library.RandomResizedCrop(
                30, scale=(0.5, 0.6), ratio=(1, 2), interpolation=library.InterpolationMode.BICUBIC
            ),
            library.Pad((1, 2), fill=9),
            library.RandomHorizontalFlip(0.1),
            library.RandomVerticalFlip(0.2),
            library.RandomRotation(12, interpolation=nearest, expand=True, fill=4),
            library.RandomAffine(5, translate=(0.1, 0.2), scale=(0.9, 1.1), shear=3),
            library.ColorJitter(0.1, (0.5, 0.7), 0, 0.2),
            library.RandomGrayscale(0.3),
            library.GaussianBlur(5, sigma=(0.5, 1.5)),
            library.RandomSolarize(100, p=0.4),
            library.RandomPosterize(3, p=0.6),
            library.RandomEqualize(0.7),
            library.RandomAutocontrast(0.8),
            library.RandomAdjustSharpness(2, p=0.9),
            library.RandomInvert(0.05),
            library.RandAugment(3, 7, 21),
            library.AutoAugment(library.AutoAugmentPolicy.SVHN),
            library.TrivialAugmentWide(11, fill=[1, 2, 3]),
            library.RandomApply([library.GaussianBlur(3)], p=0.25),
            library.PILToTensor(),
            library.ConvertImageDtype(torch.float32),
            library.Normalize(MEAN, STD),
            library.RandomErasing(0.15, (0.1, 0.2), (0.5, 2.0), "random"),
        ]
    )
    native = rk.from_torchvision(compose)
    bicubic = rk.InterpolationMode.BICUBIC
    expected = rk.Compose(
        [
            rk.Resize(256, "nearest", 300),
            rk.Resize((64, 80)),
            rk.CenterCrop(50),
            rk.RandomCrop(40, 4, True, 3, "edge"),
            rk.RandomResizedCrop(30, (0.5, 0.6), (1, 2), bicubic),
            rk.Pad((1, 2), 9),
            rk.RandomHorizontalFlip(0.1),
            rk.RandomVerticalFlip(0.2),
            rk.RandomRotation(12, "nearest", True, None, 4),
            rk.RandomAffine(5, (0.1, 0.2), (0.9, 1.1), 3),
            rk.ColorJitter(0.1, (0.5, 0.7), 0, 0.2),
            rk.RandomGrayscale(0.3),
            rk.GaussianBlur(5, (0.5, 1.5)),
            rk.RandomSolarize(100, 0.4),
            rk.RandomPosterize(3, 0.6),
            rk.RandomEqualize(0.7),
            rk.RandomAutocontrast(0.8),
            rk.RandomAdjustSharpness(2, 0.9),
            rk.RandomInvert(0.05),
            rk.RandAugment(3, 7, 21),
            rk.AutoAugment("svhn"),
            rk.TrivialAugmentWide(11, fill=(1, 2, 3)),
            rk.RandomApply([rk.GaussianBlur(3)], 0.25),
            rk.ToTensor(),
            rk.Normalize(MEAN, STD),
            rk.RandomErasing(0.15, (0.1, 0.2), (0.5, 2.0), "random"),
        ]
    )
    assert repr(native) == repr(expected)


@pytest.mark.parametrize("library", [v1, v2], ids=["v1", "v2"])
def test_a_translated_evaluation_pipeline_returns_torchvisions_tensors(library: Any) -> None:
    convert = [library.ToTensor()] if library is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    compose = library.Compose(
        [library.Resize(64), library.CenterCrop(48), *convert, library.Normalize(MEAN, STD)]
    )
    native = rk.from_torchvision(compose)
    for image in photographs()[:4]:
        difference = (native(image) - torch.as_tensor(compose(Image.fromarray(image)))).abs().mean()
        assert difference < 0.01  # 0.6 grey levels


def test_conversions_move_to_the_first_step_that_needs_a_tensor() -> None:
    compose = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    assert kinds(rk.from_torchvision(compose)) == ["RandomHorizontalFlip", "ToTensor"]
    first = v1.Compose([v1.ToTensor(), v1.CenterCrop(8), v1.Normalize(MEAN, STD)])
    assert kinds(rk.from_torchvision(first)) == ["CenterCrop", "ToTensor", "Normalize"]
    assert kinds(rk.from_torchvision(v1.Compose([v1.PILToTensor()]))) == ["PILToTensor"]
    half = v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)])
    assert rk.from_torchvision(half)(np.zeros((2, 2, 3), np.uint8)).dtype == torch.float16


def test_nested_pipelines_and_functions_of_tensors_are_translated() -> None:
    inner = torch.nn.Sequential(v1.RandomHorizontalFlip(), v1.Resize(9))
    compose = v1.Compose([inner, v1.Compose([v1.ToTensor()]), v1.Lambda(torch.neg)])
    assert kinds(rk.from_torchvision(compose)) == ["RandomHorizontalFlip", "Resize", "ToTensor", "Lambda"]
    assert kinds(rk.from_torchvision(v1.RandomVerticalFlip())) == ["RandomVerticalFlip"]


def test_every_transform_that_cannot_be_translated_is_named() -> None:
    class RandomCrop(v1.RandomCrop):
        """Not torchvision's, in spite of its name."""

    compose = v1.Compose(
        [
            v1.RandomPerspective(),
            v1.Compose([v1.Resize(9), v1.FiveCrop(3)]),
            RandomCrop(3),
            v1.Lambda(lambda image: image.convert("L")),
            v1.RandomApply([v1.ElasticTransform()]),
            len,
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
            v1.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32),
        ]
    )
    with pytest.raises(ArgumentError) as error:
        rk.from_torchvision(compose)
    message = str(error.value)
    assert "8 of the transforms" in message
    for name in (
        "Compose[0].RandomPerspective: ",
        "Compose[1].Compose[1].FiveCrop: ",
        "Compose[2].RandomCrop: not a transform of torchvision's",
        "Compose[3].Lambda: its function expects a Pillow image",
        "Compose[4].RandomApply[0].ElasticTransform: ",
        "Compose[5].builtin_function_or_method: ",
        "Compose[8].RandomHorizontalFlip: ",
        "Compose[9].ToDtype: scale=False",
        "use the Compose as it is",
    ):
        assert name in message
    assert "Resize" not in message


@pytest.mark.parametrize("padding", [(1, 2), (0, 4, 2, 0), [3], 2], ids=str)
@pytest.mark.parametrize("library", [v1, v2], ids=["v1", "v2"])
def test_a_padded_crop_pads_the_sides_that_torchvision_pads(library: Any, padding: Any) -> None:
    image = np.ascontiguousarray(photographs()[0][:20, :24])
    left, top, right, bottom = rk.Pad(padding).padding
    size = 20 + top + bottom, 24 + left + right  # All of it: there is one crop.
    compose = library.Compose([library.RandomCrop(size, padding=padding), library.PILToTensor()])
    assert torch.equal(rk.from_torchvision(compose)(image), compose(Image.fromarray(image)))


def test_a_conversion_of_v2_leaves_tensors_as_they_are() -> None:
    image = np.ascontiguousarray(photographs()[0][:20, :24])
    compose = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.ToImage()])
    with pytest.raises(ArgumentError, match="gets a Pillow image here"):
        rk.from_torchvision(compose)
    for second in (v2.ToImage(), v2.PILToTensor()):
        compose = v2.Compose([v1.ToTensor(), second])
        assert torch.equal(rk.from_torchvision(compose)(image), compose(Image.fromarray(image)))
    with pytest.raises(ArgumentError, match="a second conversion"):
        rk.from_torchvision(v1.Compose([v1.ToTensor(), v1.PILToTensor()]))
    with pytest.raises(ArgumentError, match="scale=False"):
        rk.from_torchvision(v2.Compose([v1.ToTensor(), v2.ToDtype(torch.uint8)]))


@pytest.mark.parametrize(
    "transform",
    [
        v1.Pad(2, fill=1),
        v2.Pad(2, fill=(0, 0.5, 0)),
        v1.RandomCrop(9, fill=1),
        v1.RandomRotation(5, fill=0.5),
        v1.RandomAffine(5, fill=1),
        v1.RandomSolarize(0.5),
        v1.RandomApply([v1.Pad(2, fill=1)]),
        v1.RandAugment(fill=[1.0, 1.0, 1.0]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_a_colour_on_the_scale_of_floats_is_no_colour_of_bytes(transform: Any) -> None:
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        rk.from_torchvision(v1.Compose([v1.ToTensor(), transform]))
    assert rk.from_torchvision(v1.Compose([v1.PILToTensor(), transform])).transforms


@pytest.mark.parametrize(
    "inner",
    [v1.Normalize(MEAN, STD), v1.RandomErasing(), v1.Lambda(torch.neg)],
    ids=lambda one: type(one).__name__,
)
def test_steps_on_tensors_in_some_cases_only_are_refused(inner: Any) -> None:
    with pytest.raises(ArgumentError, match="steps on tensors"):
        rk.from_torchvision(v1.Compose([v1.ToTensor(), v1.RandomApply([inner])]))


def test_a_resize_of_tensors_without_antialiasing_is_refused_in_some_cases_too() -> None:
    rough = v1.Resize(9, antialias=False)
    with pytest.raises(ArgumentError, match="antialias"):
        rk.from_torchvision(v1.Compose([v1.ToTensor(), v1.RandomApply([rough])]))


def test_a_function_for_some_types_is_refused() -> None:
    with pytest.raises(ArgumentError, match="some types only"):
        rk.from_torchvision(v2.Compose([v2.ToImage(), v2.Lambda(torch.neg, str)]))


def test_transforms_do_not_import_torchvision() -> None:
    code = "import sys, rekindle.transforms; sys.exit('torchvision' in sys.modules)"
    assert warm_python.run("-c", code).returncode == 0


def _of_torchvision() -> set[str]:
    """The names of torchvision's transforms of images, v1 and v2."""
    classes = [item for module in (v1, v2) for item in vars(module).values() if isinstance(item, type)]
    named = {
        one.__name__
        for one in classes
        if issubclass(one, torch.nn.Module) or callable(getattr(one, "forward", None))
    }
    others = {"UniformTemporalSubsample", "SetClampingMode"}  # of videos and boxes
    return {name for name in named if not name.endswith(("Boxes", "KeyPoints", "BoxFormat"))} - others


def test_a_name_that_only_torchvision_has_says_what_to_do() -> None:
    missing = _of_torchvision() - {*rk.__all__}
    assert {"RandomPerspective", "Grayscale", "ToDtype", "AugMix"} <= missing
    for name in missing:
        with pytest.raises(
            AttributeError, match=rf"there is no {name} in .* Use .*; or torchvision's {name}, in a Compose"
        ):
            getattr(rk, name)
    with pytest.raises(AttributeError, match=r"Use RandomGrayscale\(p=1\)"):
        rk.Grayscale  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'rekindle\.transforms' has no attribute 'RandomCorp'"):
        rk.RandomCorp  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.filterwarnings("ignore:scale was set to True")
@pytest.mark.parametrize(
    ("steps", "dtype"),
    [
        ([v2.ToImage()], torch.float32),
        ([v2.ToImage(), v2.RandomHorizontalFlip(1)], torch.float32),
        ([v2.ToImage(), v2.ToPureTensor()], torch.uint8),
        ([v2.PILToTensor()], torch.uint8),
        ([v2.PILToTensor(), v2.ToImage()], torch.float32),
        ([v2.ToImage(), v1.CenterCrop(8)], None),  # of v1: what it returns is not known
        ([v2.ToImage(), v2.Lambda(lambda image: image)], None),
    ],
)
def test_a_dtype_for_images_is_not_that_of_other_tensors(steps: list[Any], dtype: torch.dtype | None) -> None:
    kinds = {torchvision.tv_tensors.Image: torch.float32, "others": None}
    compose = v2.Compose([*steps, v2.ToDtype(kinds, scale=True)])
    image = Image.fromarray(np.ascontiguousarray(photographs()[0][:20, :30]))
    if dtype is None:
        with pytest.raises(ArgumentError, match="depends on the type of the input"):
            rk.from_torchvision(compose)
        return
    expected = compose(image).as_subclass(torch.Tensor)
    assert expected.dtype == dtype
    torch.testing.assert_close(rk.from_torchvision(compose)(image), expected)


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "constant"])
@pytest.mark.parametrize("library", [v1, v2])
def test_a_crop_that_pads_twice_mirrors_twice(library: Any, mode: str) -> None:
    compose = library.Compose([library.RandomCrop((5, 18), 1, True, 7, mode), library.PILToTensor()])
    if library is v1 and mode in ("reflect", "symmetric"):
        with pytest.raises(ArgumentError, match="mirrors in the second padding"):
            rk.from_torchvision(compose)
        return
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8))
    ours, theirs = (
        {tuple(one(image).flatten().tolist()) for _ in range(400)}
        for one in (rk.from_torchvision(compose), compose)
    )
    assert ours == theirs


def test_a_resize_of_tensors_to_the_nearest_pixels_is_refused() -> None:
    for mode in ("nearest", "nearest-exact"):
        resize = v2.Resize((9, 11), interpolation=v1.InterpolationMode(mode))
        assert rk.from_torchvision(v2.Compose([resize, v2.ToImage()]))
        with pytest.raises(ArgumentError, match="another interpolation"):
            rk.from_torchvision(v2.Compose([v2.ToImage(), resize]))
