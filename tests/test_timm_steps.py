"""timm's transforms become steps that do exactly the same: operations, ranges, noise, fill, interpolation."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle as rk
from foreign_datasets import class_folders
from light_torchvision import transforms as v1
from photographs import photographs
from rekindle.core import counter_rng
from rekindle.prepare.steps.from_torchvision import translate_transform
from rekindle.prepare.steps.timm_augment import TimmAutoAugment, TimmRandAugment
from rekindle.prepare.steps.timm_operations import ARGUMENTS, UNIFORMS, perform

PHOTOGRAPH = np.ascontiguousarray(photographs()[1][:60, :75])
BLENDS = ("Color", "Contrast", "Sharpness", "Brightness", "Desaturate")
HPARAMS = {"translate_const": 30, "img_mean": (124, 116, 104)}


@pytest.fixture(autouse=True, scope="module")
def _timm() -> None:
    """Import it for these tests only: a process with all that it imports takes longer to fork."""
    global auto_augment, random_erasing, timm_data, timm_transforms
    timm_data = pytest.importorskip("timm.data")
    from timm.data import auto_augment, random_erasing
    from timm.data import transforms as timm_transforms


def step_of(transform: Any) -> Any:
    translation = translate_transform(transform)
    assert not translation.unknown, translation.unknown
    return translation.steps[0]


def test_every_operation_of_timm_is_known() -> None:
    assert ARGUMENTS.keys() == auto_augment.NAME_TO_OP.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("resample", [2, 3])
def test_operations_are_timms_to_the_bit(name: str, resample: int) -> None:
    op = auto_augment.AugmentOp(name, prob=1.0, magnitude=7, hparams=HPARAMS | {"interpolation": resample})
    step = step_of(auto_augment.RandAugment([op], 1))
    ours = step.ops[0]
    for level in (0.0, 1.3, 5.0, 9.9, 10.0):
        for negated in (False, True):
            argument = ours.argument(level, negated)
            if name == "GaussianBlurRand":
                continue
            given = () if argument is None else (argument,)
            if (
                name.startswith("Posterize") and argument == 0
            ):  # Pillow 13 raises an error, others give black.
                assert not perform(PHOTOGRAPH, name, argument, resample, ours.fill).any()
                continue
            theirs = op.aug_fn(Image.fromarray(PHOTOGRAPH), *given, **op.kwargs)
            mine = perform(PHOTOGRAPH, name, argument, resample, ours.fill)
            apart = np.abs(mine.astype(int) - np.asarray(theirs).astype(int))
            assert apart.max() <= (1 if name.startswith(BLENDS) else 0)  # Pillow truncates, we round.


def drawn(operation: Any, count: int) -> list[Any]:
    """The arguments that our operation is called with, or None where it is not."""
    found = []
    for row in counter_rng.uniforms(0, range(count), count=UNIFORMS):
        negated = bool(row[2] > 0.5)
        found.append(
            operation.argument(operation.level(row[1]), negated) if row[0] <= operation.prob else None
        )
    return found


def called(op: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The same of timm's, by calling it."""
    found: list[Any] = []
    monkeypatch.setattr(op, "aug_fn", lambda image, *given, **_: found.append(given[0] if given else 0.0))
    result = []
    for _ in range(count):
        found.clear()
        op(None)
        result.append(found[0] if found else None)
    return result


@pytest.mark.parametrize(
    "config", ["rand-m9-mstd0.5", "rand-m7-mstd101-inc1", "rand-m14-n3-mmax20-mstd2-p0.7"]
)
def test_magnitudes_have_timms_distribution(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    augment = auto_augment.rand_augment_transform(config, dict(HPARAMS))
    step = step_of(augment)
    random.seed(1)
    count = 600
    for op, ours in zip(augment.ops, step.ops, strict=True):
        if ARGUMENTS[op.name] is None:
            continue
        theirs, mine = called(op, count, monkeypatch), drawn(ours, count)
        assert abs(theirs.count(None) - mine.count(None)) < 5 * (count / 2) ** 0.5
        one, other = (np.sort([value for value in values if value is not None]) for values in (theirs, mine))
        both = np.concatenate([one, other])
        furthest = np.abs(
            np.searchsorted(one, both, "right") / len(one)
            - np.searchsorted(other, both, "right") / len(other)
        ).max()
        assert furthest < 1.95 * (1 / len(one) + 1 / len(other)) ** 0.5, op.name  # Kolmogorov and Smirnov


def chosen_by_timm(augment: Any, rounds: int) -> Counter[tuple[int, ...]]:
    numbers = np.arange(len(augment.ops))
    weights = augment.choice_weights
    return Counter(
        tuple(np.random.choice(numbers, augment.num_layers, replace=weights is None, p=weights).tolist())
        for _ in range(rounds)
    )


@pytest.mark.parametrize("config", ["rand-n2-m9", "rand-n2-m9-tweights", "rand-n1-t3a", "rand-n2-t3aw"])
def test_operations_are_chosen_as_often_as_timm_does(config: str) -> None:
    augment = auto_augment.rand_augment_transform(config, dict(HPARAMS))
    step = step_of(augment)
    assert isinstance(step, TimmRandAugment)
    np.random.seed(0)
    rounds = 1500
    theirs = chosen_by_timm(augment, rounds)
    mine = Counter(
        tuple(step.chosen(row)) for row in counter_rng.uniforms(0, range(rounds), count=step.uniforms)
    )
    for pair in theirs | mine:
        assert abs(theirs[pair] - mine[pair]) < 5 * max(theirs[pair] + mine[pair], 4) ** 0.5, pair
    if augment.choice_weights is not None:
        assert all(len(set(pair)) == len(pair) for pair in mine)


@pytest.mark.parametrize("config", ["v0", "v0r-mstd0.5", "original", "originalr", "3a"])
def test_every_policy_of_auto_augment_is_known(config: str) -> None:
    augment = auto_augment.auto_augment_transform(config, dict(HPARAMS))
    step = step_of(augment)
    assert isinstance(step, TimmAutoAugment)
    described = [[(op.name, op.prob, op.magnitude) for op in ops] for ops in augment.policy]
    assert [[(op.name, op.prob, op.magnitude) for op in ops] for ops in step.policy] == described
    image = step.apply(PHOTOGRAPH, np.full(step.uniforms, 0.3))
    assert image.shape == PHOTOGRAPH.shape


def test_the_random_crop_chooses_its_interpolation() -> None:
    crop = timm_transforms.RandomResizedCropAndInterpolation(24, interpolation="random")
    step = step_of(crop)
    modes = Counter(step.interpolation_of(row).value for row in counter_rng.uniforms(0, range(400), count=5))
    assert {*modes} == {"bilinear", "bicubic"}
    assert 150 < modes["bilinear"] < 250
    assert (
        len(
            {
                repr(mode)
                for mode in step_of(timm_transforms.RandomResizedCropAndInterpolation(9)).interpolations
            }
        )
        == 1
    )


CROPS: dict[str, Any] = {
    "border": lambda: timm_transforms.CenterCropOrPad((70, 50), fill=[3, 4, 5]),
    "reflected": lambda: timm_transforms.CenterCropOrPad((71, 80), padding_mode="reflect"),
    "trimmed": lambda: timm_transforms.TrimBorder(7),
    "longest": lambda: timm_transforms.ResizeKeepRatio(48, longest=1.0),
    "shortest": lambda: timm_transforms.ResizeKeepRatio((40, 30), longest=0.0, interpolation="bicubic"),
}


@pytest.mark.parametrize("name", CROPS)
def test_crops_give_timms_pixels(name: str) -> None:
    crop = CROPS[name]()
    theirs = np.asarray(crop(Image.fromarray(PHOTOGRAPH)))
    mine = step_of(crop)(PHOTOGRAPH)
    assert mine.shape == theirs.shape
    assert np.abs(mine.astype(int) - theirs.astype(int)).mean() <= (0.5 if "est" in name else 0)


@pytest.mark.parametrize("side", [50, 90])
def test_random_crops_and_resizes_draw_what_timm_draws(side: int) -> None:
    crop = timm_transforms.RandomCropOrPad((side, side), padding_mode="reflect")
    step, image = step_of(crop), Image.fromarray(PHOTOGRAPH)
    random.seed(2)
    theirs = Counter(crop.get_params(image, crop.size) for _ in range(3000))
    mine = Counter(step.window(60, 75, row).box[:2] for row in counter_rng.uniforms(0, range(3000), count=2))
    assert {top for top, _ in theirs} == {top for top, _ in mine}
    assert {left for _, left in theirs} == {left for _, left in mine}
    options = {"random_scale_prob": 0.5, "random_scale_area": True, "random_aspect_prob": 0.5}
    resize = timm_transforms.ResizeKeepRatio(side, **options)
    arguments = [getattr(resize, name) for name in ("size", "longest", "random_scale_prob")]
    arguments += [resize.random_scale_range, resize.random_scale_area]
    arguments += [resize.random_aspect_prob, resize.random_aspect_range]
    sizes = np.array([resize.get_params(image, *arguments) for _ in range(2000)])
    again = step_of(resize)
    rows = counter_rng.uniforms(0, range(2000), count=again.uniforms)
    ours = np.array([again.window(60, 75, row).size for row in rows])
    assert np.abs(sizes.mean(0) - ours.mean(0)).max() < 0.6
    assert np.abs(sizes.std(0) - ours.std(0)).max() < 0.6


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_random_erasing_erases_as_much_as_timm(mode: str) -> None:
    erasing = random_erasing.RandomErasing(0.6, mode=mode, max_count=2, device="cpu")
    step = translate_transform(v1.Compose([v1.ToTensor(), erasing])).steps[1]
    random.seed(0)
    torch.manual_seed(0)
    blank = torch.full((3, 20, 24), 9.0)
    theirs = torch.stack([erasing(blank.clone()) for _ in range(300)])
    rows = counter_rng.uniforms(0, range(300), count=step.uniforms)
    mine = torch.stack([step.apply(blank, row) for row in rows])
    assert (blank == 9).all()
    shares = [(one != 9).float().mean((1, 2, 3)) for one in (theirs, mine)]
    assert abs((shares[0] == 0).sum() - (shares[1] == 0).sum()) < 50
    assert abs(shares[0].mean() - shares[1].mean()) < 0.03
    erased = mine[mine != 9]
    assert (erased == 0).all() if mode == "const" else abs(erased.std() - 1) < 0.2


# timm leaves the files that it opens to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"is_training": True, "auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"},
        {"is_training": True, "train_crop_mode": "rkrc", "auto_augment": "original-mstd0.5"},
        {"is_training": True, "color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.1},
        {"is_training": True, "auto_augment": "3a", "train_crop_mode": "rkrr"},
        {"is_training": False, "crop_mode": "border", "interpolation": "bicubic"},
        {"is_training": False, "crop_mode": "squash", "crop_border_pixels": 2},
        {"is_training": False, "use_prefetcher": True},
        {"is_training": True, "no_aug": True},
    ],
)
def test_create_transform_on_timms_image_dataset(options: dict[str, Any], tmp_path: Path) -> None:
    transform = timm_data.create_transform(32, **options)
    dataset = timm_data.ImageDataset(class_folders(tmp_path), transform=transform)
    native = rk.native(dataset)
    expected, found = dataset[3], native[3]
    assert (expected[0].shape, expected[0].dtype) == (found[0].shape, found[0].dtype)
    assert [native[index][1] for index in range(len(native))] == [
        label for _, label in dataset.reader.samples
    ]
    if not options["is_training"] or "no_aug" in options:
        scale = 1 if found[0].dtype == torch.uint8 else 0.225 * 255
        apart = (expected[0].float() - found[0].float()).abs() * scale
        assert apart.mean() <= 0.5
        assert apart.max() <= 4


def test_what_timm_would_do_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = timm_data.ImageDataset(class_folders(tmp_path), transform=None)
    dataset.transform = timm_data.create_transform(32, is_training=True, auto_augment="augmix-m3")
    with pytest.raises(rk.ArgumentError, match="AugMixAugment: no native step"):
        rk.native(dataset)
    augment = auto_augment.rand_augment_transform("rand-m9", dict(HPARAMS))
    monkeypatch.setattr(augment.ops[3], "level_fn", lambda level, hparams: (level * 2,))
    dataset.transform = v1.Compose([augment, v1.ToTensor()])
    with pytest.raises(
        rk.ArgumentError, match=r"its operation Rotate takes \(0.0,\)|its operation Rotate takes"
    ):
        rk.native(dataset)
    monkeypatch.setattr(augment.ops[3], "aug_fn", lambda image, *_: image)
    with pytest.raises(rk.ArgumentError, match="Rotate is done by"):
        rk.native(dataset)
    dataset.transform = v1.ToTensor()
    dataset.load_bytes, dataset.input_img_mode, dataset.target_transform = True, "L", str
    with pytest.raises(
        rk.ArgumentError, match=r"3 things[^~]*load_bytes[^~]*input_img_mode[^~]*target_transform"
    ):
        rk.native(dataset)
