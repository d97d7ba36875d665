"""`DataLoader(native=…)`: samples, labels, order and resume as without it, and changes are followed."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset

import rekindle as rk
from foreign_datasets import COLOURED, SAMPLES, image_folder
from light_torchvision import transforms as v1
from light_torchvision import v2

STEPS = [v1.Resize(24), v1.CenterCrop(20), v1.ToTensor()]
WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "2 workers": {"num_workers": 2},
    "2 processes": {"num_workers": 2, "executor": "processes"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    return image_folder(tmp_path, v1.Compose([*STEPS]))


def labels_of(batches: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches]


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_those_of_the_dataset_as_it_is(folder: Any, way: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, **WAYS[way]}
    with rk.DataLoader(folder, **options) as plain, rk.DataLoader(folder, native=True, **options) as native:
        assert native.dataset is folder
        for _ in range(2):
            for expected, found in zip(plain, native, strict=True):
                assert type(expected) is type(found)
                assert expected[1].dtype == found[1].dtype
                assert expected[1].tolist() == found[1].tolist()
                assert (expected[0] - found[0]).abs().max() * 255 <= 2.01


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_are_chosen_for_what_was_translated(folder: Any, workers: int) -> None:
    for dataset in (folder, Subset(folder, [3, 1]), ConcatDataset([folder, folder])):
        expected = rk.DataLoader(rk.native(dataset), batch_size=4, num_workers=workers)
        with rk.DataLoader(dataset, batch_size=4, num_workers=workers, native=True) as loader:
            assert loader.report().threads == expected.report().threads
            assert sum(len(labels) for _, labels in loader) == len(dataset)


def test_auto_logs_and_reports_in_one_line_what_it_did(folder: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rekindle"):
        native = rk.DataLoader(folder, native="auto")
        folder.target_transform = str
        folder.transform = v1.FiveCrop(8)
        loader = rk.DataLoader(folder, batch_size=None, native="auto")
    did, did_not = [record.getMessage() for record in caplog.records if record.name == "rekindle"]
    assert "ImageFolder is loaded natively, by Resize, CenterCrop, ToTensor" in did
    assert "\n" not in did_not
    assert "target_transform" in did_not
    assert "FiveCrop" in did_not
    for report, logged in ((native.report(), did), (loader.report(), did_not)):
        assert logged == f"native='auto': {report.native}"
        assert "".join(logged.partition(": ")[2].split()) in "".join(repr(report).split())
        assert report.to_dict()["native"] == report.native
    assert rk.DataLoader(folder).report().native is None
    assert next(iter(loader))[1] == "0"
    with pytest.raises(rk.ArgumentError, match=r"native=True: 2 things[^~]*FiveCrop"):
        rk.DataLoader(folder, native=True)
    with pytest.raises(rk.ArgumentError, match="native must be True, False or"):
        rk.DataLoader(folder, native="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([v2.RandomErasing(1.0), v2.ToImage()], "RandomErasing works on tensors"),
        ([v1.ToTensor(), v1.Normalize([0.5] * 4, [0.5] * 4)], "have 4 numbers"),
    ],
)
def test_steps_that_do_not_fit_are_a_reason(folder: Any, steps: list[Any], reason: str) -> None:
    folder.transform = v1.Compose([v1.Resize((9, 9)), *steps])
    outcome = rk.DataLoader(folder, native="auto").report().native
    assert outcome.startswith("ImageFolder is loaded as it is: ImageFolder: ")
    assert reason in outcome
    with pytest.raises(rk.ArgumentError, match=rf"native=True: 1 thing in this dataset[^~]*{reason}"):
        rk.DataLoader(folder, native=True)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "function", [torch.Tensor.numpy, torch.Tensor.tolist, lambda image: float(image.mean()), repr]
)
def test_a_function_may_return_anything(folder: Any, function: Any, workers: int) -> None:
    folder.transform = v1.Compose([v1.CenterCrop(4), v1.ToTensor(), v1.Lambda(function)])
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers}
    found = list(rk.DataLoader(folder, **options, native=True))
    expected = list(DataLoader(folder, **options))
    assert str(found) == str(expected)


def test_a_dataset_that_is_native_already_stays_as_it_is(folder: Any) -> None:
    ours = rk.native(folder)
    assert rk.native(ours) is ours
    assert rk.DataLoader(ours, native=True)._parts.reuse.dataset is ours


@pytest.mark.parametrize("dataset", [range(6), [1.5, 2.5], torch.utils.data.TensorDataset(torch.zeros(4))])
def test_auto_leaves_any_other_dataset_as_it_is(dataset: Any) -> None:
    expected = [*rk.DataLoader(dataset, batch_size=2)]
    found = [*rk.DataLoader(dataset, batch_size=2, native="auto")]
    assert repr(expected) == repr(found)
    with pytest.raises(rk.ArgumentError, match="none of the datasets of torchvision"):
        rk.DataLoader(dataset, native=True)


def test_a_dataset_that_lacks_what_it_should_have_is_loaded_as_it_is(folder: Any) -> None:
    del folder.samples
    with pytest.raises(rk.ArgumentError, match="has no attribute 'samples'"):
        rk.native(folder)


@pytest.mark.parametrize("way", WAYS)
def test_changes_between_epochs_are_followed(folder: Any, way: str) -> None:
    options: dict[str, Any] = {"batch_size": SAMPLES, "native": True, **WAYS[way]}
    with rk.DataLoader(folder, **options) as loader:
        first = next(iter(loader))
        folder.samples = [(path, label + 10) for path, label in folder.samples[::-1]]
        second = next(iter(loader))
        assert second[1].tolist() == [label + 10 for label in first[1].tolist()[::-1]]
        assert torch.equal(second[0], first[0].flip(0))
        folder.samples[0] = (folder.samples[1][0], 77)
        third = next(iter(loader))
        assert third[1][0] == 77
        assert torch.equal(third[0][0], second[0][1])
        folder.transform.transforms[1] = v1.CenterCrop(12)
        assert next(iter(loader))[0].shape == (SAMPLES, 3, 12, 12)
        folder.transform = v1.Compose([v1.Resize((9, 9)), v1.ToTensor()])
        assert next(iter(loader))[0].shape == (SAMPLES, 3, 9, 9)
        folder.transform = v1.Compose([v1.RandomPerspective(), v1.ToTensor()])
        with pytest.raises(rk.ArgumentError, match=r"was changed after[^~]*RandomPerspective"):
            next(iter(loader))


@pytest.mark.parametrize("way", WAYS)
def test_changes_behind_whole_epochs_are_followed(folder: Any, way: str) -> None:
    options: dict[str, Any] = {"batch_size": SAMPLES, "native": True, **WAYS[way]}
    with rk.DataLoader(folder, **options) as loader:
        [(_, first)] = loader
        folder.samples = [(path, label + 10) for path, label in folder.samples[::-1]]
        [(_, second)] = loader
        assert second.tolist() == [label + 10 for label in first.tolist()[::-1]]
        folder.transform.transforms[1] = v1.CenterCrop(12)
        [(images, _)] = loader
        assert images.shape == (SAMPLES, 3, 12, 12)


def test_changed_arrays_and_indices_are_followed(tmp_path: Path) -> None:
    cifar = COLOURED["CIFAR10"](tmp_path, v1.ToTensor())
    part = Subset(cifar, [3, 4, 5])
    loader = rk.DataLoader(part, batch_size=3, native=True)
    before = next(iter(loader))
    cifar.data[4] = 255
    cifar.targets[5] = 99
    after = next(iter(loader))
    assert torch.equal(after[0][0], before[0][0])
    assert (after[0][1] == 1).all()
    assert after[1].tolist() == [*before[1].tolist()[:2], 99]
    part.indices[0] = 4
    assert (next(iter(loader))[0][0] == 1).all()


def test_persistent_workers_get_the_indices_of_the_samples_that_there_are_now(folder: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "persistent_workers": True}
    found = []
    for kind, native in ((torch.utils.data.DataLoader, {}), (rk.DataLoader, {"native": True})):
        dataset = copy.copy(folder)
        dataset.samples = [*folder.samples]
        loader = kind(dataset, **options, **native)
        before = labels_of(loader)
        del dataset.samples[-3:]
        found.append((before, len(loader), labels_of(loader)))
        del loader
    assert found[0] == found[1]
    assert sum(map(len, found[1][2])) == SAMPLES - 3


class Times:
    """A function that is shown without its number."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image * self.factor

    def __repr__(self) -> str:
        return "Times()"


@pytest.mark.parametrize("way", WAYS)
def test_another_function_is_followed_however_it_is_shown(tmp_path: Path, way: str) -> None:
    cifar = COLOURED["CIFAR10"](tmp_path, v1.Compose([v1.ToTensor(), v1.Lambda(Times(1.0))]))
    with rk.DataLoader(cifar, batch_size=3, native=True, **WAYS[way]) as loader:
        before = next(iter(loader))[0]
        cifar.transform.transforms[1] = v1.Lambda(Times(0.5))
        assert torch.equal(next(iter(loader))[0], before * 0.5)
        cifar.transform.transforms[1].lambd.factor = 0.25
        assert torch.equal(next(iter(loader))[0], before * 0.25)


@pytest.mark.parametrize("way", WAYS)
def test_changed_parameters_are_followed_wherever_they_are(tmp_path: Path, way: str) -> None:
    inverted, ours = v1.RandomApply([v1.RandomInvert(p=1)], p=0), rk.transforms.RandomInvert(p=0)
    cifar = COLOURED["CIFAR10"](tmp_path, v1.Compose([inverted, ours, v1.PILToTensor()]))
    with rk.DataLoader(cifar, batch_size=3, native=True, **WAYS[way]) as loader:
        before = next(iter(loader))[0]
        inverted.p = 1
        assert torch.equal(next(iter(loader))[0], 255 - before)
        ours.p = 1
        assert torch.equal(next(iter(loader))[0], before)


def test_what_was_cached_of_a_changed_dataset_is_not_used(tmp_path: Path) -> None:
    cifar = COLOURED["CIFAR10"](tmp_path, v1.Compose([v1.Resize(20), v1.ToTensor()]))
    reuse = rk.Refurbish(3, split=1, balance=None)
    loader = rk.DataLoader(cifar, batch_size=50, native=True, reuse=reuse, memory="64MB")
    before, again = next(iter(loader)), next(iter(loader))
    assert torch.equal(before[0], again[0])
    cifar.data[7] = 0
    after = next(iter(loader))
    assert (after[0][7] == 0).all()
    assert torch.equal(after[0][8], before[0][8])
    assert "Resize" in repr(loader._parts.reuse.dataset.transform)


@pytest.mark.parametrize("way", ["inline", "2 processes"])
def test_reuse_works_on_the_translated_steps(folder: Any, way: str) -> None:
    folder.transform = v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()])
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 1, "memory": "64MB", **WAYS[way]}
    reuse = rk.Refurbish(2, split="RandomHorizontalFlip")
    with rk.DataLoader(folder, native="auto", reuse=reuse, **options) as loader:
        batches = [torch.cat([images for images, _ in loader]) for _ in range(3)]
        report = loader.report()
    assert len(batches) == 3
    assert report.reuse is not None


def test_samplers_batch_samplers_and_collate_functions(folder: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    sampler = BatchSampler(RandomSampler(folder, generator=generator), 3, drop_last=True)
    found = labels_of(rk.DataLoader(folder, batch_sampler=sampler, native=True))
    generator.manual_seed(3)
    assert found == labels_of(torch.utils.data.DataLoader(folder, batch_sampler=sampler))
    loader = rk.DataLoader(folder, batch_size=2, collate_fn=list, native=True)
    (image, label), _ = next(iter(loader))
    assert (image.shape, image.dtype, label) == ((3, 20, 20), torch.float32, 0)


@pytest.mark.parametrize(("saved", "loads"), [("auto", False), (True, False), (False, "auto"), (False, True)])
def test_a_state_of_other_pixels_is_refused(folder: Any, saved: Any, loads: Any) -> None:
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 2}
    begun, other = (rk.DataLoader(folder, native=native, **options) for native in (saved, loads))
    next(iter(begun))
    with pytest.raises(rk.StateError, match=r"^native: .* saved with native="):
        other.load_state_dict(begun.state_dict())


def test_a_state_loads_wherever_the_pixels_are_the_same(folder: Any) -> None:
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 2}
    first, *rest = rk.DataLoader(folder, native=True, **options)
    begun = rk.DataLoader(folder, native="auto", **options)
    assert torch.equal(next(iter(begun))[0], first[0])
    for dataset, native in ((folder, True), (folder, "auto"), (rk.native(folder), False)):
        other = rk.DataLoader(dataset, native=native, **options)
        other.load_state_dict(begun.state_dict())
        assert all(torch.equal(a[0], b[0]) for a, b in zip(other, rest, strict=True))


def test_a_state_that_can_no_longer_be_translated_is_refused(folder: Any) -> None:
    """`native="auto"` in both runs, of which the second has a step without a native equivalent."""
    begun = rk.DataLoader(folder, native="auto", seed=2)
    state = begun.state_dict()
    folder.transform = v1.Compose([v1.FiveCrop(8), v1.Lambda(list)])
    with pytest.raises(rk.StateError, match=r"^native: "):
        rk.DataLoader(folder, native="auto", seed=2).load_state_dict(state)


def test_a_loader_resumes_and_is_copied(folder: Any) -> None:
    folder.transform = v1.Compose([v1.RandomCrop(16, pad_if_needed=True), v1.ToTensor()])
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 2, "native": True}
    whole = [*rk.DataLoader(folder, **options)]
    begun = rk.DataLoader(folder, **options)
    next(iter(begun))
    state = begun.state_dict()
    resumed = rk.DataLoader(folder, **options)
    resumed.load_state_dict(state)
    for expected, found in zip(whole[1:], resumed, strict=True):
        assert torch.equal(expected[0], found[0])
    other = pickle.loads(pickle.dumps(rk.DataLoader(folder, **options)))
    assert other.native is True
    assert torch.equal(next(iter(other))[0], whole[0][0])
    copied = copy.copy(rk.DataLoader(folder, **options))
    assert torch.equal(next(iter(copied))[0], whole[0][0])


def test_spawned_workers_do_not_get_the_original(folder: Any) -> None:
    translated = rk.DataLoader(folder, native=True)._parts.reuse.dataset
    sent = pickle.loads(pickle.dumps(translated))
    assert sent.original is None
    assert torch.equal(sent[3][0], translated[3][0])


def test_the_cache_on_disk_is_of_the_files_as_they_are(folder: Any, tmp_path: Path) -> None:
    loader = rk.DataLoader(folder, native=True)
    before = loader._parts.reuse.dataset.fingerprint
    assert before == rk.DataLoader(folder, native=True)._parts.reuse.dataset.fingerprint
    first = Path(folder.samples[0][0])
    first.write_bytes(Path(folder.samples[1][0]).read_bytes())
    assert before != rk.DataLoader(folder, native=True)._parts.reuse.dataset.fingerprint
    part = Subset(folder, np.arange(4).tolist())
    one = rk.DataLoader(part, native=True)._parts.reuse.dataset.fingerprint
    part.indices[0] = 5
    assert one != rk.DataLoader(part, native=True)._parts.reuse.dataset.fingerprint
