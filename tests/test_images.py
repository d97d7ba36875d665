"""Datasets of images: useful without the loader, and native in it with the same bytes everywhere."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

import rekindle as rk
from light_torchvision import torchvision
from photographs import image_folder, with_truncated_files
from rekindle.core import counter_rng
from rekindle.prepare.native import as_native
from same import same

T = rk.transforms
STEPS = [
    T.RandomResizedCrop(48),
    T.ColorJitter(0.3),
    T.RandomHorizontalFlip(),
    T.ToTensor(),
    T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]
SAMPLES = 23


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    return image_folder(folder, SAMPLES, height=120, width=150, endings=("png", *["jpg"] * 4))


@pytest.fixture
def broken(root: Path, tmp_path: Path) -> Path:
    """The same, with two bad files among them."""
    return with_truncated_files(root, tmp_path, "007.jpg", "016.jpg")


WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "1 thread": {"num_workers": 1, "executor": "threads"},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "4 threads": {"num_workers": 4, "executor": "threads"},
    "2 processes": {"num_workers": 2, "executor": "processes"},
    # They share nothing with this process, as spawned ones, but start faster.
    "2 of a server": {"num_workers": 2, "executor": "processes", "multiprocessing_context": "forkserver"},
}


def epochs(loader: Any, count: int = 2) -> list[Any]:
    # Copies: a batch's memory is used again once nobody holds it.
    return [[part.clone() for part in batch] for _ in range(count) for batch in loader]


def load(dataset: Any, **settings: Any) -> Any:
    return rk.DataLoader(dataset, **{"batch_size": 5, "shuffle": True, "seed": 3, **settings})


def expected(dataset: Any, order: list[list[int]], epoch: int) -> list[Any]:
    """By definition: a sample is a function of its uniforms, and these of its key."""
    made = []
    for ids in order:
        uniforms = counter_rng.uniforms(3, ids, epoch, count=dataset.uniforms)
        made.append(default_collate([dataset.sample(i, row) for i, row in zip(ids, uniforms, strict=True)]))
    return made


# Native folders in workers of a server are in test_refurbish.py as well.
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow) if way == "2 of a server" else way for way in WAYS]
)
def test_the_same_bytes_for_every_executor(root: Path, way: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    loader = load(dataset, **WAYS[way])
    batches, order = [], []
    for batch in loader:
        batches.append([part.clone() for part in batch])
        order.append(loader.batch.ids.tolist())
    assert sorted(id_ for ids in order for id_ in ids) == list(range(SAMPLES))
    assert same(batches, expected(dataset, order, 0))
    assert batches[0][0].shape == (5, 3, 48, 48)
    assert loader.report().executor == {"inline": "inline"}.get(
        way, "threads" if "thread" in way else "processes"
    )


def test_epochs_differ_and_repeat(root: Path) -> None:
    dataset = rk.open(root, transform=STEPS)
    first, second = epochs(load(dataset, num_workers=2)), epochs(load(dataset, num_workers=2))
    assert same(first, second)
    assert not same(first[:5], first[5:])


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
@pytest.mark.parametrize("options", [{"channels_last": True}, {"dtype": torch.uint8}], ids=str)
def test_options_apply_to_batches(root: Path, way: str, options: dict[str, Any]) -> None:
    dataset = rk.open(root, transform=STEPS, **options)
    batches = epochs(load(dataset, shuffle=False, **WAYS[way]), 1)
    order = [list(range(SAMPLES))[start : start + 5] for start in range(0, SAMPLES, 5)]
    assert same(batches, expected(dataset, order, 0))
    images = batches[0][0]
    assert images.dtype == options.get("dtype", torch.float32)
    kept = next(iter(load(dataset, shuffle=False, **WAYS[way])))[0]
    assert kept.is_contiguous(memory_format=torch.channels_last) == ("channels_last" in options)


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
def test_a_users_collate_function_gets_the_same_samples(root: Path, way: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    plain = epochs(load(dataset, num_workers=0), 1)
    collated = epochs(load(dataset, collate_fn=_collate, **WAYS[way]), 1)
    assert same(plain, collated)


def _collate(samples: list[Any]) -> Any:
    return default_collate(samples)


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
def test_a_resumed_epoch_continues_with_the_same_bytes(root: Path, way: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    whole = epochs(load(dataset, num_workers=2), 1)
    for step in range(5):
        loader = load(dataset, **WAYS[way])
        batches = iter(loader)
        for _ in range(step):
            next(batches)
        resumed = load(dataset, num_workers=1)
        resumed.load_state_dict(loader.state_dict())
        assert same(epochs(resumed, 1), whole[step:])
        del batches


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
def test_a_corrupt_image_is_named(broken: Path, way: str) -> None:
    loader = load(rk.open(broken, transform=STEPS), shuffle=False, **WAYS[way])
    with pytest.raises(rk.DecodeError, match=r"007\.jpg.*\(sample \d+\): a corrupt JPEG"):
        epochs(loader)


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_corrupt_images_are_skipped_alike_by_every_executor(broken: Path, on_error: str) -> None:
    dataset = rk.open(broken, transform=STEPS)
    found = {}
    for way in ("inline", "2 threads", "4 threads", "2 processes"):
        loader = load(dataset, on_error=on_error, error_budget=0.2, **WAYS[way])
        found[way] = epochs(loader), [bad.id for bad in loader._parts.bad_samples.found]
    batches, bad = found["inline"]
    # Stand-ins may be bad as well, so there can be more than two an epoch.
    assert {dataset.samples[id_][0][-7:] for id_ in bad} == {"007.jpg", "016.jpg"}
    assert all(same(other, (batches, bad)) for other in found.values())
    assert sum(len(labels) for _, labels in batches) == 2 * (SAMPLES - 2 if on_error == "skip" else SAMPLES)


def test_a_dataset_works_without_the_loader(root: Path) -> None:
    plain = rk.open(root)
    theirs = torchvision.datasets.ImageFolder(str(root))
    assert (plain.classes, plain.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert (plain.samples, plain.targets, plain.imgs) == (theirs.samples, theirs.targets, theirs.imgs)
    for (image, label), (their_image, their_label) in zip(plain, theirs, strict=True):
        np.testing.assert_array_equal(image, np.asarray(their_image))
        assert label == their_label
    data, label = rk.open(root, decode=False)[-1]
    assert data == Path(plain.samples[-1][0]).read_bytes()
    assert label == plain.targets[-1]
    with pytest.raises(IndexError):
        plain[SAMPLES]
    with pytest.raises(TypeError, match=r"an integer, but got slice\(None, 2, None\).*Subset"):
        plain[:2]
    with pytest.raises(TypeError, match="an integer, but got 'cat'"):
        plain["cat"]


def test_indexing_draws_from_torchs_generator_as_torchvision_does(root: Path) -> None:
    dataset = pickle.loads(pickle.dumps(rk.open(root, transform=T.Compose(STEPS))))
    torch.manual_seed(5)
    first, second = dataset[2][0], dataset[2][0]
    torch.manual_seed(5)
    assert same(dataset[2][0], first)
    assert not same(first, second)


@pytest.mark.parametrize("way", ["inline", "2 processes"])
def test_third_party_transforms_run_unchanged_in_processes(root: Path, way: str) -> None:
    pytest.importorskip("torchvision")
    transforms = torchvision.transforms
    compose = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    dataset = rk.open(root, transform=compose)
    assert not dataset.releases_gil
    assert as_native(dataset) is None
    loader = load(dataset, **WAYS[way])
    assert same(epochs(loader, 1), epochs(load(dataset, num_workers=0), 1))


def test_images_that_differ_in_size_still_load(root: Path) -> None:
    dataset = rk.open(root, transform=[T.ToTensor()])
    assert dataset.example() is None
    loader = load(dataset, batch_size=None, shuffle=False, num_workers=2)
    assert [image.shape[0] for image, _ in loader] == [3] * SAMPLES


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
def test_a_function_among_the_steps_is_seeded_for_each_sample(root: Path, way: str) -> None:
    dataset = rk.open(root, transform=[T.RandomResizedCrop(32), T.Lambda(_with_noise), T.ToTensor()])
    assert not dataset.draws_nothing
    assert same(epochs(load(dataset, **WAYS[way])), epochs(load(dataset, num_workers=0)))


def _with_noise(image: np.ndarray) -> np.ndarray:
    return image ^ np.random.randint(0, 8, image.shape, dtype=np.uint8)


def test_draws_of_the_training_loop_do_not_matter(root: Path) -> None:
    dataset = rk.open(root, transform=STEPS)
    quiet = epochs(load(dataset, num_workers=2))
    torch.manual_seed(1)
    drawn = []
    noisy = []
    loader = load(dataset, num_workers=2)
    for _ in range(2):
        for batch in loader:
            noisy.append([part.clone() for part in batch])
            drawn.append(torch.rand(3))
    assert same(noisy, quiet)
    torch.manual_seed(1)
    assert all(torch.equal(torch.rand(3), uniforms) for uniforms in drawn)


ARRAY_STEPS = [
    T.RandomCrop(32, padding=4),
    T.RandomHorizontalFlip(),
    T.ToTensor(),
    T.Normalize((0.5,), (0.25,)),
]


EXTRAS: list[list[Any]] = [[], [T.Posterize(4)], [T.RandomErasing()]]


@pytest.mark.parametrize(
    ("way", "extra"),
    [(way, extra) for way in WAYS for extra in EXTRAS if not extra or way != "2 of a server"],
    ids=str,
)
def test_arrays_in_memory_are_the_same_for_every_executor(way: str, extra: list[Any]) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (SAMPLES, 32, 32, 3), dtype=np.uint8)
    steps = (
        [*ARRAY_STEPS, *extra] if extra and isinstance(extra[0], T.RandomErasing) else [*extra, *ARRAY_STEPS]
    )
    dataset = rk.ArrayImages(images, rng.integers(0, 10, SAMPLES), transform=steps)
    loader = load(dataset, **WAYS[way])
    batches, order = [], []
    for batch in loader:
        batches.append([part.clone() for part in batch])
        order.append(loader.batch.ids.tolist())
    assert same(batches, expected(dataset, order, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda root: rk.open(root, transform=3), "transform is 3"),
        (lambda root: rk.open(root, transform=rk.transforms.ToTensor), r"instances: ToTensor\(\)"),
        (lambda root: rk.open(root, transform=STEPS, decode=False), "decode=False yields bytes"),
        (lambda root: rk.open(root, transform=len, channels_last=True), "are for steps of"),
        (lambda root: rk.ArrayImages(np.zeros((2, 3, 4)), [0, 1]), "images are float64"),
        (lambda root: rk.ArrayImages(np.zeros((2, 3, 4, 3), np.uint8), [0]), "Give one for each"),
        (lambda root: rk.ArrayImages(np.zeros((2, 3, 4, 3), np.uint8), [0, 1], len), "Give steps of"),
    ],
)
def test_wrong_arguments_are_rejected_at_construction(root: Path, call: Any, message: str) -> None:
    with pytest.raises(rk.ArgumentError, match=message):
        call(root)


def test_a_missing_file_is_named(root: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9)).save(buffer, "PNG")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.png").write_bytes(buffer.getvalue())
    dataset = rk.open(tmp_path, transform=STEPS)
    os.unlink(tmp_path / "a" / "b.png")
    with pytest.raises(FileNotFoundError, match=r"b\.png"):
        dataset[0]
