"""Where datasets are split: only where it changes nothing; and what a cache on disk is good for."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

import rekindle as rk
from light_torchvision import torchvision
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import pack
from photographs import photographs
from rekindle.reuse.layers import end_of, layers_of
from rekindle.reuse.split_point import SplitPoint
from same import digest

T, V = rk.transforms, torchvision.transforms
SIZE = 12


class Pictures(Dataset[Any]):
    """Pillow images with a transform, which is used as `give` says."""

    def __init__(self, transform: Any, give: Any) -> None:
        self.transform, self.give = transform, give

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.give(self, Image.fromarray(photographs()[index % 8][:40, index : index + 40]), index)


def as_usual(data: Pictures, image: Any, index: int) -> Any:
    return data.transform(image), index


def scaled(data: Pictures, image: Any, index: int) -> Any:
    return np.asarray(data.transform(image)) * 2, index


def with_its_mean(data: Pictures, image: Any, index: int) -> Any:
    image = data.transform(image)
    return image, float(np.asarray(image).mean())


def with_noise_of_its_own(data: Pictures, image: Any, index: int) -> Any:
    return data.transform(image), np.random.default_rng().random()


def steps() -> Any:
    return V.Compose(
        [V.RandomCrop(32), V.RandomHorizontalFlip(), V.ToTensor(), V.Normalize([0.5] * 3, [0.2] * 3)]
    )


REUSES = [rk.Refurbish(3, split="RandomHorizontalFlip"), rk.Refurbish(3, split="Normalize"), rk.Echo(2)]


@pytest.mark.parametrize("reuse", REUSES, ids=["at the flip", "at Normalize", "echo"])
@pytest.mark.parametrize("give", [scaled, with_its_mean])
def test_a_dataset_that_splitting_would_change_is_refused(give: Any, reuse: Any) -> None:
    with pytest.raises(rk.ArgumentError, match=r"uses what its transform returns.*final_transform"):
        rk.DataLoader(Pictures(steps(), give), 4, shuffle=True, seed=1, reuse=reuse)


@pytest.mark.parametrize("reuse", REUSES, ids=["at the flip", "at Normalize", "echo"])
@pytest.mark.parametrize("give", [as_usual, with_noise_of_its_own])
@pytest.mark.parametrize("part", [False, True])
def test_others_are_not(give: Any, reuse: Any, part: bool) -> None:
    data: Any = Pictures(steps(), give)
    data = Subset(data, range(8)) if part else data
    loader = rk.DataLoader(data, 4, shuffle=True, seed=1, reuse=reuse)
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("kind", [V.RandomChoice, V.RandomOrder, lambda some: V.RandomApply(some, p=0.5)])
def test_what_does_only_some_of_its_steps_is_one_step(kind: Any) -> None:
    some = kind([V.RandomCrop(32), V.CenterCrop(32)])
    assert len(layers_of([some])) == len(layers_of(Pictures(some, as_usual))) == 1
    with pytest.raises(rk.ArgumentError, match="no steps between which it can be split"):
        rk.DataLoader(Pictures(some, as_usual), 4, shuffle=True, reuse=rk.Refurbish(3))
    to_tensor = V.ToTensor()
    data = Pictures(
        kind([V.RandomCrop(32), V.CenterCrop(32)]),
        lambda it, image, n: to_tensor(it.transform(image).resize((8, 8))),
    )
    assert (
        len(list(rk.DataLoader(data, 4, shuffle=True, reuse=rk.Echo(2)))) == 6
    )  # What it gives is repeated.


def test_an_echo_after_a_step_is_after_all_of_it() -> None:
    layers = layers_of([T.RandomCrop(32), T.RandAugment(3, 9), T.RandomHorizontalFlip(), T.ToTensor()])
    ends = {"RandomCrop": 1, "RandAugment": 4, "RandAugment[1]": 3, "ToTensor": 6}
    assert {step: end_of(layers, step) for step in ends} == ends


def test_a_step_that_writes_in_place_has_no_more_outcomes_for_that() -> None:
    def brighten(image: Any) -> Any:
        image += float(torch.rand(()) < 0.5)
        return image

    data = Pictures(V.Compose([V.CenterCrop(32), V.ToTensor(), brighten]), as_usual)
    brightened = SplitPoint(data, rk.Refurbish(3), None)._known_outcomes()[-1]
    assert brightened.distinct(1000) == pytest.approx(2, abs=0.1)


# What a cache on disk was made from.


def values(loader: Any) -> str:
    found = digest([[part.clone() for part in batch] for batch in loader])
    loader.close()
    return found


def finish(sample: Any) -> Any:
    return sample


def test_another_transform_before_a_final_transform_is_noticed(tmp_path: Path) -> None:
    def load(size: int, disk: Path | None) -> Any:
        data = Pictures(V.Compose([V.Resize(size), V.ToTensor()]), as_usual)
        reuse = rk.Refurbish(3, memory=0, disk=disk)
        return rk.DataLoader(data, 4, shuffle=True, seed=1, reuse=reuse, final_transform=finish)

    values(load(16, tmp_path))
    assert values(load(24, tmp_path)) == values(load(24, None))


def test_other_targets_are_noticed(tmp_path: Path) -> None:
    class Plus:
        def __init__(self, more: int) -> None:
            self.more = more

        def __repr__(self) -> str:
            return f"Plus({self.more})"

    def give(data: Pictures, image: Any, index: int) -> Any:
        return data.transform(image), index + data.target_transform.more  # type: ignore[attr-defined]

    def load(more: int, disk: Path | None) -> Any:
        data = Pictures(steps(), give)
        data.target_transform = Plus(more)  # type: ignore[attr-defined]
        return rk.DataLoader(
            data, 4, shuffle=True, seed=1, reuse=rk.Refurbish(3, split=1, memory=0, disk=disk)
        )

    values(load(1, tmp_path))
    assert values(load(5, tmp_path)) == values(load(5, None))


@pytest.mark.parametrize("ending", ["tar", "tfrecord", "h5", "lmdb"])
def test_packed_files_that_were_rewritten_are_noticed(tmp_path: Path, ending: str) -> None:
    def encoded(first: int) -> list[Any]:
        found = []
        for number in range(SIZE):
            out = io.BytesIO()
            Image.fromarray(photographs()[(first + number) % 8][:40, :40]).save(out, "JPEG")
            found.append(out.getvalue())
        return found

    def load(disk: Path | None) -> Any:
        own = [T.RandomCrop(32), T.RandomHorizontalFlip(), T.ToTensor()]
        reuse = rk.Refurbish(3, split=1, memory=0, disk=disk)
        return rk.DataLoader(rk.open(path, own), 4, shuffle=True, seed=1, reuse=reuse)

    path = pack(tmp_path / f"packed.{ending}", encoded(0))
    values(load(tmp_path / "cache"))
    again = load(tmp_path / "cache")
    values(again)
    assert again.report().reuse.store.hits > 0, "the cache is not used at all, so this shows nothing"
    del again  # and its lock on the folder
    other = pack(tmp_path / f"other.{ending}", encoded(3))
    if path.is_dir():
        (path / "data.mdb").write_bytes((other / "data.mdb").read_bytes())
    else:
        path.write_bytes(other.read_bytes())
    assert values(load(tmp_path / "cache")) == values(load(None))


def test_what_is_changed_between_epochs_is_not_taken_from_disk(tmp_path: Path) -> None:
    class Scaled(Dataset[Any]):
        factor = 1

        def __len__(self) -> int:
            return SIZE

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(index * self.factor), 0

    data = Scaled()
    loader = rk.DataLoader(
        data, 4, shuffle=True, seed=1, final_transform=finish, reuse=rk.Refurbish(3, memory=0, disk=tmp_path)
    )
    list(loader)
    data.factor = 10
    for _ in range(2):
        assert sorted(value for batch in loader for value in batch[0].tolist()) == [
            10 * n for n in range(SIZE)
        ]


def test_going_back_to_a_state_finds_the_same_cache_on_disk(tmp_path: Path) -> None:
    data = Pictures(steps(), as_usual)
    reuse = rk.Refurbish(3, split=1, memory=0, disk=tmp_path)
    loader = rk.DataLoader(data, 4, shuffle=True, seed=1, reuse=reuse)
    start = loader.state_dict()
    list(loader)
    folders = sorted(tmp_path.iterdir())
    loader.load_state_dict(start)
    list(loader)
    assert sorted(tmp_path.iterdir()) == folders
    assert loader.report().reuse.store.hits > 0


def test_another_transform_between_epochs_is_seen(tmp_path: Path) -> None:
    data = Pictures(steps(), as_usual)
    loader = rk.DataLoader(
        data, 4, shuffle=True, seed=1, reuse=rk.Refurbish(3, split="ToTensor", memory=0, disk=tmp_path)
    )
    assert next(iter(loader))[0].shape[-1] == 32
    data.transform = V.Compose([V.CenterCrop(16), V.ToTensor()])
    for _ in range(2):
        for images, _ in loader:
            assert images.shape[-1] == 16
