"""`rk.native`: the samples and labels that torchvision's datasets give, or a list of what is in the way."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, default_collate, random_split

import rekindle as rk
from foreign_datasets import COLOURED, GREY, SAMPLES, image_folder
from light_torchvision import torchvision, v2
from light_torchvision import transforms as v1
from rekindle.prepare.native import as_native

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def evaluation(library: Any, side: int = 24) -> Any:
    return library.Compose(
        [library.Resize(side + 4), library.CenterCrop(side), library.ToTensor(), library.Normalize(MEAN, STD)]
    )


RESIZED = {"most": 2.01, "mean": 0.3}  # grey levels: Pillow's filter, in 16 bits
EXACT = {"most": 1e-4, "mean": 1e-4}


def assert_equal_batches(
    dataset: Any, native: Any, most: float, mean: float, std: tuple[float, ...] = STD
) -> None:
    expected = default_collate([dataset[index] for index in range(len(dataset))])
    found = default_collate([native[index] for index in range(len(native))])
    assert type(found[0]) is torch.Tensor
    assert (found[0].shape, found[0].dtype) == (expected[0].shape, expected[0].dtype)
    assert found[1].dtype == expected[1].dtype == torch.int64
    assert found[1].tolist() == expected[1].tolist()
    apart = (expected[0] - found[0]).abs() * torch.tensor(std).view(-1, 1, 1) * 255
    assert apart.max() <= most
    assert apart.mean() <= mean
    batch = next(iter(rk.DataLoader(dataset, batch_size=len(dataset), native=True)))
    assert torch.equal(batch[0], found[0])
    assert torch.equal(batch[1], found[1])


@pytest.mark.parametrize("name", COLOURED)
def test_deterministic_pipelines_give_pillows_pixels(name: str, tmp_path: Path) -> None:
    dataset = COLOURED[name](tmp_path, evaluation(v1))
    native = rk.native(dataset)
    assert as_native(native) is not None
    assert_equal_batches(dataset, native, **RESIZED)


@pytest.mark.parametrize("name", GREY)
def test_grey_images_keep_one_channel(name: str, tmp_path: Path) -> None:
    steps = [v1.Resize(20), v1.CenterCrop(16), v1.ToTensor(), v1.Normalize((0.13,), (0.3,))]
    dataset = GREY[name](tmp_path, v1.Compose(steps))
    native = rk.native(dataset)
    assert native[0][0].shape == (1, 16, 16)
    assert_equal_batches(dataset, native, **RESIZED, std=(0.3,))


def test_grey_images_may_become_rgb_and_coloured_ones_grey(tmp_path: Path) -> None:
    both = [v1.Grayscale(3), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    digits = GREY["MNIST"](tmp_path / "digits", v1.Compose(both))
    assert_equal_batches(digits, rk.native(digits), **EXACT)
    by_function = v1.Compose([v1.ToTensor(), v1.Lambda(lambda image: image.repeat(3, 1, 1))])
    digits.transform = by_function
    assert_equal_batches(digits, rk.native(digits), **EXACT, std=(1.0,))
    coloured = COLOURED["CIFAR10"](tmp_path, v1.Compose([v1.Grayscale(), v1.ToTensor()]))
    assert rk.native(coloured)[0][0].shape == (1, 32, 32)
    assert_equal_batches(coloured, rk.native(coloured), most=1.01, mean=0.1, std=(1.0,))
    coloured.transform = v1.Compose([v1.Grayscale(), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    with pytest.raises(rk.ArgumentError, match=r"Compose\[2\]\.Normalize: has a number for each"):
        rk.native(coloured)


@pytest.mark.parametrize("antialias", [True, None])
def test_what_the_weights_of_a_network_come_with_is_translated(antialias: Any, tmp_path: Path) -> None:
    from torchvision.transforms._presets import ImageClassification

    preset = ImageClassification(crop_size=24, resize_size=30, antialias=antialias)
    dataset = image_folder(tmp_path, preset)
    assert_equal_batches(dataset, rk.native(dataset), **RESIZED)
    dataset.transform = v1.Compose([v1.CenterCrop(40), preset, v1.RandomErasing(p=0)])
    assert_equal_batches(dataset, rk.native(dataset), **RESIZED)
    dataset.transform = v1.Compose([v1.ToTensor(), preset])
    with pytest.raises(
        rk.ArgumentError, match=r"Compose\[1\]\.ImageClassification: it converts images itself"
    ):
        rk.native(dataset)


V2_PIPELINES: dict[str, list[Any]] = {
    "ToImage first": [v2.ToImage(), v2.Resize(30), v2.CenterCrop(24), v2.ToDtype(torch.float32, scale=True)],
    "pure tensors": [v2.Resize(30), v2.CenterCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "bytes": [v2.PILToTensor(), v2.Resize((24, 24))],
    "two conversions": [v1.Resize((24, 24)), v1.ToTensor(), v2.ToDtype(torch.float32)],
}


@pytest.mark.parametrize("name", V2_PIPELINES)
def test_pipelines_of_v2(name: str, tmp_path: Path) -> None:
    dataset = image_folder(tmp_path, v2.Compose(V2_PIPELINES[name]))
    native = rk.native(dataset)
    for index in range(SAMPLES):
        expected, found = dataset[index][0].as_subclass(torch.Tensor), native[index][0]
        assert expected.dtype == found.dtype
        scale = 255 if found.is_floating_point() else 1
        assert (expected.float() - found.float()).abs().max() * scale <= 2.01


def test_random_pipelines_have_torchvisions_distribution(tmp_path: Path) -> None:
    augmented = v1.Compose(
        [v1.RandomResizedCrop(16, scale=(0.3, 1)), v1.RandomHorizontalFlip(0.2), v1.ToTensor()]
    )
    dataset = image_folder(tmp_path, augmented)
    native = rk.native(dataset)
    torch.manual_seed(0)
    expected, found = (
        torch.stack([one[1][0] for _ in range(150)]).double().mean((2, 3)) for one in (dataset, native)
    )
    error = ((expected.var(0) + found.var(0)) / 150).sqrt()
    assert ((expected.mean(0) - found.mean(0)).abs() < 4 * error).all()
    assert torch.allclose(expected.std(0), found.std(0), rtol=0.35)


def test_lists_and_arrays_are_translated_as_they_are_now(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "folder", evaluation(v1))
    folder.samples = [(path, 7 - label) for path, label in reversed(folder.samples)][:6]
    assert_equal_batches(folder, rk.native(folder), **RESIZED)
    cifar = COLOURED["CIFAR10"](tmp_path / "cifar", evaluation(v1))
    cifar.data = cifar.data[::-1][:9]
    cifar.targets = np.arange(20)
    assert_equal_batches(cifar, rk.native(cifar), **RESIZED)
    before = rk.native(cifar)
    cifar.data[:] = 0
    assert before[0][0].std() > 0.1  # `native` is of the dataset as it was.


def test_parts_of_datasets_stay_parts(tmp_path: Path) -> None:
    steps = evaluation(v1)
    folder, cifar = image_folder(tmp_path / "folder", steps), COLOURED["CIFAR10"](tmp_path, steps)
    part, rest = random_split(folder, [4, SAMPLES - 4], torch.Generator().manual_seed(1))
    joined = ConcatDataset([Subset(cifar, [30, 2, 2]), part, Subset(rest, [1, 0])])
    native = rk.native(joined)
    assert as_native(native) is not None
    assert len(native) == len(joined) == 9
    assert_equal_batches(joined, native, **RESIZED)
    loader = rk.DataLoader(joined, batch_size=4, shuffle=True, seed=3, native=True)
    expected = rk.DataLoader(joined, batch_size=4, shuffle=True, seed=3)
    assert [labels.tolist() for _, labels in loader] == [labels.tolist() for _, labels in expected]


def test_a_concat_dataset_of_our_own_datasets_is_native() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 12, 3), dtype=np.uint8)
    steps = [rk.transforms.RandomCrop(8), rk.transforms.ToTensor()]
    whole = rk.ArrayImages(pixels, range(8), steps)
    parts = ConcatDataset([rk.ArrayImages(pixels[:5], range(5), steps), Subset(whole, [5, 6, 7])])
    assert as_native(parts) is not None
    for workers in (0, 2):
        batches = [
            [*rk.DataLoader(one, batch_size=3, shuffle=True, seed=1, num_workers=workers)]
            for one in (whole, parts)
        ]
        for expected, found in zip(*batches, strict=True):
            assert torch.equal(expected[0], found[0])
            assert torch.equal(expected[1], found[1])
    others = ConcatDataset([whole, whole.with_transform([rk.transforms.ToTensor()])])
    assert as_native(others) is None


class Relabelled(torchvision.datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label + 100


class OwnSubset(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_everything_that_cannot_be_translated_is_listed(tmp_path: Path) -> None:
    steps = v1.Compose([v1.FiveCrop(8), v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomPerspective()])
    folder = image_folder(tmp_path, steps)
    folder.target_transform = str
    folder.loader = print
    folder.samples[3] = (folder.samples[3][0], 0.5)
    with pytest.raises(rk.ArgumentError) as error:
        rk.native(folder)
    for part in (
        "4 things",
        "target_transform=",
        "loader=<built-in",
        "FiveCrop",
        "Compose[3].RandomPerspective",
    ):
        assert part in str(error.value)
    folder.loader = torchvision.datasets.folder.default_loader
    with pytest.raises(rk.ArgumentError, match=r"is a path.*rk\.open"):
        rk.native(folder.root)
    with pytest.raises(rk.ArgumentError, match=r"labels are not all integers \(float\)"):
        rk.native(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: setattr(folder, "transform", None), "samples are Pillow images"),
        (lambda folder: setattr(folder, "transform", v1.Resize(8)), "ends in a Pillow image"),
        (
            lambda folder: setattr(folder, "transform", lambda image: image),
            "not a transform of torchvision's",
        ),
        (lambda folder: setattr(folder, "transforms", lambda *both: both), "image and label together"),
        (lambda folder: folder.samples.append(("a.exr", 1)), "no decoder is known"),
        (lambda folder: setattr(folder, "samples", [(path, True) for path, _ in folder.samples]), "bool"),
        (lambda folder: setattr(folder, "__getitems__", print), "__getitems__"),
        (
            lambda folder: setattr(
                folder, "transform", v2.Compose([v2.ToImage(), v2.Resize(9, antialias=False)])
            ),
            "without antialiasing",
        ),
    ],
)
def test_what_would_be_lost_is_refused(change: Any, reason: str, tmp_path: Path) -> None:
    folder = image_folder(tmp_path, evaluation(v1))
    change(folder)
    with pytest.raises(rk.ArgumentError, match=reason):
        rk.native(folder)


def flip_what_came_out(module: Any, given: Any, out: Any) -> Any:
    return out.flip(-1)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda step: setattr(step, "forward", lambda image: image), "its forward is"),
        (lambda step: step.register_forward_hook(flip_what_came_out), "it has hooks"),
        (lambda step: step.register_forward_pre_hook(lambda module, given: given), "it has hooks"),
    ],
)
def test_code_that_a_script_puts_into_a_transform_is_not_bypassed(
    change: Any, reason: str, inner: bool, tmp_path: Path
) -> None:
    steps = v2.Compose([v2.Resize(8), v2.CenterCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    folder = image_folder(tmp_path, steps)
    loader = rk.DataLoader(folder, native=True)
    assert len([*loader]) == len(folder)
    change(steps.transforms[1] if inner else steps)
    with pytest.raises(rk.ArgumentError, match=reason):
        rk.native(folder)
    with pytest.raises(rk.ArgumentError, match=reason):
        iter(loader)


def test_a_method_that_a_script_puts_into_a_class_is_not_bypassed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(tmp_path, evaluation(v1))
    rk.native(folder)
    monkeypatch.setattr(v1.CenterCrop, "forward", lambda self, image: image)
    with pytest.raises(rk.ArgumentError, match=r"CenterCrop\.forward is test_native_datasets\."):
        rk.native(folder)


def test_nobodys_getitem_is_bypassed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = image_folder(tmp_path, evaluation(v1))
    with pytest.raises(
        rk.ArgumentError, match=r"Relabelled.*__getitem__ is that of|Relabelled: it is none of"
    ):
        rk.native(Relabelled(folder.root, evaluation(v1)))
    with pytest.raises(rk.ArgumentError, match="OwnSubset gives its samples in a way of its own"):
        rk.native(OwnSubset(folder, [1]))
    with pytest.raises(rk.ArgumentError, match="Stream is an IterableDataset"):
        rk.native(Stream())
    with pytest.raises(rk.ArgumentError, match="none of the datasets of torchvision and timm"):
        rk.native(Dataset())
    with pytest.raises(
        rk.ArgumentError, match=r"\n  int: it is none of the datasets of torchvision and timm"
    ):
        rk.native(3)
    monkeypatch.setattr(torchvision.datasets.DatasetFolder, "__getitem__", lambda self, index: (0, 0))
    with pytest.raises(rk.ArgumentError, match="none of the datasets of torchvision and timm"):
        rk.native(folder)


def test_a_function_that_opens_files_in_torchvisions_place_is_not_bypassed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = image_folder(tmp_path, evaluation(v1))
    monkeypatch.setattr(torchvision.datasets.folder, "pil_loader", lambda path: Image.new("RGB", (99, 99)))
    with pytest.raises(rk.ArgumentError, match="pil_loader"):
        rk.native(dataset)


def test_a_function_that_has_the_names_of_what_it_wraps_is_not_bypassed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrapped(original: Any) -> Any:
        return functools.wraps(original)(lambda *given: original(*given))

    module = torchvision.datasets.folder
    folder = image_folder(tmp_path, evaluation(v1))
    folder.loader = wrapped(module.pil_loader)
    with pytest.raises(rk.ArgumentError, match="opens files in a way of its own"):
        rk.native(folder)
    folder.loader = module.default_loader
    for owner, name, reason in (
        (v1.CenterCrop, "forward", r"CenterCrop\.forward is test_native_datasets\."),
        (module.DatasetFolder, "__getitem__", "its __getitem__ is that of test_native_datasets"),
        (module, "pil_loader", "torchvision's pil_loader is"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
            with pytest.raises(rk.ArgumentError, match=reason):
                rk.native(folder)
    rk.native(folder)


def test_labels_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    digits = GREY["MNIST"](tmp_path, v1.ToTensor())
    digits.targets = digits.targets.float() / 0  # infinite, and none
    with pytest.raises(rk.ArgumentError, match="not all finite"):
        rk.native(digits)


def test_parts_with_different_transforms_are_refused(tmp_path: Path) -> None:
    one, other = (
        image_folder(tmp_path / "one", evaluation(v1)),
        image_folder(tmp_path / "two", evaluation(v1, 20)),
    )
    with pytest.raises(rk.ArgumentError, match="have different transforms"):
        rk.native(ConcatDataset([one, other]))
    other.transform = evaluation(v1)
    rk.native(ConcatDataset([one, other]))
    for p, folder in ((0.1, one), (0.9, other)):
        folder.transform = v1.Compose([v1.RandomApply([v1.GaussianBlur(3)], p), v1.ToTensor()])
    with pytest.raises(rk.ArgumentError, match="have different transforms"):
        rk.native(ConcatDataset([one, other]))
    other.transform.transforms[0].p = 0.1
    rk.native(ConcatDataset([one, other]))
