"""Where a pipeline is split for refurbishing: chosen once by cost and diversity, or refused."""

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rekindle as rk
from light_torchvision import torchvision
from refurbished import STEPS, Folder, T, Words, epochs, foreign, load, make_images
from same import same


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


# Where to cut.


def test_the_cut_is_chosen_once_logged_and_kept_in_the_state(root: Path, caplog: Any) -> None:
    dataset = rk.open(root, transform=STEPS)
    auto = rk.Refurbish(factor=3, min_diversity=0.9)
    with caplog.at_level(logging.INFO, "rekindle"):
        loader = load(dataset, reuse=auto)
        batches = epochs(loader, 1)
    told = [record.message for record in caplog.records if "split before" in record.message]
    assert len(told) == 1
    state = loader.state_dict()
    assert type(state["split"]) is int
    assert f"split={state['split']}" in told[0]
    given = load(dataset, reuse=rk.Refurbish(factor=3, split=state["split"]))
    assert same(epochs(given, 1), batches)
    batches = epochs(loader, 2)
    resumed = load(dataset, reuse=auto, num_workers=2)
    resumed.load_state_dict(state)
    caplog.clear()
    assert same(epochs(resumed, 2), batches)
    assert not caplog.records


def test_a_cut_that_leaves_too_little_diversity_is_not_chosen(root: Path) -> None:
    slow = T.GaussianBlur(23, sigma=3)
    steps = [T.RandomResizedCrop(80), slow, T.RandomHorizontalFlip(), T.ToTensor()]
    loader = load(rk.open(root, transform=steps), reuse=rk.Refurbish(factor=3, min_diversity=0.9))
    next(iter(loader))
    assert loader.state_dict()["split"] == 0  # Only the decoded image may be kept: 58 % is left of a flip.
    loose = load(rk.open(root, transform=steps), reuse=rk.Refurbish(factor=3, min_diversity=0.5))
    next(iter(loose))
    assert loose.state_dict()["split"] == 2


def test_foreign_steps_are_known_or_judged_by_drawing(root: Path) -> None:
    dataset = foreign(root)
    loader = load(dataset, reuse=rk.Refurbish(factor=3))
    epochs(loader, 3)
    assert loader.state_dict()["split"] in (1, 2)
    assert 0.9 < loader.report().reuse.expected <= 1
    V = torchvision.transforms  # noqa: N806
    unknown = Folder(root, V.Compose([V.Resize((40, 40)), V.Lambda(_coin), V.ToTensor()]))
    loader = load(unknown, reuse=rk.Refurbish(factor=3, split=1))
    epochs(loader, 3)
    assert loader.report().reuse.expected.standard == pytest.approx(1.75, abs=0.02)


@pytest.mark.parametrize(("said", "views"), [(None, 1.75), (1, 1), (2, 1.75), (np.inf, 3)])
def test_functions_say_how_many_outcomes_they_have_or_are_judged_by_drawing(
    root: Path, said: float | None, views: float
) -> None:
    dataset = rk.open(
        root, transform=[T.Resize((40, 40)), T.Lambda(_mirrored_or_not, diversity=said), T.ToTensor()]
    )
    loader = load(dataset, reuse=rk.Refurbish(factor=3, split=1))
    epochs(loader, 3)
    assert loader.report().reuse.expected.standard == pytest.approx(views, abs=0.02)


def _mirrored_or_not(image: Any) -> Any:
    return np.ascontiguousarray(image[:, ::-1]) if random.random() < 0.5 else image


def _coin(image: Any) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"factor": 0.5}, "factor is 0.5"),
        ({"factor": "3"}, "factor is '3'"),
        ({"factor": True}, "factor is True"),
        ({"split": 1.5}, "split is 1.5"),
        ({"balance": "bytes"}, "balance is 'bytes'"),
        ({"min_diversity": 2}, "min_diversity is 2"),
        ({"epochs": 0}, "epochs is 0"),
        ({"disk": 5}, "disk is 5"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(rk.ArgumentError, match=told):
        rk.Refurbish(**settings)


def test_what_cannot_be_cut_is_told_with_the_way_out(root: Path) -> None:
    with pytest.raises(rk.ArgumentError, match=r"Words has no steps .*final_transform"):
        load(Words())
    with pytest.raises(rk.ArgumentError, match="the steps are 0: RandomResizedCrop"):
        load(rk.open(root, transform=STEPS), reuse=rk.Refurbish(split="Blur"))
    with pytest.raises(rk.ArgumentError, match="reuse is 3"):
        load(Words(), reuse=3)
    with pytest.raises(rk.ArgumentError, match="final_transform is 3"):
        load(Words(), final_transform=3, reuse=None)

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(rk.ArgumentError, match=r"Use rk\.Echo"):
        load(Stream(), shuffle=None)
