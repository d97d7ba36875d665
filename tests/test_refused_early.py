"""Mistakes are found where they are made, and a refused command leaves nothing behind."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk
from rekindle.loader.arguments import OWN as OWN_ARGUMENTS
from rekindle.tools.cli import main

T = rk.transforms


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two images that decode, one cut off in the middle, and one that is none."""
    folder = tmp_path / "train" / "cat"
    folder.mkdir(parents=True)
    for number in range(3):
        Image.effect_noise((40, 40), 50).convert("RGB").save(folder / f"{number}.png")
    whole = (folder / "2.png").read_bytes()
    (folder / "2.png").write_bytes(whole[: len(whole) // 2])
    (folder / "3.jpg").write_bytes(b"no image")
    return tmp_path / "train"


@pytest.mark.parametrize("codec", ["gzip", 3, None, ["raw"]])
def test_a_codec_that_does_not_exist_is_refused_at_once(codec: Any) -> None:
    with pytest.raises(rk.ArgumentError, match=r"codec=.*'raw', 'lz4', 'zstd', 'jpeg'"):
        rk.Refurbish(codec=codec)


@pytest.mark.parametrize("quality", [0, 101, 50.5, "90"])
def test_a_jpeg_quality_is_an_integer_from_1_to_100(quality: Any) -> None:
    with pytest.raises(rk.ArgumentError, match="quality"):
        rk.Jpeg(quality)


@pytest.mark.parametrize("after", [None, 3])
def test_an_echo_after_something_that_is_no_name_lists_the_stages(after: Any) -> None:
    with pytest.raises(rk.ArgumentError, match=r"Echo: after is .*'read', 'decode', 'augment', 'batch'"):
        rk.Echo(2, after=after)


@pytest.mark.parametrize("native", [True, False])
def test_an_echo_after_an_unknown_step_names_the_argument_and_the_steps(images: Path, native: bool) -> None:
    dataset: Any = rk.open(images, [T.RandomHorizontalFlip(), T.ToTensor()]) if native else range(10)
    steps = "0: RandomHorizontalFlip, 1: ToTensor" if native else "none"
    with pytest.raises(rk.ArgumentError, match=rf"^Echo\(after='decoded'\).*the steps are {steps}\.$"):
        rk.DataLoader(dataset, reuse=rk.Echo(2, after="decoded"))


def test_a_decoding_error_has_no_address_of_memory(images: Path) -> None:
    with pytest.raises(rk.DecodeError, match="cannot identify image file") as refused:
        rk.open(images)[3]
    assert "0x" not in str(refused.value)


MISSING: dict[str, Callable[[Path], object]] = {
    "folder": lambda folder: rk.open(folder / "gone"),
    "file": lambda folder: rk.open(folder / "gone.tar"),
    "pattern": lambda folder: rk.open(folder / "gone-*.tar"),
    "braces": lambda folder: rk.open(folder / "gone-{0..1}.tar"),
    "labels": lambda folder: rk.open(folder, labels=folder / "gone.csv"),
    "groups": lambda folder: rk.Redundancy(folder / "gone.json"),
    "scores": lambda folder: rk.SelectionViaProxy(folder / "gone.npz", keep=0.5),
    "info": lambda folder: rk.info(folder / "gone"),
    "pack": lambda folder: rk.pack(folder / "gone", folder / "new.tar"),
    "URL": lambda folder: rk.open("memory://gone/gone.tar"),
    "pattern of URLs": lambda folder: rk.open("memory://gone/gone-*.tar"),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_not_there_is_a_file_not_found_as_well(images: Path, what: str) -> None:
    with pytest.raises(FileNotFoundError, match="gone") as refused:
        MISSING[what](images)
    assert isinstance(refused.value, rk.DataNotFoundError | rk.RemoteNotFoundError)


def test_a_labels_file_that_is_not_there_is_named_with_what_labels_takes(images: Path) -> None:
    with pytest.raises(rk.DataError, match=r"nothere\.csv': No such file.*labels= takes the path"):
        rk.open(images, labels="nothere.csv")
    with pytest.raises(rk.DataError, match=r"\.csv, \.tsv or \.json file, but got"):
        rk.open(images, labels="nothere")
    with pytest.raises(rk.ArgumentError, match=r"^labels=3: expected the path"):
        rk.open(images, labels=3)  # type: ignore[arg-type]


def test_labels_that_no_sample_of_a_tar_has_are_refused(images: Path, tmp_path: Path) -> None:
    rk.pack(images, tmp_path / "x.tar")
    with pytest.raises(rk.FormatError, match=r"labels='nothere', but no sample has a member"):
        rk.open(tmp_path / "x.tar", labels="nothere")
    assert rk.open(tmp_path / "x.tar", labels="cls").targets == [0] * 4


@pytest.mark.parametrize("options", [[], ["--resize", "64"]])
def test_skip_broken_decodes_also_what_is_copied_as_it_is(
    images: Path, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "x.tar"
    assert main(["pack", str(images), str(target), "--skip-broken", *options]) == 0
    shown = capsys.readouterr().err
    assert "2.png" in shown
    assert "3.jpg" in shown
    packed = rk.open(target)
    assert [packed[index][0].shape for index in range(len(packed))] == [(40, 40, 3)] * 2
    kept = [bytes(packed.source.read(index)) for index in range(2)]
    assert kept == [(images / f"cat/{number}.png").read_bytes() for number in range(2)]


def test_a_refused_pack_leaves_no_working_folder(images: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.tar"
    target.write_bytes(b"something else")
    with pytest.raises(rk.ArgumentError, match="exists"):
        rk.pack(images, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "x.tar"]
    assert target.read_bytes() == b"something else"


def test_what_is_no_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(rk.ArgumentError, match=r"path is 3\. Give a folder"):
        rk.open(3)  # type: ignore[arg-type]
    with pytest.raises(rk.DataError, match=r"no files that end in .*\.jpg.*Give a folder that"):
        rk.open(tmp_path)


def test_a_whole_checkpoint_is_told_from_a_loaders_state() -> None:
    loader = rk.DataLoader(list(range(8)))
    with pytest.raises(rk.StateError, match=r"the keys 'model', 'loader'\. .* give the loader's part of it"):
        loader.load_state_dict({"model": {}, "loader": loader.state_dict()})
    with pytest.raises(rk.StateError, match="Make the loader with the same shuffle= or sampler="):
        rk.DataLoader(list(range(8)), shuffle=True).load_state_dict(loader.state_dict())


def test_a_transform_that_cannot_be_split_is_named() -> None:
    class Transformed(Dataset[int]):
        def __init__(self) -> None:
            self.transform = torch.nn.Sequential()

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(rk.ArgumentError, match="its transform, a Sequential, is no Compose"):
        rk.DataLoader(Transformed(), shuffle=True, reuse=rk.Refurbish(3))


# Arguments of a loader that is made already.

OWN = dict.fromkeys(OWN_ARGUMENTS) | {"seed": 9, "executor": "threads", "on_error": "skip", "shard": (0, 2)}


@pytest.mark.parametrize("made", ["new", "copied", "pickled", "resumed"])
@pytest.mark.parametrize("name", OWN)
def test_our_arguments_cannot_be_set_later_as_torchs_cannot(name: str, made: str) -> None:
    loader: rk.DataLoader[Any] = rk.DataLoader(range(8), batch_size=4, shuffle=True, seed=3)
    shown = repr(loader)
    if made == "copied":
        loader = copy.deepcopy(loader)
    elif made == "pickled":
        loader = pickle.loads(pickle.dumps(loader))
    elif made == "resumed":
        loader.load_state_dict(loader.state_dict())
    with pytest.raises(
        ValueError, match=rf"^{name} attribute should not be set .*Make a new loader with {name}="
    ):
        setattr(loader, name, OWN[name])
    assert repr(loader) == shown


def test_what_takes_effect_can_be_set_later_and_a_subclass_may_have_attributes() -> None:
    class Own(rk.DataLoader[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.seed = 5  # As torch allows for `batch_size`: the constructor sets it again.
            super().__init__(*arguments, **options)
            self.epoch_of_mine = 3

    loader = Own(range(8), batch_size=4, shuffle=True, seed=3)
    assert (loader.seed, loader.epoch_of_mine) == (3, 3)
    plain = [batch.tolist() for batch in loader]
    loader.set_epoch(0)
    loader.num_workers, loader.collate_fn = 1, lambda samples: torch.tensor(samples) + 10
    assert [(batch - 10).tolist() for batch in loader] == plain
    loader.close()


# Arguments that mean nothing together, or nothing at all.


@pytest.mark.parametrize("budget", [0.5, 1])
def test_a_budget_for_errors_that_are_raised_is_refused(budget: float) -> None:
    with pytest.raises(rk.ArgumentError, match=r"on_error='raise' passes over none\. Give on_error='skip'"):
        rk.DataLoader(range(4), error_budget=budget)
    rk.DataLoader(range(4), error_budget=0.01)
    rk.DataLoader(range(4), error_budget=budget, on_error="skip")


def test_a_generator_that_is_a_number_is_refused() -> None:
    with pytest.raises(rk.ArgumentError, match=r"generator is 5\. Give a torch\.Generator.* or seed="):
        rk.DataLoader(range(4), shuffle=True, generator=5)  # type: ignore[arg-type]


def test_a_proxy_that_is_no_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rk.ArgumentError, match=r"model is 'm'\. Give a torch\.nn\.Module"):
        rk.train_proxy("m", range(4), tmp_path / "scores.npz")  # type: ignore[arg-type]
